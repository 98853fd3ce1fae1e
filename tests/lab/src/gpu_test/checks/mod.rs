//! The checks in their order.

mod faults;
mod graphs;
mod imports;
mod kernels;
mod machine;
mod memory;
mod nccl;
mod recipes;
mod training;

use anyhow::Result;
use clap::ValueEnum;

use super::bench;
pub(super) use super::check::Check;
use super::finding::Finding;
use super::suite::Suite;

pub(super) use faults::checks as faults;
pub(super) use graphs::checks as graphs;
pub(super) use imports::{checks as imports, import_in_background};
pub(super) use machine::checks as machine;
pub(super) use memory::first_predictions;
pub(super) use training::devices;

/// The parts of the suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    /// The driver; each worker uses only its own GPU
    Machine,
    /// NCCL collectives with one and several ranks
    Nccl,
    /// Updates, loss scale, networks, segments, streams and graphs against PyTorch
    Kernels,
    /// One training in every cut and precision, resumed, with fewer GPUs
    Training,
    /// Trainings with CUDA graphs against trainings without
    Graphs,
    /// Memory predictions against measurements, and an allocator limit
    Memory,
    /// Full or missing GPU; dead, hanging or stopped rank
    Faults,
    /// Speed and memory against PyTorch; the longest part
    Benchmarks,
}

impl Part {
    /// Returns its name on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Returns its checks; benchmarks take `rounds` rounds.
    pub(super) fn checks(self, rounds: usize) -> Vec<Check> {
        match self {
            Self::Machine => machine::checks(),
            Self::Nccl => nccl::checks(),
            Self::Kernels => kernels::checks(),
            Self::Training => training::checks(),
            Self::Graphs => graphs::checks(),
            Self::Memory => memory::checks(),
            Self::Faults => faults::checks(),
            Self::Benchmarks => bench::cases()
                .into_iter()
                .map(|case| Check {
                    name: case.name(),
                    seconds: case.seconds(rounds),
                    run: Box::new(move |suite| case.run(suite)),
                })
                .collect(),
        }
    }
}

/// Creates a check from a function.
fn check(name: &str, seconds: u32, run: fn(&Suite<'_>) -> Result<Finding>) -> Check {
    Check { name: name.to_owned(), seconds, run: Box::new(run) }
}
