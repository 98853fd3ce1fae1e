//! One optimizer step: load, forward, backward, reduce, prepare, agree, update. If a rank runs out of memory
//! before the ranks agree, all ranks drop the step, and no lasting state has changed.
//!
//! Used by training, and by rehearsals, which only measure memory: on symbolic tensors, or on real tensors in
//! a separate process.

mod decide;
pub(crate) mod error;
pub(crate) mod exchange;
mod exhausted;
mod feed;
mod graphs;
mod micro;
mod phases;
mod precision;
mod reading;
pub(crate) mod recover;
pub(crate) mod scaler;
mod status;
#[cfg(test)]
mod tests;
mod whole;

use std::ops::Range;
use std::time::{Duration, Instant};

use dtrain_common::trace::{self, Kind as Traced};
use dtrain_recipe::Compile;
use dtrain_torch_shim::rng::{self, BySample};
use rand_chacha::rand_core::Rng;
use tch::{Device, Kind, TchError, Tensor};

use self::decide::{decide_and_update, decides_on_device};
use self::exchange::{Exchange, Pass};
pub(crate) use self::feed::{BlankFeed, DeviceBatch, Feed, LoaderFeed, Warned, to_device};
use self::graphs::Graphs;
pub(crate) use self::graphs::use_capturable_stream;
pub(crate) use self::micro::{Eager, Executor};
use self::micro::{MicroStep, Passes};
pub(crate) use self::phases::Phases;
pub(crate) use self::precision::{Kernels, Precision, PrecisionError};
use self::reading::Stopwatch;
use self::recover::{Limits, Shortage, catch_torch_panic};

use self::error::Result;
pub(crate) use self::error::StepError;
pub(crate) use self::exchange::gather_numbers;
pub(crate) use self::exhausted::Exhausted;
pub use self::scaler::{GradScaler, ScalerOptions};
pub(crate) use self::status::{Status, Tally};
pub(crate) use self::whole::Gathered;
use self::whole::Joined;
use crate::data::SampleHashes;
use crate::data::rng::{Domain, keyed};
use crate::memory::{Phase, StepMemory};
use crate::metrics::SkipCause;
use crate::optim::Model;

pub(crate) struct Replica {
    pub(crate) model: Model,
    pub(crate) precision: Precision,
}

impl Replica {
    pub(crate) fn new(model: Model, precision: Precision) -> Result<Self, TchError> {
        let mut replica = Self { model, precision };
        replica.set_shadow()?;
        Ok(replica)
    }

    /// Gives the layers a shadow of their weights for autocast; none if the task may change weights within a
    /// step. Call it after every change of the precision or the layout.
    pub(crate) fn set_shadow(&mut self) -> Result<(), TchError> {
        let kept = self.model.task.facts().leaves_parameters_unchanged;
        self.model.set_shadow(self.precision.autocast.filter(|_| kept))
    }
}

/// Values of a step that are fixed before it begins.
pub(crate) struct StepPlan {
    /// The number of the step, counted from 1.
    pub(crate) step: u64,
    pub(crate) samples: usize,
    /// The samples of this rank, as positions within the step.
    pub(crate) micro_batches: Vec<Range<usize>>,
    pub(crate) lr: f64,
    pub(crate) seed: u64,
    /// The weight of the step if all samples count. The decision corrects for those that do not.
    pub(crate) expected_weight: f64,
    /// The largest norm of the mean gradient.
    pub(crate) clip: Option<f64>,
    /// The number of samples per group of batch normalisation. Micro-batches consist of whole groups; None if
    /// each micro-batch is one group or a part of one.
    pub(crate) group: Option<usize>,
    /// Whether an evaluation follows: then no micro-batch is fetched ahead, to leave it the memory.
    pub(crate) is_evaluated: bool,
    /// Whether the update runs for any figures, since tensors may have no values. It leaves parameters and
    /// state with wrong values.
    pub(crate) is_rehearsed: bool,
}

/// An observer of a step, which can add to its status.
pub(crate) trait StepObserver {
    /// Adds to the status of this rank.
    fn add_status(&mut self, _status: &mut Status, _rank: usize) -> Result<()> {
        Ok(())
    }

    /// Returns when no reader needs parameters, moments and averages, which change next.
    fn before_update(&mut self) -> Result<()> {
        Ok(())
    }
}

impl StepObserver for () {}

/// The result of trying a step, the same on every rank.
pub(crate) enum Attempt {
    Taken(Box<Taken>),
    /// Memory ran out on the ranks with a shortage here. No rank has changed lasting state.
    Dropped(Vec<Option<Shortage>>),
}

