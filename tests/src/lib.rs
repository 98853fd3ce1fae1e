//! Code that the integration tests and the suites' programs share and that needs libtorch, unlike `dtrain_test_kit`.

pub use dtrain_test_kit::{formula, process, programs, ranks, reference, runs};

pub mod parity;
pub mod segments;
pub mod trainings;
