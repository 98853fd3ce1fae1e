//! The machine for which a recipe is written.

use crate::questions::find_local_gpus;
use dtrain_common::question::Gpu;

/// The GPUs of a machine, or its cores.
#[derive(Debug, Default)]
pub(super) struct Machine {
    /// The kinds of GPUs; empty for a machine without.
    gpus: Vec<Gpu>,
    pub(super) count: usize,
    cores: usize,
}

impl Machine {
    pub(super) fn look() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        match find_local_gpus() {
            Ok((gpus, Some(count))) => Self { gpus, count, cores },
            // Without a driver a training runs on the CPU.
            _ => Self { cores, ..Self::default() },
        }
    }

    pub(super) fn has_gpus(&self) -> bool {
        !self.gpus.is_empty()
    }

    /// Returns the memory of the smallest GPU.
    pub(super) fn bytes(&self) -> u64 {
        self.gpus.iter().map(|gpu| gpu.bytes).min().unwrap_or(0)
    }

    /// Returns the ranks of a launch without `--nproc`.
    pub(super) fn ranks(&self) -> usize {
        self.count.max(1)
    }

    /// Returns the data type of mixed precision that `auto` takes here.
    pub(super) fn precision(&self) -> &'static str {
        if self.gpus.iter().all(|gpu| gpu.bf16) { "bf16" } else { "fp16" }
    }

    /// Returns the machine in words.
    pub(super) fn words(&self) -> String {
        match self.gpus.first() {
            Some(gpu) => format!("{} x {}", self.count, gpu.name),
            None if self.cores == 1 => "one CPU core".to_owned(),
            None => format!("{} CPU cores", self.cores),
        }
    }
}
