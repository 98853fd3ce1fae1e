//! A step that ran out of memory on some rank is dropped by all of them and taken again in smaller micro-batches.
//!
//! Which rank it was, and where, travels in the status vector; what follows from it is the same on every rank, so nothing
//! more is said between them.

mod exhausted;
mod panics;
mod patience;
mod shortage;

use std::sync::Arc;

use crate::memory_report::Owners;
use dtrain_common::recipe::Budget;
use dtrain_torch_shim::memory;
use tch::Device;

pub use self::exhausted::Exhausted;
pub(crate) use self::panics::shielded;
pub(crate) use self::patience::patiently;
pub(super) use self::shortage::place;
pub use self::shortage::{Phase, Shortage};
use super::batch_sync::RankSync;
use super::error::TrainError;
use super::evaluate::exhausted;
use super::fault::Fault;
use super::plan::RunPlan;
use super::trainer::Trainer;
use crate::OutOfMemory;
use crate::memory::Books;
use crate::metrics::{MicroBatches, OomRecord};
use crate::out_of_memory::bytes_refused;

/// Makes the model take less memory in another way than by smaller micro-batches, the same on every rank, and says whether there
/// was one left: asked when the micro-batch is the smallest that the model takes.
pub type SaveMore = Box<dyn FnMut() -> bool>;

/// What a rank knows of the memory that it is refused.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    device: Device,
    /// Bytes that tensors may take, where that is known.
    limit: Option<u64>,
}

/// What a trainer needs to take a step again.
pub(super) struct Replay {
    pub(super) limits: Limits,
    /// The largest micro-batch of every stage, with which the run began.
    first: Vec<usize>,
    /// The largest batch of an evaluation that has not run out of memory, where one has.
    pub(super) evaluation: Option<usize>,
    save_more: SaveMore,
    /// Whether it has.
    saves_more: bool,
    /// BatchNorm's sums over the ranks, where there are any.
    pub(super) sync: Option<Arc<RankSync>>,
    /// Steps that were taken again.
    pub(super) count: u64,
    pub(super) fault: Fault,
}

impl Replay {
    /// For a run that begins with `plan`.
    pub(super) fn new(
        device: Device,
        budget: Budget,
        plan: &RunPlan,
        sync: Option<Arc<RankSync>>,
        save_more: SaveMore,
        fault: Fault,
    ) -> Self {
        Self {
            limits: Limits::new(device, budget),
            first: plan
                .stages()
                .iter()
                .map(|stage| stage.partition.micro_batch())
                .collect(),
            evaluation: None,
            save_more,
            saves_more: false,
            sync,
            count: 0,
            fault,
        }
    }

    /// [`Limits::shortage`].
    pub(super) fn shortage(&self, phase: Phase, refused: Option<u64>) -> Shortage {
        self.limits.shortage(phase, refused)
    }

    /// [`Limits::survive`].
    pub(super) fn survive<T, E>(&self, outcome: Result<T, E>, phase: Phase) -> Result<Result<T, Shortage>, E>
    where
        E: OutOfMemory,
    {
        self.limits.survive(outcome, phase)
    }

    /// [`Limits::free`].
    pub(super) fn free(&self) {
        self.limits.free();
    }
}

impl Limits {
    /// For tensors on `device`.
    pub(crate) fn new(device: Device, budget: Budget) -> Self {
        let limit = match (device, budget) {
            (_, Budget::Size(size)) => Some(size.0),
            (Device::Cuda(_), Budget::Auto) => memory::device_memory(device).ok().map(|(_, total)| total),
            _ => None,
        };
        Self { device, limit }
    }

    /// What this rank says of a refusal that it has just met, of so many bytes where that is known.
    pub(super) fn shortage(&self, phase: Phase, refused: Option<u64>) -> Shortage {
        Shortage {
            phase,
            at_us: shortage::now_us(),
            allocated: memory::usage(self.device).map_or(0, |usage| usage.peak),
            limit: self.limit,
            refused,
        }
    }

    /// A refusal of memory in `phase` is a shortage, which the ranks deal with together; another error ends this rank.
    pub(super) fn survive<T, E>(&self, outcome: Result<T, E>, phase: Phase) -> Result<Result<T, Shortage>, E>
    where
        E: OutOfMemory,
    {
        match outcome {
            Ok(value) => Ok(Ok(value)),
            Err(error) if error.is_out_of_memory() => {
                tracing::debug!("out of memory in {}", phase.name());
                Ok(Err(self.shortage(phase, bytes_refused(&error.to_string()))))
            }
            Err(error) => Err(error),
        }
    }

