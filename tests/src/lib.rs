//! Code with libtorch for integration tests and the suites' programs. `dtrain_test_kit` needs no libtorch.

pub use dtrain_test_kit::{formula, process, programs, ranks, reference, runs};

pub mod conformance;
pub mod cpu;
pub mod draws;
pub mod parity;
pub mod segments;
pub mod trainings;
