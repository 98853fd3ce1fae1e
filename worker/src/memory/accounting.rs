//! Accounts for the memory of a step by phase and by owner, on a CPU as on a GPU.

use crate::memory::{MemoryReport, Owners, PhasePeaks};
use dtrain_torch_shim::ShimError;
use dtrain_torch_shim::memory::{self, Usage};
use dtrain_torch_shim::symbolic::Symbolic;
use serde::Serialize;
use tch::Device;

/// The tensors whose memory is read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MemoryStats<'a> {
    /// Tensors on this device.
    Device(Device),
    /// Symbolic tensors.
    Symbolic(&'a Symbolic),
}

impl MemoryStats<'_> {
    fn usage(&self) -> Result<Usage, ShimError> {
        match self {
            Self::Device(device) => memory::usage(*device),
            Self::Symbolic(region) => region.usage(),
        }
    }

    fn reset_peak(&self) -> Result<(), ShimError> {
        match self {
            Self::Device(device) => memory::reset_peak(*device),
            Self::Symbolic(region) => region.reset_peak(),
        }
    }
}

/// Returns the memory of tensors on `device`, for messages.
pub(crate) fn report(device: Device) -> Result<MemoryReport, ShimError> {
    memory::usage(device).map(to_report)
}

/// GPU memory outside this process's tensors and allocator cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherUsage {
    pub bytes: u64,
    pub total: u64,
}

/// Returns the memory of `device` that others use; None on a CPU, or if the device does not report it.
pub(crate) fn other_usage(device: Device) -> Option<OtherUsage> {
    if !device.is_cuda() {
        return None;
    }
    let (free, total) = memory::device_memory(device).ok()?;
    let own = memory::usage(device).ok()?.reserved;
    Some(OtherUsage { bytes: total.saturating_sub(free).saturating_sub(own), total })
}

fn to_report(usage: Usage) -> MemoryReport {
    MemoryReport { allocated: usage.allocated, reserved: usage.reserved, peak: usage.peak }
}

/// The parts of a step that may run out of memory, and the evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The first pass of a loss over the whole step, and its derivative; they count as memory of the forward pass.
    Outputs,
    /// Placement of a micro-batch, and the forward pass.
    Forward,
    /// Backward, with the reductions that start in it and the work after each micro-batch.
    Backward,
    /// The start of the remaining reductions.
    Reduce,
    /// Allocations for the update; they count as memory of the reduction.
    AllocateUpdate,
    /// Norm, clipping, optimizer, running statistics and moving average.
    Update,
    /// The test set; its memory counts for no step.
    Evaluate,
}

impl Phase {
    pub(crate) const ALL: [Self; 7] = [
        Self::Outputs,
        Self::Forward,
        Self::Backward,
        Self::Reduce,
        Self::AllocateUpdate,
        Self::Update,
        Self::Evaluate,
    ];

    /// Returns the name in messages, metrics and DTRAIN_FAULT.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Outputs => "outputs",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Reduce => "reduce",
            Self::AllocateUpdate => "prepare",
            Self::Update => "update",
            Self::Evaluate => "evaluate",
        }
    }
}

/// The memory of one step in bytes, for a line of metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct StepMemory {
    /// Allocated at the end of the step, and the peak of the step.
    #[serde(flatten)]
    pub(crate) report: MemoryReport,
    pub(crate) owners: Owners,
    pub(crate) phases: PhasePeaks,
}

/// The memory of a micro-step, in bytes above the memory allocated at its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MicroStepMemory {
    /// Peak of the forward pass.
    pub(crate) forward: u64,
    /// Peak of the backward pass.
    pub(crate) backward: u64,
    /// Memory that the forward pass keeps for backward.
    pub(crate) activations: u64,
}

/// Tracks memory through a step. Some owners last from step to step. Activations: memory that a forward pass
/// keeps. Workspace: memory beyond both at the peak.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Account<'a> {
    stats: MemoryStats<'a>,
    state: Owners,
    activations: u64,
    peaks: PhasePeaks,
    phase: Option<Phase>,
    /// Bytes allocated when the step began.
    base: u64,
}

impl<'a> Account<'a> {
    pub(crate) fn new(stats: MemoryStats<'a>) -> Self {
        Self {
            stats,
            state: Owners::default(),
            activations: 0,
            peaks: PhasePeaks::default(),
            phase: None,
            base: 0,
        }
    }

