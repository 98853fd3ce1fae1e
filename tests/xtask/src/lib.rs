//! What is needed around building dtrain, from a fresh machine to a training that runs. `cargo xtask` is its command line, and the
//! lab of benchmarks builds on it.

pub mod check;
pub mod demo;
pub mod metrics;
pub mod process;
pub mod python;
mod pytorch;
pub mod setup;
pub mod workspace;
