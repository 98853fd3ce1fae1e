//! Faults for tests, by DTRAIN_FAULT: an allocation fails, or the process crashes.

use dtrain_common::env::{DTRAIN_FAULT, EnvError};
use dtrain_torch_shim::memory;

use crate::memory::Phase;

/// Prefix of DTRAIN_FAULT for a write that fails.
pub(crate) const WRITE_FAULT: &str = "write:";

/// The fault of this rank by DTRAIN_FAULT: in one phase of one step, an allocation fails in libtorch's allocator, with its
/// error, or the process crashes. Affects only tensors on the host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Fault {
    failure: Option<AllocationFailure>,
    armed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct AllocationFailure {
    /// Whether the process crashes instead.
    crashes: bool,
    rank: usize,
    phase: Phase,
    /// Counted from 1, as in messages.
    step: u64,
    /// Counted from 1, within the step.
    micro_step: usize,
    /// Allocations of the phase that succeed before the failing one.
    after: u64,
    /// How often the phase fails.
    times: u32,
}

impl Fault {
    pub(crate) fn from_env(rank: usize) -> Result<Self, EnvError> {
        let value = std::env::var(DTRAIN_FAULT).ok().filter(|value| !value.starts_with(WRITE_FAULT));
        value.map_or(Ok(Self::default()), |value| Self::parse(&value, rank))
    }

    fn parse(value: &str, rank: usize) -> Result<Self, EnvError> {
        let failure = AllocationFailure::parse(value).ok_or_else(|| EnvError::Invalid {
            name: DTRAIN_FAULT,
            value: value.to_owned(),
            expected: "such as oom:rank=1,step=3,phase=backward, and optionally micro_step, after and times",
        })?;
        Ok(Self { failure: Some(failure).filter(|failure| failure.rank == rank), armed: false })
    }

    pub(crate) fn begin(&mut self, phase: Phase, step: u64, micro_step: usize) {
        let Some(failure) = &mut self.failure else { return };
        if failure.times > 0 && (failure.phase, failure.step, failure.micro_step) == (phase, step, micro_step)
        {
            if failure.crashes {
                std::process::abort();
            }
            failure.times -= 1;
            self.armed = true;
            memory::fail_allocation(failure.after.saturating_add(1));
        }
    }

    /// Ends the phase, successful or not: later allocations succeed.
    pub(crate) fn end(&mut self) {
        if !std::mem::take(&mut self.armed) {
            return;
        }
        if memory::allocations_until_failure() > 0 {
            tracing::warn!(
                "DTRAIN_FAULT had no effect: the phase made no more than `after` allocations; lower `after`"
            );
        }
        memory::fail_allocation(0);
    }
}

impl AllocationFailure {
    fn parse(value: &str) -> Option<Self> {
        let (mut rank, mut step, mut phase) = (None, None, None);
        let (mut micro_step, mut after, mut times) = (1, 0, 1);
        let (kind, pairs) = value.split_once(':')?;
        let crashes = kind == "crash";
        if !crashes && kind != "oom" {
            return None;
        }
        for pair in pairs.split(',') {
            let (key, text) = pair.split_once('=')?;
            match key {
                "rank" => rank = Some(text.parse().ok()?),
                "step" => step = Some(text.parse().ok()?),
                "phase" => phase = Some(*Phase::ALL.iter().find(|phase| phase.name() == text)?),
                "micro_step" => micro_step = text.parse().ok()?,
                "after" => after = text.parse().ok()?,
                "times" => times = text.parse().ok()?,
                _ => return None,
            }
        }
        Some(Self { crashes, rank: rank?, phase: phase?, step: step?, micro_step, after, times })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_fault_affects_one_rank() {
        let value = "oom:rank=1,step=3,phase=backward,times=2";
        let fault = Fault::parse(value, 1).unwrap();
        let (rank, phase) = (1, Phase::Backward);
        let failure =
            AllocationFailure { crashes: false, rank, phase, step: 3, micro_step: 1, after: 0, times: 2 };
        assert_eq!(fault.failure, Some(failure));
        assert!(Fault::parse("crash:rank=1,step=3,phase=backward", 1).unwrap().failure.unwrap().crashes);
        assert_eq!(Fault::parse(value, 0).unwrap(), Fault::default());
    }

    #[test]
    fn invalid_faults_are_errors() {
        for value in [
            "",
            "oom",
            "oom:",
            "oom:rank=1,step=3",
            "oom:rank=1,step=3,phase=lunch",
            "oom:rank=-1,step=3,phase=forward",
            "oom:rank=1,step=3,phase=forward,when=never",
        ] {
            let error = Fault::parse(value, 0).unwrap_err();
            assert!(error.to_string().contains("oom:rank=1"), "{error}");
        }
    }
}