    /// What no tensor uses goes back, and the peak is that of the next try.
    pub(super) fn free(&self) {
        // Neither failure would change what follows.
        let _ = memory::empty_cache(self.device);
        let _ = memory::reset_peak(self.device);
    }
}

impl Trainer<'_> {
    /// Leaves nothing of the step that the ranks have just dropped, and makes ready to take it again in smaller micro-batches,
    /// or with more computed twice where the model takes no smaller ones.
    ///
    /// # Errors
    /// `OutOfMemory`, on all ranks, where nothing is left that would save memory.
    pub(super) fn start_again(&mut self, shortages: &[Option<Shortage>]) -> Result<(), TrainError> {
        // The next micro-batch is another one now.
        self.feed.forget();
        self.graphs.forget();
        self.model.buffers.rewind()?;
        self.reducer.begin()?;
        let stage = self.plan.stage_number(self.done);
        let from = self.plan.stages()[stage].partition;
        if let Some(smaller) = self.plan.in_smaller_micro_batches(stage) {
            self.plan = smaller;
        } else if (self.replay.save_more)() {
            self.replay.saves_more = true;
            if let Some(sync) = &self.replay.sync {
                sync.forget();
            }
        } else {
            return Err(self.exhausted(shortages, from.micro_batch(), self.done + 1));
        }
        self.replay.free();
        self.restart_loader()?;
        self.replay.count += 1;
        self.report_replay(shortages, from.micro_batch(), from.grad_accum_steps())
    }

    /// Where memory allows no more, on all ranks.
    pub(super) fn exhausted(
        &mut self,
        shortages: &[Option<Shortage>],
        batch: usize,
        step: u64,
    ) -> TrainError {
        exhausted(shortages, batch, step, self.owners(), self.device)
    }

    /// At the beginning of an epoch, where the recipe asks for it: a micro-batch that memory has made smaller is doubled, up to
    /// what the run began with.
    pub(super) fn grow(&mut self) -> Result<(), TrainError> {
        let stage = self.plan.stage_number(self.done);
        let from = self.plan.stages()[stage].partition;
        let begins = self.plan.position(self.done).step_in_epoch == 0;
        let first = self.replay.first[stage];
        if !self.recipe.memory.grow || !begins || from.micro_batch() >= first {
            return Ok(());
        }
        let most = first.min(from.micro_batch() * 2);
        let Some(larger) = self
            .plan
            .in_micro_batches(stage, most)
            .filter(|plan| plan.stages()[stage].partition.micro_batch() > from.micro_batch())
        else {
            return Ok(());
        };
        self.plan = larger;
        self.graphs.forget();
        self.restart_loader()?;
        let to = self.plan.stages()[stage].partition;
        self.progress.note(format!(
            "the micro-batch grows from {} to {} (accumulation {} to {}), as memory.grow asks for",
            from.micro_batch(),
            to.micro_batch(),
            from.grad_accum_steps(),
            to.grad_accum_steps()
        ));
        Ok(())
    }

    fn report_replay(
        &mut self,
        shortages: &[Option<Shortage>],
        micro_batch: usize,
        accumulation: usize,
    ) -> Result<(), TrainError> {
        let Some((place, ranks, first)) = place(shortages) else {
            return Ok(());
        };
        let step = self.done + 1;
        let to = self.plan.stage(self.done).partition;
        let consequence = if to.micro_batch() < micro_batch {
            format!(
                "the micro-batch goes from {micro_batch} to {} (accumulation {accumulation} to {})",
                to.micro_batch(),
                to.grad_accum_steps()
            )
        } else {
            "more of the model is computed again in backward".to_owned()
        };
        self.progress.note(format!(
            "out of memory {place} at step {step}: {}; {consequence}, the step is taken again with the same samples",
            first.bytes()
        ));
        let record = OomRecord {
            step,
            ranks,
            phase: first.phase.name(),
            micro_batch: MicroBatches {
                from: micro_batch,
                to: to.micro_batch(),
            },
            grad_accum_steps: to.grad_accum_steps(),
            recompute: self.replay.saves_more,
            agree_ms: first.elapsed_ms(),
        };
        match &mut self.metrics {
            Some(metrics) => metrics.oom(&record).map_err(TrainError::Metrics),
            None => Ok(()),
        }
    }

    /// Where the bytes of this rank were when the step that failed took the most.
    fn owners(&mut self) -> Owners {
        let memory = self.account.finish(Books::Device(self.device));
        memory.map_or_else(|_| self.model.owners(), |memory| memory.owners)
    }
}
