//! Forward and backward, and their executors.

use tch::{TchError, Tensor};

use super::Replica;
use super::exchange::Exchange;
use super::phases::Phases;
use super::status::Tally;
use crate::memory::Phase;
use crate::step::error::Result;
use crate::tasks::{Batch, Loss, Mode, Task, TaskError};

#[derive(Debug, Clone, Copy)]
pub(crate) struct MicroStep<'a> {
    pub(crate) batch: &'a Batch,
    /// The factor of the loss before backward.
    pub(crate) factor: f64,
    /// Whether it is the first of its step: its gradients are copied into the table, later ones added.
    pub(crate) is_first: bool,
    /// Whether it is the last of its step: buckets start as they become complete.
    pub(crate) is_last: bool,
}

impl MicroStep<'_> {
    pub(super) fn hooks(&self) -> Hooks {
        if self.is_last { Hooks::Armed } else { Hooks::Idle }
    }
}

/// What [`Executor::decide`] computes besides its tensors: two decisions with equal keys do the same.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DecisionKey {
    pub(crate) expected_weight: f64,
    pub(crate) clip: Option<f64>,
    pub(crate) has_loss_scale: bool,
}

/// Executes the passes of a micro-step, and the decision's arithmetic. Rehearsals on symbolic tensors use [`Eager`] too.
pub(crate) trait Executor {
    /// Adds a micro-step's gradients to the table, and its figures to the tally.
    fn run(&mut self, passes: &mut Passes<'_, '_>, micro: &MicroStep<'_>) -> Result<()>;

    /// Returns the results of `work`, the decision's arithmetic on a device. It reads gradients and figures at the
    /// addresses that they have in every step of the phase.
    fn decide(&mut self, _key: DecisionKey, work: &dyn Fn() -> Result<[Tensor; 3]>) -> Result<[Tensor; 3]> {
        work()
    }

    /// Declares all addresses final for the rest of a phase.
    fn set_addresses_final(&mut self) {}

    /// Drops graphs, because a tensor of the passes moves, or memory is needed.
    fn drop_graphs(&mut self) {}

    /// Starts another phase of the run, with other kernels and other addresses.
    fn begin_phase(&mut self) {}

    /// Returns once why micro-steps are not executed as configured.
    fn take_disabled_reason(&mut self) -> Option<String> {
        None
    }

    /// Returns the number of replayed micro-steps; None if graphs are off in the recipe.
    fn replays(&self) -> Option<u64> {
        None
    }
}

#[derive(Debug)]
pub(crate) struct Eager;

impl Executor for Eager {
    fn run(&mut self, passes: &mut Passes<'_, '_>, micro: &MicroStep<'_>) -> Result<()> {
        let scaled = |sum: &Tensor| sum.f_mul_scalar(micro.factor);
        let loss = passes.forward_backward(micro.batch, scaled, micro.hooks())?;
        Ok(passes.tally.add(&loss)?)
    }
}

/// Whether the hooks of gradients send buckets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hooks {
    Idle,
    /// In the last micro-step of a step.
    Armed,
}

/// Inputs of forward and backward.
pub(crate) struct Passes<'a, 'b> {
    pub(crate) replica: &'a Replica,
    pub(crate) exchange: &'a Exchange,
    pub(crate) phases: &'a mut Phases<'b>,
    pub(crate) tally: &'a mut Tally,
}

impl Passes<'_, '_> {
    /// Computes the loss of a micro-batch, and backward from `scaled` of it.
    pub(crate) fn forward_backward(
        &mut self,
        batch: &Batch,
        scaled: impl FnOnce(&Tensor) -> Result<Tensor, TchError>,
        hooks: Hooks,
    ) -> Result<Loss> {
        let loss = self.forward(|task| task.loss(batch, Mode::Train))?;
        self.backward(|| scaled(&loss.sum), hooks)?;
        Ok(loss)
    }

    /// Runs a forward pass of the task.
    pub(super) fn forward<T>(&self, compute: impl FnOnce(&dyn Task) -> Result<T, TaskError>) -> Result<T> {
        let Replica { model, precision } = self.replica;
        model.registry.groups().begin_forward();
        let computed = precision.run(|| compute(model.task.as_ref()))??;
        model.registry.groups().end_forward()?;
        Ok(computed)
    }

    /// Runs the backward pass of a loss whose graph exists.
    pub(super) fn backward(
        &mut self,
        scaled: impl FnOnce() -> Result<Tensor, TchError>,
        hooks: Hooks,
    ) -> Result<()> {
        self.phases.account.record_activations()?;
        self.phases.enter(Phase::Backward)?;
        if hooks == Hooks::Armed {
            self.exchange.arm();
        }
        Ok(self.replica.model.recompute.backward(&scaled()?)?)
    }
}
