//! Forward and backward, and who executes them.

use tch::{TchError, Tensor};

use super::Replica;
use super::exchange::Exchange;
use super::phases::Phases;
use super::status::Tally;
use crate::memory::Phase;
use crate::tasks::{Batch, Loss, Mode};
use crate::train_error::Result;

#[derive(Debug, Clone, Copy)]
pub(crate) struct MicroStep<'a> {
    pub(crate) batch: &'a Batch,
    /// What the loss is multiplied by before backward.
    pub(crate) factor: f64,
    /// Whether it is the first of its step: its gradients are moved into their places, those of others are added.
    pub(crate) is_first: bool,
    /// Whether it is the last of its step: buckets leave as they become complete.
    pub(crate) is_last: bool,
}

/// Takes the passes of a micro-step. On symbolic tensors it is [`Eager`] too: a rehearsal is the same work on tensors without values.
pub(crate) trait Executor {
    /// Adds a micro-step's gradients to those in the table, and its figures to the tally.
    fn take(&mut self, passes: &mut Passes<'_, '_>, micro: &MicroStep<'_>) -> Result<()>;

    /// Everything lies where it will stay for a while.
    fn settle(&mut self) {}

    /// Something that the passes touch moves, or memory is wanted.
    fn forget(&mut self) {}

    /// Another phase of the run begins: other kernels come, and everything lies elsewhere.
    fn restart(&mut self) {}

    /// Why micro-steps are not executed as they were asked to be; once.
    fn take_reason(&mut self) -> Option<String> {
        None
    }

    /// How many micro-steps were replayed, where that was asked for.
    fn replays(&self) -> Option<u64> {
        None
    }
}

#[derive(Debug)]
pub(crate) struct Eager;

impl Executor for Eager {
    fn take(&mut self, passes: &mut Passes<'_, '_>, micro: &MicroStep<'_>) -> Result<()> {
        let scaled = |sum: &Tensor| sum.f_mul_scalar(micro.factor);
        let loss = passes.forward_backward(micro.batch, scaled, micro.is_last)?;
        Ok(passes.tally.add(&loss)?)
    }
}

/// What forward and backward work with.
pub(crate) struct Passes<'a, 'b> {
    pub(crate) replica: &'a Replica,
    pub(crate) exchange: &'a Exchange,
    pub(crate) phases: &'a mut Phases<'b>,
    pub(crate) tally: &'a mut Tally,
}

impl Passes<'_, '_> {
    /// The loss of a micro-batch, and backward from what `scaled` makes of it. With `arm` the backward pass is the step's last.
    pub(crate) fn forward_backward(
        &mut self,
        batch: &Batch,
        scaled: impl FnOnce(&Tensor) -> Result<Tensor, TchError>,
        arm: bool,
    ) -> Result<Loss> {
        let Replica { model, precision } = self.replica;
        let loss = precision.run(|| model.task.loss(batch, Mode::Train))??;
        self.phases.account.forward_done()?;
        self.phases.enter(Phase::Backward)?;
        if arm {
            self.exchange.arm();
        }
        model.recompute.backward(&scaled(&loss.sum)?)?;
        Ok(loss)
    }
}
