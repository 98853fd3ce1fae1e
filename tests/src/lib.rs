//! Code with libtorch that integration tests and the suites' programs share; `dtrain_test_kit` has none.

pub use dtrain_test_kit::{formula, process, programs, ranks, reference, runs};

pub mod parity;
pub mod segments;
pub mod trainings;
