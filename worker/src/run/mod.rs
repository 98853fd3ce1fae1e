//! A run: its steps, and its followers.

mod best;
mod course;
pub(crate) mod error;
pub(crate) mod eval_sizes;
pub(crate) mod evaluate;
mod follower;
pub(crate) mod followers;
mod patience;
mod phases;
mod retry;
pub(crate) mod share_rows;
mod share_values;
pub(crate) mod shown;

use std::time::{Instant, SystemTime};

use dtrain_common::result::RunResult;
use dtrain_recipe::Recipe;
use tch::{Device, Kind, Tensor};

pub(crate) use self::best::{BestKeeper, figures_of};
pub(crate) use self::course::{Course, LaidOutPhase};
use self::error::Result;
pub(crate) use self::error::TrainError;
pub(crate) use self::follower::{Flow, Follower, Followers};
pub(crate) use self::patience::Patience;
pub(crate) use self::retry::RetryState;
use crate::collectives::{Collective, Ranks};
use crate::memory::Phase;
use crate::metrics::{Line, StepRecord};
use crate::step::exchange::Exchange;
use crate::step::recover::retry_on_oom;
use crate::step::{Attempt, LoaderFeed, Replica, Stepper, Taken};

pub(crate) struct Training<'a> {
    pub(crate) recipe: &'a Recipe,
    pub(crate) course: Course,
    pub(crate) replica: Replica,
    pub(crate) exchange: Exchange,
    pub(crate) stepper: Stepper<'static, LoaderFeed>,
    pub(crate) retry: RetryState,
    pub(crate) began: Instant,
}

/// Trains to the end of the run or the first request to stop. `launched` is the time of the launch command,
/// if known. Returns whether the run is complete, and its result with the peak memory of this rank.
pub(crate) fn run(
    mut training: Training<'_>,
    followers: &mut Followers<'_>,
    launched: Option<SystemTime>,
) -> Result<(bool, RunResult)> {
    training.begin(followers)?;
    let first = training.course.done;
    let startup = launched.and_then(|launched| launched.elapsed().ok());
    let mut trained_s = 0.0;
    let mut flow = followers.begin(&mut training)?;
    while flow == Flow::Continue && training.course.done < training.course.plan.total_steps {
        phases::enter(&mut training, followers)?;
        retry::grow_micro_batch(&mut training, followers)?;
        let (record, taken) = training.step(followers)?;
        training.follow_backward()?;
        trained_s += record.step_ms / 1e3;
        followers.record(&Line::Step(&record))?;
        flow = followers.after_step(&mut training, &taken)?;
    }
    followers.finish(&mut training)?;

    let Course { plan, done, .. } = &training.course;
    let samples = plan.samples_after(*done);
    let own = samples - plan.samples_after(first);
    let mut result = RunResult {
        startup_ms: startup.map(|elapsed| elapsed.as_secs_f64() * 1e3),
        steps: Some(*done),
        epochs: Some(plan.epochs_after(*done)),
        samples: Some(samples),
        samples_per_s: (trained_s > 0.0).then(|| own as f64 / trained_s),
        oom_replays: Some(training.retry.count),
        graph_replays: training.stepper.executor.replays(),
        micro_batch: Some(plan.stage(done.saturating_sub(1)).partition.micro_batch()),
        ..RunResult::default()
    };
    followers.conclude(&mut result);
    tracing::debug!("trained for {:.3} s", training.began.elapsed().as_secs_f64());
    let is_finished = match flow {
        Flow::Finished => true,
        Flow::Interrupted => false,
        Flow::Continue | Flow::Stopped => *done >= plan.total_steps,
    };
    result.stopped_early = is_finished && *done < plan.total_steps;
    Ok((is_finished, result))
}

impl Training<'_> {
    /// Starts the stage in which the run begins.
    fn begin(&mut self, followers: &mut Followers<'_>) -> Result<()> {
        self.replica.model.recompute.set(self.course.stage().recompute);
        phases::begin_stage(self, self.course.current.id)?;
        if let Some(reason) = self.stepper.executor.take_disabled_reason() {
            followers.note(format!("warning: model.compile = \"graph\" has no effect: {reason}"));
        }
        self.began = Instant::now();
        Ok(())
    }

    /// Takes the next step, with retries in smaller micro-batches if memory runs out; returns its record.
    fn step(&mut self, followers: &mut Followers<'_>) -> Result<(StepRecord, Box<Taken>)> {
        loop {
            let plan = self.course.plan_step(self.recipe, &self.replica, self.exchange.rank());
            let (replica, exchange) = (&mut self.replica, &mut self.exchange);
            let attempt = self.stepper.step(replica, exchange, &plan, followers)?;
            if let Some(reason) = self.stepper.executor.take_disabled_reason() {
                followers.note(format!("warning: training continues without CUDA graphs: {reason}"));
            }
            match attempt {
                Attempt::Taken(taken) => {
                    self.course.done += 1;
                    let fields = self.replica.model.task.facts().train.fields();
                    let record = self.course.record(&plan, &taken, self.began.elapsed(), fields);
                    return Ok((record, taken));
                }
                Attempt::Dropped(shortages) => retry::retry_step(self, followers, &shortages)?,
            }
        }
    }

    /// After the first step of a phase, lays the parameters out in the order in which rank 0's gradients
    /// became ready, so that buckets complete as early as possible.
    fn follow_backward(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.course.current.is_laid_out, true) {
            return Ok(());
        }
        let order = self.exchange.gradient_order()?;
        if self.can_rearrange()? {
            self.stepper.executor.drop_graphs();
            let table = &mut self.replica.model.table;
            if table.rearrange(&order, self.exchange.ranks())? {
                self.exchange.adapt_to(table)?;
            }
            self.replica.set_shadow()?;
        }
        self.stepper.executor.set_addresses_final();
        Ok(())
    }

    /// Returns whether every rank has scratch memory for a new order: a copy of the parameters or one column
    /// and, if sharded, the whole column. Otherwise the run keeps the old order, which is only slower.
    fn can_rearrange(&self) -> Result<bool> {
        let table = &self.replica.model.table;
        let times = if table.shards() > 1 { 2 } else { 1 };
        let bytes = table.bytes(|_| true) as i64 * times;
        let options = (Kind::Uint8, self.device());
        let scratch = retry_on_oom(self.device(), || Tensor::f_empty([bytes], options));
        let is_short = self.stepper.limits.find_shortage(scratch, Phase::AllocateUpdate)?.is_err();
        Ok(!self.exchange.any_rank(is_short)?)
    }

    pub(crate) fn device(&self) -> Device {
        self.stepper.limits.device
    }

    /// Loads the micro-batches of the plan from the next step on.
    fn restart_loader(&mut self) -> Result<()> {
        let Course { plan, done, .. } = &self.course;
        let facts = self.replica.model.task.facts();
        let work = plan.micro_batches(self.exchange.rank(), *done, &facts.sampling());
        Ok(self.stepper.feed.restart(facts.train.clone(), self.retry.loader, work)?)
    }
}

/// Returns the peak memory in bytes by rank.
pub(crate) fn peak_memory(ranks: &Ranks, own: u64) -> Result<Vec<u64>> {
    let all = Tensor::f_zeros([ranks.size() as i64], (Kind::Int64, Device::Cpu))?;
    let own = Tensor::f_from_slice(&[own as i64])?;
    ranks.start(Collective::AllGather { output: &all, input: &own })?.wait()?;
    let bytes = Vec::<i64>::try_from(&all)?;
    Ok(bytes.into_iter().map(|bytes| bytes as u64).collect())
}
