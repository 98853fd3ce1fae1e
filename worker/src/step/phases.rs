//! The phases of a step: counts their memory, and lets faults of tests happen.

use dtrain_common::trace::{self, Kind, Span};
use dtrain_torch_shim::ShimError;

use crate::faults::Fault;
use crate::memory::{Account, MemoryStats, Owners, Phase};

/// Follows a step: call [`Phases::begin`], then [`Phases::enter`] or [`Phases::during`] for each phase.
#[derive(Debug)]
pub(crate) struct Phases<'b> {
    pub(crate) account: Account<'b>,
    pub(crate) fault: Fault,
    pub(super) current: Phase,
    /// Counted from 1, like the micro-step.
    step: u64,
    micro_step: usize,
    /// The current phase on a timeline.
    span: Span,
}

impl<'b> Phases<'b> {
    pub(crate) fn new(stats: MemoryStats<'b>, fault: Fault) -> Self {
        Self {
            account: Account::new(stats),
            fault,
            current: Phase::Forward,
            step: 0,
            micro_step: 0,
            span: Span::default(),
        }
    }

    /// Begins a step. `state` is memory that outlives it; `ahead` bytes are already allocated for it.
    pub(crate) fn begin(&mut self, step: u64, state: Owners, ahead: u64) -> Result<(), ShimError> {
        (self.current, self.step, self.micro_step) = (Phase::Forward, step, 0);
        self.show(Kind::Prepare, "begin");
        self.account.begin(state, ahead)
    }

    /// Begins a phase and ends the previous one; forward also begins a micro-step.
    pub(crate) fn enter(&mut self, phase: Phase) -> Result<(), ShimError> {
        self.fault.end();
        self.micro_step += usize::from(phase == Phase::Forward);
        self.account.enter(phase)?;
        self.current = phase;
        self.show(kind_of(phase), phase.name());
        let micro_step = match phase {
            Phase::Forward | Phase::Backward => self.micro_step,
            _ => 1,
        };
        self.fault.begin(phase, self.step, micro_step);
        Ok(())
    }

    pub(crate) fn during<T>(&mut self, phase: Phase, body: impl FnOnce() -> T) -> Result<T, ShimError> {
        self.enter(phase)?;
        let outcome = body();
        self.fault.end();
        self.span.end();
        Ok(outcome)
    }

    /// Ends the span of the last phase, and begins that of the next.
    fn show(&mut self, kind: Kind, name: &'static str) {
        self.span.end();
        self.span = trace::span(kind, name);
    }

    /// Returns separate phases for a capture, which computes nothing.
    pub(crate) fn capture(&self) -> Result<Self, ShimError> {
        let mut captured =
            Self { account: self.account, fault: Fault::default(), span: Span::default(), ..*self };
        captured.account.begin(Owners::default(), 0)?;
        captured.account.enter(Phase::Forward)?;
        Ok(captured)
    }
}

fn kind_of(phase: Phase) -> Kind {
    match phase {
        Phase::Outputs | Phase::Forward => Kind::Forward,
        Phase::Backward => Kind::Backward,
        Phase::Reduce => Kind::Communication,
        Phase::AllocateUpdate => Kind::Prepare,
        Phase::Update => Kind::Update,
        Phase::Evaluate => Kind::Evaluation,
    }
}
