//! The memory of a step by phase and by owner, the same on the CPU and on a GPU.

use crate::memory_report::{MemoryReport, Owners, PhasePeaks};
use dtrain_torch_shim::ShimError;
use dtrain_torch_shim::memory::{self, Usage};
use dtrain_torch_shim::symbolic::Symbolic;
use serde::Serialize;
use tch::Device;

/// Whose memory is read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Books<'a> {
    /// Tensors on this device.
    Device(Device),
    /// Symbolic tensors.
    Symbolic(&'a Symbolic),
}

impl Books<'_> {
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

/// The memory of tensors on `device`, as people are told.
pub(crate) fn report(device: Device) -> Result<MemoryReport, ShimError> {
    memory::usage(device).map(of)
}

/// What of a GPU neither this process's tensors nor its allocator's cache have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elsewhere {
    pub bytes: u64,
    pub total: u64,
}

/// Who else has a part of `device`; none on a CPU, and where the device does not tell.
pub(crate) fn elsewhere(device: Device) -> Option<Elsewhere> {
    if !device.is_cuda() {
        return None;
    }
    let (free, total) = memory::device_memory(device).ok()?;
    let own = memory::usage(device).ok()?.reserved;
    Some(Elsewhere { bytes: total.saturating_sub(free).saturating_sub(own), total })
}

fn of(usage: Usage) -> MemoryReport {
    MemoryReport { allocated: usage.allocated, reserved: usage.reserved, peak: usage.peak }
}

/// The parts of a step that may run out of memory, and the evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Placing a micro-batch, and the model's forward pass.
    Forward,
    /// Backward, with the reductions that start in it and what is done for every micro-batch after it.
    Backward,
    /// Starting the rest of the reductions.
    Reduce,
    /// Taking what the update will need; its memory counts as that of the reduction.
    Prepare,
    /// Norm, clipping, optimizer, running statistics and moving average.
    Update,
    /// The test set; its memory counts in no step.
    Evaluate,
}

impl Phase {
    pub(crate) const ALL: [Self; 6] =
        [Self::Forward, Self::Backward, Self::Reduce, Self::Prepare, Self::Update, Self::Evaluate];

    /// Its name in messages, metrics and DTRAIN_FAULT.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Reduce => "reduce",
            Self::Prepare => "prepare",
            Self::Update => "update",
            Self::Evaluate => "evaluate",
        }
    }
}

/// The memory of one step, in bytes, for a line of metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct StepMemory {
    /// At the end of the step, and the most in it.
    #[serde(flatten)]
    pub(crate) report: MemoryReport,
    pub(crate) owners: Owners,
    pub(crate) phases: PhasePeaks,
}

/// What a micro-step took, in bytes beyond what was allocated when it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MicroStepMemory {
    /// The most in its forward pass.
    pub(crate) forward: u64,
    /// The most in its backward pass.
    pub(crate) backward: u64,
    /// What the forward pass left for the other.
    pub(crate) activations: u64,
}

/// Follows the memory through a step. Some owners last from step to step; what a forward pass leaves behind belongs
/// to the activations; what there was beyond both at the highest moment is workspace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Account<'a> {
    books: Books<'a>,
    state: Owners,
    activations: u64,
    peaks: PhasePeaks,
    phase: Option<Phase>,
    /// What was allocated when the step began.
    base: u64,
}

impl<'a> Account<'a> {
    pub(crate) fn new(books: Books<'a>) -> Self {
        Self {
            books,
            state: Owners::default(),
            activations: 0,
            peaks: PhasePeaks::default(),
            phase: None,
            base: 0,
        }
    }

    /// A step begins, with these owners that last. Of what is allocated already `ahead` bytes are its own: the micro-batch that was
    /// fetched before it began.
    pub(crate) fn begin(&mut self, state: Owners, ahead: u64) -> Result<(), ShimError> {
        self.books.reset_peak()?;
        *self = Self {
            state,
            base: self.books.usage()?.allocated.saturating_sub(ahead),
            ..Self::new(self.books)
        };
        Ok(())
    }