pub(crate) struct Taken {
    pub(crate) status: Status,
    /// The numbers of the samples that some rank could not read.
    pub(crate) unreadable: Vec<u32>,
    /// Hashes of the step's samples on all ranks; of a rank without samples without their order.
    pub(crate) hashes: SampleHashes,
    /// The norm of the mean gradient, before clipping.
    pub(crate) norm: f64,
    pub(crate) skipped: Option<SkipCause>,
    pub(crate) loss_scale: f64,
    pub(crate) took: Duration,
    pub(crate) data_wait: Duration,
    /// Time that the device, or the host without a device, waited for other ranks.
    pub(crate) comm_ms: f64,
    pub(crate) memory: StepMemory,
}

#[derive(Default)]
struct ComputeResult {
    micro_steps: usize,
    /// The samples that could not be read: place in the step, and number.
    unreadable: Vec<u32>,
    data_wait: Duration,
    hashes: SampleHashes,
}

pub(crate) fn new_executor(compile: Compile, device: Device) -> Box<dyn Executor> {
    match compile {
        Compile::Off => Box::new(Eager),
        Compile::Graph => Box::new(Graphs::new(device)),
    }
}

/// The state of a rank for its steps, besides its replica and its exchange.
pub(crate) struct Stepper<'b, F> {
    pub(crate) feed: F,
    pub(crate) executor: Box<dyn Executor>,
    pub(crate) phases: Phases<'b>,
    pub(crate) limits: Limits,
    tally: Tally,
    /// The values of a step's samples for a loss over all, from the first step on.
    gathered: Option<Gathered>,
}

/// Begins the forward pass of the micro-batch at `places`. Its random numbers are drawn while the result lives.
fn begin_micro_step(
    replica: &Replica,
    exchange: &Exchange,
    plan: &StepPlan,
    places: &Range<usize>,
    pass: Pass,
) -> Result<BySample> {
    // Those that cannot be drawn by sample depend on the step and the micro-batch's first sample in it, whatever the
    // ranks: a retry or a resumed run draws the same.
    let mut seeds = keyed(Domain::Torch, plan.seed, plan.step, places.start as u64);
    rng::seed(seeds.next_u64())?;
    let key = keyed(Domain::BySample, plan.seed, plan.step, 0).next_u64();
    exchange.begin_micro_step(pass);
    replica.model.registry.groups().begin_micro_batch(places.len());
    Ok(BySample::enter(key, places)?)
}

/// Memory of an update besides gathering: scalars, and scratch space of a norm.
const UPDATE_BYTES: u64 = 64 << 10;

impl<'b, F: Feed> Stepper<'b, F> {
    pub(crate) fn new(
        feed: F,
        executor: Box<dyn Executor>,
        phases: Phases<'b>,
        limits: Limits,
    ) -> Result<Self> {
        let tally = Tally::of_step(limits.device)?;
        Ok(Self { feed, executor, phases, limits, tally, gathered: None })
    }

    pub(crate) fn step(
        &mut self,
        replica: &mut Replica,
        exchange: &mut Exchange,
        plan: &StepPlan,
        observer: &mut dyn StepObserver,
    ) -> Result<Attempt> {
        let begun = Instant::now();
        let _step = trace::named_span(Traced::Step, || format!("step {}", plan.step));
        let loss_scale = replica.precision.loss_scale();
        self.phases.begin(plan.step, replica.model.owners(), self.feed.prefetched_bytes())?;
        replica.model.registry.groups().set(plan.group);
        let is_single = exchange.ranks().size() == 1 && plan.micro_batches.len() == 1;
        replica.model.buffers.begin_step(exchange.rank(), is_single, plan.samples)?;
        replica.model.table.refresh_shadow()?;
        exchange.begin(replica.model.recompute.count())?;
        self.tally.begin();

        // Load, forward, backward: the table sums the gradient of the loss divided by the expected weight.
        let (computed, mut shortage) = self.compute(replica, exchange, plan)?;

        // Reduce: all buckets start, even after a failed allocation, before the host waits.
        let mut reducing = Stopwatch::start(self.limits.device)?;
        if self.phases.during(Phase::Reduce, || exchange.start_remaining())?? && shortage.is_none() {
            shortage = Some(self.limits.shortage(Phase::Reduce, None));
        }

        // Prepare: reserves memory for the update, since after the decision no rank can go back.
        let reserved = self.reserve_update(replica, &mut shortage)?;

        // Agree: afterwards every rank has the same gradient and the same status.
        let mut status = exchange.empty_status();
        status.bad_samples = computed.unreadable.len() as f64;
        status.samples = computed.hashes.to_figures();
        let figures = self.count_totals(&mut status, &mut shortage)?;
        status.shortages[exchange.rank()] = shortage;
        observer.add_status(&mut status, exchange.rank())?;
        let status = exchange.agree(&replica.model.buffers, status, figures.as_ref())?;
        reducing.stop()?;
        drop(reserved);
        if status.ran_out() {
            return Ok(Attempt::Dropped(status.shortages));
        }

        let unreadable = match status.bad_samples > 0.0 {
            true => gather_numbers(exchange.ranks(), &computed.unreadable)?,
            false => Vec::new(),
        };

        let mut hashes = computed.hashes;
        hashes.take_figures(&status.samples);

        // Decide and update: the same on every rank.
        let executor = self.executor.as_mut();
        let decision = self.phases.during(Phase::Update, || {
            let before_update = || observer.before_update();
            decide_and_update(replica, exchange, executor, &status, figures.as_ref(), plan, before_update)
        })??;
        Ok(Attempt::Taken(Box::new(Taken {
            unreadable,
            hashes,
            norm: decision.norm,
            skipped: decision.skip_cause(),
            status: Status { totals: decision.totals, ..status },
            loss_scale,
            memory: self.phases.account.finish()?,
            took: begun.elapsed(),
            data_wait: computed.data_wait,
            comm_ms: reducing.ms()?,
        })))
    }

