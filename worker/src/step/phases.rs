//! The phases of a step, as each begins: its memory is counted, and where a test asks for it refused.

use crate::memory_report::Owners;
use dtrain_torch_shim::ShimError;

use super::fault::Fault;
use crate::memory::{Account, Books, Phase};

/// Follows a step through its phases: [`Phases::begin`], and for each [`Phases::enter`] or [`Phases::during`].
#[derive(Debug)]
pub(crate) struct Phases<'b> {
    pub(crate) account: Account<'b>,
    pub(crate) fault: Fault,
    now: Phase,
    /// Counted from 1, as is the micro-step.
    step: u64,
    micro_step: usize,
}

impl<'b> Phases<'b> {
    pub(crate) fn new(books: Books<'b>, fault: Fault) -> Self {
        Self { account: Account::new(books), fault, now: Phase::Forward, step: 0, micro_step: 0 }
    }

    /// A step begins: `state` is what lasts of its memory, and `ahead` bytes of what is allocated are its own.
    pub(crate) fn begin(&mut self, step: u64, state: Owners, ahead: u64) -> Result<(), ShimError> {
        (self.now, self.step, self.micro_step) = (Phase::Forward, step, 0);
        self.account.begin(state, ahead)
    }

    pub(crate) fn next_micro_step(&mut self) -> Result<(), ShimError> {
        self.micro_step += 1;
        self.enter(Phase::Forward)
    }

    /// A phase begins, and the one before has ended.
    pub(crate) fn enter(&mut self, phase: Phase) -> Result<(), ShimError> {
        self.leave();
        self.account.enter(phase)?;
        self.now = phase;
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
        self.leave();
        Ok(outcome)
    }

    /// What was not refused in the phase is granted from now on.
    pub(crate) fn leave(&mut self) {
        self.fault.end();
    }

    pub(crate) fn now(&self) -> Phase {
        self.now
    }

    /// Others, for passes that are captured and compute nothing yet.
    pub(crate) fn capture(&self) -> Result<Self, ShimError> {
        let mut captured = Self { account: self.account, fault: Fault::default(), ..*self };
        captured.account.begin(Owners::default(), 0)?;
        captured.account.enter(Phase::Forward)?;
        Ok(captured)
    }
}