    /// A phase begins; the one before has ended.
    pub(crate) fn enter(&mut self, phase: Phase) -> Result<(), ShimError> {
        self.close()?;
        self.phase = Some(phase);
        Ok(())
    }

    /// A forward pass has ended; its graph is there.
    pub(crate) fn forward_done(&mut self) -> Result<(), ShimError> {
        let kept = self.books.usage()?.allocated.saturating_sub(self.base);
        self.activations = self.activations.max(kept);
        Ok(())
    }

    /// What a micro-step took: behind [`Account::begin`], one pass forward and one backward.
    pub(crate) fn micro_step(mut self) -> Result<MicroStepMemory, ShimError> {
        self.close()?;
        let beyond = |peak: u64| peak.saturating_sub(self.base);
        Ok(MicroStepMemory {
            forward: beyond(self.peaks.forward),
            backward: beyond(self.peaks.backward),
            activations: self.activations,
        })
    }

    /// A micro-step was taken in memory that the device has for it alone, outside the books: it took what it took when it was
    /// captured.
    pub(crate) fn replayed(&mut self, taken: MicroStepMemory) -> Result<(), ShimError> {
        let now = self.books.usage()?.allocated;
        let peaks = &mut self.peaks;
        peaks.forward = peaks.forward.max(now + taken.forward);
        peaks.backward = peaks.backward.max(now + taken.backward);
        let kept = (now + taken.activations).saturating_sub(self.base);
        self.activations = self.activations.max(kept);
        Ok(())
    }

    /// The step has ended, or was given up.
    pub(crate) fn finish(&mut self) -> Result<StepMemory, ShimError> {
        self.close()?;
        let phases = self.peaks;
        let peak = phases.forward.max(phases.backward).max(phases.reduce).max(phases.update);
        let mut owners = self.state;
        let rest = peak.saturating_sub(owners.state());
        owners.activations = self.activations.min(rest);
        owners.workspace = rest - owners.activations;
        let mut report = of(self.books.usage()?);
        report.peak = peak;
        Ok(StepMemory { report, owners, phases })
    }

    fn close(&mut self) -> Result<(), ShimError> {
        let Some(phase) = self.phase.take() else { return Ok(()) };
        let peak = self.books.usage()?.peak;
        let of_phase = match phase {
            Phase::Forward => &mut self.peaks.forward,
            Phase::Backward => &mut self.peaks.backward,
            Phase::Reduce | Phase::Prepare => &mut self.peaks.reduce,
            Phase::Update | Phase::Evaluate => &mut self.peaks.update,
        };
        *of_phase = (*of_phase).max(peak);
        self.books.reset_peak()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_replayed_micro_step_counts_as_it_did_when_it_was_captured() {
        let region = Symbolic::enter(None).unwrap();
        let books = Books::Symbolic(&region);
        let taken = MicroStepMemory { forward: 300, backward: 500, activations: 200 };
        let mut account = Account::new(books);
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
    fn what_a_micro_step_takes_is_counted_from_its_beginning() {
        let region = Symbolic::enter(None).unwrap();
        let books = Books::Symbolic(&region);
        let bytes = |count: i64| tch::Tensor::empty([count], (tch::Kind::Uint8, Device::Cpu));
        let _before = bytes(4096);
        let mut account = Account::new(books);
        account.begin(Owners::default(), 0).unwrap();
        account.enter(Phase::Forward).unwrap();
        let kept = bytes(1000);
        drop(bytes(2000));
        account.forward_done().unwrap();
        account.enter(Phase::Backward).unwrap();
        drop((bytes(5000), kept));
        let taken = account.micro_step().unwrap();
        let expected = MicroStepMemory { forward: 3000, backward: 6000, activations: 1000 };
        assert_eq!(taken, expected);
    }
}