    /// Begins a step with these lasting owners. `ahead` bytes of the allocated memory belong to the step: its
    /// first micro-batch, which was fetched before.
    pub(crate) fn begin(&mut self, state: Owners, ahead: u64) -> Result<(), ShimError> {
        self.stats.reset_peak()?;
        *self = Self {
            state,
            base: self.stats.usage()?.allocated.saturating_sub(ahead),
            ..Self::new(self.stats)
        };
        Ok(())
    }

    /// Begins a phase, and ends the one before.
    pub(crate) fn enter(&mut self, phase: Phase) -> Result<(), ShimError> {
        self.close()?;
        self.phase = Some(phase);
        Ok(())
    }

    /// Called after a forward pass, while its graph exists.
    pub(crate) fn record_activations(&mut self) -> Result<(), ShimError> {
        let kept = self.stats.usage()?.allocated.saturating_sub(self.base);
        self.activations = self.activations.max(kept);
        Ok(())
    }

    /// Returns the memory of a micro-step: one forward and one backward pass after [`Account::begin`].
    pub(crate) fn micro_step(mut self) -> Result<MicroStepMemory, ShimError> {
        self.close()?;
        let beyond = |peak: u64| peak.saturating_sub(self.base);
        Ok(MicroStepMemory {
            forward: beyond(self.peaks.forward),
            backward: beyond(self.peaks.backward),
            activations: self.activations,
        })
    }

    /// Counts a replayed micro-step as when it was captured: its memory belongs to a graph, not to tensors.
    pub(crate) fn replayed(&mut self, taken: MicroStepMemory) -> Result<(), ShimError> {
        let now = self.stats.usage()?.allocated;
        let peaks = &mut self.peaks;
        peaks.forward = peaks.forward.max(now + taken.forward);
        peaks.backward = peaks.backward.max(now + taken.backward);
        let kept = (now + taken.activations).saturating_sub(self.base);
        self.activations = self.activations.max(kept);
        Ok(())
    }

    /// Called when the step has ended or was given up.
    pub(crate) fn finish(&mut self) -> Result<StepMemory, ShimError> {
        self.close()?;
        let phases = self.peaks;
        let peak = phases.forward.max(phases.backward).max(phases.reduce).max(phases.update);
        let mut owners = self.state;
        let rest = peak.saturating_sub(owners.state());
        owners.activations = self.activations.min(rest);
        owners.workspace = rest - owners.activations;
        let mut report = to_report(self.stats.usage()?);
        report.peak = peak;
        Ok(StepMemory { report, owners, phases })
    }

    fn close(&mut self) -> Result<(), ShimError> {
        let Some(phase) = self.phase.take() else { return Ok(()) };
        let peak = self.stats.usage()?.peak;
        let of_phase = match phase {
            Phase::Outputs | Phase::Forward => &mut self.peaks.forward,
            Phase::Backward => &mut self.peaks.backward,
            Phase::Reduce | Phase::AllocateUpdate => &mut self.peaks.reduce,
            Phase::Update | Phase::Evaluate => &mut self.peaks.update,
        };
        *of_phase = (*of_phase).max(peak);
        self.stats.reset_peak()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_replayed_micro_step_counts_as_when_captured() {
        let region = Symbolic::enter(None).unwrap();
        let stats = MemoryStats::Symbolic(&region);
        let taken = MicroStepMemory { forward: 300, backward: 500, activations: 200 };
        let mut account = Account::new(stats);
        account.begin(Owners::default(), 0).unwrap();
        account.enter(Phase::Forward).unwrap();
        account.replayed(taken).unwrap();
        account.replayed(taken).unwrap();
        account.enter(Phase::Update).unwrap();
        let step = account.finish().unwrap();
        assert_eq!(step.report.peak, 500);
        assert_eq!((step.phases.forward, step.phases.backward), (300, 500));
        assert_eq!((step.owners.activations, step.owners.workspace), (200, 300));
    }

    #[test]
    fn memory_of_a_micro_step_is_counted_from_its_start() {
        let region = Symbolic::enter(None).unwrap();
        let stats = MemoryStats::Symbolic(&region);
        let bytes = |count: i64| tch::Tensor::empty([count], (tch::Kind::Uint8, Device::Cpu));
        let _before = bytes(4096);
        let mut account = Account::new(stats);
        account.begin(Owners::default(), 0).unwrap();
        account.enter(Phase::Forward).unwrap();
        let kept = bytes(1000);
        drop(bytes(2000));
        account.record_activations().unwrap();
        account.enter(Phase::Backward).unwrap();
        drop((bytes(5000), kept));
        let taken = account.micro_step().unwrap();
        let expected = MicroStepMemory { forward: 3000, backward: 6000, activations: 1000 };
        assert_eq!(taken, expected);
    }
}
