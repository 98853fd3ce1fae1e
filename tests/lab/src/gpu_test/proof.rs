//! Proof that a check's processes computed on GPUs.
//!
//! If libtorch cannot load CUDA's libraries, programs may compute on the CPU, and equal losses, predictions and exit
//! codes then say nothing about a GPU. A check passes only with a proof, and fails if a training used another device.

use std::cell::RefCell;
use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};

use super::finding::Finding;
use crate::commands::last_lines;
use crate::report::Verdict;

/// The kind of a device, as dtrain names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Cpu,
    Gpu,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Gpu => "GPU",
        }
    }
}

/// What the current check's processes computed on.
#[derive(Debug, Default)]
pub(super) struct Proofs(RefCell<BTreeSet<String>>);

impl Proofs {
    /// Records what a program computed on.
    pub(super) fn add(&self, device: impl Into<String>) {
        self.0.borrow_mut().insert(device.into());
    }

    /// Records the devices of a training from its line `MODEL on N x DEVICE in PRECISION`.
    ///
    /// # Errors
    /// If these are not `ranks` devices of this kind, or if the line is missing.
    pub(super) fn add_training(&self, stderr: &str, ranks: usize, kind: Kind) -> Result<()> {
        let found = trained_on(stderr).with_context(|| {
            format!(
                "the training does not name its devices, expected {}: {}",
                kind.name(),
                last_lines(stderr)
            )
        })?;
        let expected = format!("{ranks} x {}", kind.name());
        ensure!(found == expected, "trained on {found}, expected {expected}");
        if kind == Kind::Gpu {
            self.add(expected);
        }
        Ok(())
    }

    /// Names the devices in a passed finding; without a proof it has failed.
    pub(super) fn judge(&self, found: Finding) -> Finding {
        let devices: Vec<String> = self.0.take().into_iter().collect();
        match found.verdict {
            Verdict::Passed if devices.is_empty() => Finding {
                verdict: Verdict::Failed,
                note: format!("no process proved that it computed on a GPU: {}", found.note),
                ..found
            },
            Verdict::Passed => {
                Finding { note: format!("{}; on {}", found.note, devices.join(", ")), ..found }
            }
            _ => found,
        }
    }
}

/// Returns a training's `N x DEVICE`.
fn trained_on(stderr: &str) -> Option<&str> {
    stderr.lines().find_map(|line| {
        let (_, after) = line.split_once(" on ")?;
        let (devices, _) = after.split_once(" in ")?;
        let (number, _) = devices.split_once(" x ")?;
        number.parse::<usize>().is_ok().then_some(devices)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPUS: &str =
        "dtrain: 2 workers on this machine in all\n[rank 0] gpt on 2 x GPU in bf16: 4032 parameters\n";

    #[test]
    fn a_training_proves_its_devices() {
        let proofs = Proofs::default();
        assert!(proofs.add_training(GPUS, 2, Kind::Gpu).is_ok());
        assert_eq!(proofs.judge(Finding::passed("done")), Finding::passed("done; on 2 x GPU"));
        // The next check needs its own.
        assert_eq!(proofs.judge(Finding::passed("done")).verdict, Verdict::Failed);
    }

    #[test]
    fn a_training_on_the_cpu_is_no_proof() {
        let proofs = Proofs::default();
        let on_cpu = GPUS.replace("GPU", "CPU");
        let refusals = [(on_cpu.as_str(), 2), (GPUS, 1), ("error: no such file", 2)];
        for (stderr, ranks) in refusals {
            assert!(proofs.add_training(stderr, ranks, Kind::Gpu).is_err(), "{stderr}");
        }
        assert!(proofs.add_training(&on_cpu, 2, Kind::Cpu).is_ok());
        let judged = proofs.judge(Finding::passed("done"));
        assert_eq!(judged.verdict, Verdict::Failed);
        assert!(judged.note.contains("done"), "{judged:?}");
        // Reasons of other failures stay as they are.
        assert_eq!(proofs.judge(Finding::skipped("no Python")), Finding::skipped("no Python"));
    }
}