    /// Runs this rank's micro-steps. If memory runs out, skips the others, but joins in their operations.
    fn compute(
        &mut self,
        replica: &mut Replica,
        exchange: &Exchange,
        plan: &StepPlan,
    ) -> Result<(ComputeResult, Option<Shortage>)> {
        let hashes = SampleHashes::none_of(&*replica.model.task.facts().train);
        let mut computed = ComputeResult { hashes, ..ComputeResult::default() };
        let shortage = match self.first_pass(replica, exchange, plan, &mut computed)? {
            Err(shortage) => Some(shortage),
            Ok(joined) => {
                let outcome =
                    catch_torch_panic(|| self.micro_steps(replica, exchange, plan, joined, &mut computed));
                let outcome = outcome.map_err(StepError::from).and_then(|outcome| outcome);
                self.limits.find_shortage(outcome, self.phases.current)?.err()
            }
        };
        if shortage.is_some() {
            exchange.abandon()?;
            self.limits.empty_cache();
            exchange.join_remaining_sums(Pass::Whole, plan.micro_batches.len() - computed.micro_steps)?;
        }
        Ok((computed, shortage))
    }

    /// Runs the micro-steps. Afterwards only gradients in the table remain in memory.
    fn micro_steps(
        &mut self,
        replica: &mut Replica,
        exchange: &Exchange,
        plan: &StepPlan,
        mut joined: Option<Joined>,
        computed: &mut ComputeResult,
    ) -> Result<()> {
        for (index, range) in plan.micro_batches.iter().enumerate() {
            let _draws = begin_micro_step(replica, exchange, plan, range, Pass::Whole)?;
            self.phases.enter(Phase::Forward)?;
            let (fetched, values) = match joined.as_mut().and_then(Joined::take_kept) {
                Some((fetched, values)) => (fetched, Some(values)),
                None => (self.feed.next()?, None),
            };
            let DeviceBatch { batch, unreadable, data_wait, hashes } = fetched;
            computed.data_wait += data_wait;
            computed.hashes.add(&hashes);
            computed.unreadable.extend(unreadable);
            let is_last = index + 1 == plan.micro_batches.len();
            let micro = MicroStep {
                batch: &batch,
                factor: replica.precision.loss_scale() / plan.expected_weight,
                is_first: index == 0,
                is_last,
            };
            let mut passes = Passes { replica, exchange, phases: &mut self.phases, tally: &mut self.tally };
            match &joined {
                Some(joined) => joined.run(&mut passes, &micro, range, values)?,
                None => self.executor.run(&mut passes, &micro)?,
            }
            replica.model.buffers.record_change(range)?;
            self.phases.fault.end();
            exchange.end_micro_step()?;
            computed.micro_steps += 1;
            if !is_last || !plan.is_evaluated {
                drop(batch);
                self.feed.prefetch();
            }
        }
        Ok(())
    }

    /// Reserves the update's scratch memory until it begins; nothing after a shortage.
    fn reserve_update(
        &mut self,
        replica: &mut Replica,
        shortage: &mut Option<Shortage>,
    ) -> Result<Option<Tensor>> {
        if shortage.is_some() {
            return Ok(None);
        }
        let bytes = (UPDATE_BYTES + replica.model.table.gathering_bytes()) as i64;
        let options = (Kind::Uint8, self.limits.device);
        let reserved = self.phases.during(Phase::AllocateUpdate, || {
            replica.precision.allocate_figures()?;
            Tensor::f_empty([bytes], options)
        })?;
        let reserved = self.limits.find_shortage(reserved, Phase::AllocateUpdate)?;
        Ok(reserved.map_err(|new| *shortage = Some(new)).ok())
    }

    /// Counts the totals of this rank: in the status, or on a GPU in the returned tensor, without a wait.
    fn count_totals(
        &mut self,
        status: &mut Status,
        shortage: &mut Option<Shortage>,
    ) -> Result<Option<Tensor>> {
        if decides_on_device(self.limits.device) {
            return Ok(Some(self.tally.figures()?));
        }
        match self.limits.find_shortage(self.tally.totals(), Phase::Reduce)? {
            Ok(totals) => status.totals = totals,
            Err(new) => *shortage = shortage.or(Some(new)),
        }
        Ok(None)
    }
}
