//! Tools around building dtrain, up to a running training: the library of `cargo xtask` and of the lab.

pub mod book;
pub mod check;
pub mod demo;
pub mod fake_gpu;
pub mod files;
mod hidden_tools;
mod lanes;
pub mod metrics;
pub mod mpi;
mod problem;
pub mod process;
pub mod python;
mod pytorch;
pub mod setup;
pub mod wheel;
pub mod workspace;
