//! What the integration tests and the programs of the suites share beyond `dtrain_test_kit`, and libtorch is needed for.

pub use dtrain_test_kit::{formula, process, programs, ranks, reference, runs};

pub mod parity;
pub mod segments;
pub mod trainings;
