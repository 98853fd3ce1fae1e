//! The training loop: steps, and between them evaluations, checkpoints and requests to stop.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use dtrain_common::manifest::DataMark;
use dtrain_common::recipe::Recipe;
use dtrain_common::result::RunResult;
use dtrain_common::run_dir::RunDir;
use dtrain_common::units::ByteSize;
use tch::{Device, Kind, Tensor};

use super::batch_sync::RankSync;
use super::error::TrainError;
use super::fault::Fault;
use super::feed::Feed;
use super::graphs::Graphs;
use super::keep::BestKeeper;
use super::plan::{Place, RunPlan};
use super::precision::Precision;
use super::reducer::{ReduceOptions, Reducer};
use super::replay::{Phase, Replay, SaveMore, patiently};
use super::skipped::Skipped;
use super::status::{Status, Tally};
use super::stop::StopFlag;
use crate::checkpoint::{Checkpoints, MemoryCopies};
use crate::collectives::{Ranks, ReduceOp};
use crate::data::{LoaderOptions, too_many_bad};
use crate::heartbeat::Heartbeat;
use crate::memory::{self, Account};
use crate::metrics::{MetricsLog, Progress, StepRecord};
use crate::state::{Group, Model, Stages};

/// Of what is reserved, so much as one part in this many may be in pieces before it is worth a word.
const FRAGMENTED: u64 = 5;

/// What a training is made of.
pub struct Parts<'a> {
    /// The recipe, for the checkpoints' manifests.
    pub recipe: &'a Recipe,
    /// Where the run writes.
    pub run_dir: &'a RunDir,
    /// The ranks.
    pub ranks: Ranks,
    /// What is trained.
    pub model: Model,
    /// How gradients are reduced.
    pub reduce: ReduceOptions,
    /// In which precision.
    pub precision: Precision,
    /// The plan.
    pub plan: RunPlan,
    /// What is trained in each of its stages.
    pub stages: Stages,
    /// The phase that `model` is laid out for: that of the last step before, or the first one.
    pub place: Place,
    /// How images are loaded.
    pub loader_options: LoaderOptions,
    /// Where tensors lie.
    pub device: Device,
    /// Requests to stop.
    pub stop: StopFlag,
    /// Steps that were taken before, by the checkpoint this run resumes from.
    pub done: u64,
    /// The figures of the evaluation before that checkpoint.
    pub earlier_metrics: BTreeMap<String, f64>,
    /// Of the machine's cores this rank's share.
    pub cores: usize,
    /// What is trained on, for the checkpoints' manifests.
    pub data: DataMark,
    /// The best checkpoint, by then.
    pub best: BestKeeper,
    /// Whether the evaluation of that checkpoint is still to be made.
    pub owes_evaluation: bool,
    /// metrics.jsonl, on rank 0.
    pub metrics: Option<MetricsLog>,
    /// What people see.
    pub progress: Progress,
    /// When the launch command was given, if it said so.
    pub launched: Option<SystemTime>,
    /// Room for copies in memory, where they are kept.
    pub memory_copies: Option<&'a Path>,
    /// Whether the run goes on from such a copy.
    pub from_memory: bool,
    /// Whether the checkpoint that the run goes on from is another run's, which stays as it is.
    pub is_anothers: bool,
    /// Signs of life.
    pub heartbeat: Heartbeat,
    /// What the model's normalisations sum over the ranks by, where they do.
    pub batch_sync: Option<Arc<RankSync>>,
    /// What saves memory beside smaller micro-batches.
    pub save_more: SaveMore,
    /// A lack of memory that a test asks for.
    pub fault: Fault,
}

/// How a training ended in good order.
#[derive(Debug)]
pub enum Outcome {
    /// All steps were taken.
    Finished(Summary),
    /// Stopped on request; a checkpoint was written.
    Stopped(Summary),
}

/// The figures of a training that ended in good order.
#[derive(Debug, Default)]
pub struct Summary {
    /// For result.json.
    pub result: RunResult,
    /// The newest checkpoint, on rank 0.
    pub checkpoint: Option<PathBuf>,
    /// The most that this rank's tensors took in a step, in bytes.
    pub peak: u64,
}

/// A training under way.
pub struct Trainer<'a> {
    pub(super) recipe: &'a Recipe,
    pub(super) ranks: Ranks,
    pub(super) model: Model,
    pub(super) reducer: Reducer,
    pub(super) precision: Precision,
    /// Of the step under way.
    pub(super) tally: Tally,
    pub(super) plan: RunPlan,
    pub(super) stages: Stages,
    /// The phase that the model is laid out for.
    pub(super) phase: Place,
    /// Whether the phase under way was told of.
    pub(super) announced: bool,
    /// Whether the parameters lie in the order in which backward reaches them.
    pub(super) is_laid_out: bool,
    pub(super) feed: Feed,
    pub(super) graphs: Graphs,
    pub(super) loader_options: LoaderOptions,
    pub(super) device: Device,
    pub(super) stop: StopFlag,
    pub(super) clip: Option<f64>,
    /// Steps taken since the beginning of the run.
    pub(super) done: u64,
    pub(super) metrics: Option<MetricsLog>,
    pub(super) progress: Progress,
    launched: Option<SystemTime>,
    pub(super) heartbeat: Heartbeat,
    pub(super) replay: Replay,
    pub(super) account: Account,
    bad_samples: u64,
    pub(super) skipped: Skipped,
    pub(super) best: BestKeeper,
    /// Whether the last evaluation was broken off.
    pub(super) owes_evaluation: bool,
    pub(super) run_dir: &'a RunDir,
    pub(super) data: DataMark,
    pub(super) checkpoints: Checkpoints,
    pub(super) memory_copies: Option<MemoryCopies>,
    pub(super) from_memory: bool,
    pub(super) is_anothers: bool,
    /// Whether it was said that the training waits for checkpoints.
    pub(super) told_of_waiting: bool,
    /// When the training began in this process.
    pub(super) began: Instant,
    /// When the last checkpoint was begun, or the training.
    pub(super) saved_at: Instant,
    pub(super) summary: Summary,
}

impl<'a> Trainer<'a> {
    /// Starts the loader; the first step can be taken.
    ///
    /// # Errors
    /// `Data` where the system refuses a thread; where the task refuses the stage.
    pub fn new(parts: Parts<'a>) -> Result<Self, TrainError> {
        let mut summary = Summary::default();
        summary.result.final_metrics = parts.earlier_metrics;
        let work = parts.plan.micro_batches(parts.ranks.rank(), parts.done);
        let train_set = parts.model.task.train_set();
        let feed = Feed::start(train_set, parts.loader_options, work, parts.device)?;
        let mut reducer = Reducer::new(parts.ranks.clone(), &parts.model.table, parts.reduce)?;
        let sums = parts.model.task.sums();
        reducer.expect(Status::blank(sums, parts.ranks.size()))?;
        let tally = Tally::new(sums, parts.device)?;
        let replay = Replay::new(
            parts.device,
            parts.recipe.memory.budget,
            &parts.plan,
            parts.batch_sync,
            parts.save_more,
            parts.fault,
        );
        let failed = |source| TrainError::Checkpoint {
            step: parts.done,
            source,
        };
        let checkpoints =
            Checkpoints::new(parts.run_dir, &parts.ranks, parts.device, parts.cores).map_err(failed)?;
        let memory_copies = parts
            .memory_copies
            .map(|place| MemoryCopies::new(place, &parts.ranks, parts.device, parts.cores))
            .transpose()
            .map_err(failed)?;
        let mut trainer = Self {
            replay,
            feed,
            graphs: Graphs::new(parts.recipe.model.compile, parts.device),
            clip: parts.recipe.optim.clip,
            recipe: parts.recipe,
            ranks: parts.ranks,
            model: parts.model,
            reducer,
            precision: parts.precision,
            tally,
            plan: parts.plan,
            stages: parts.stages,
            phase: parts.place,
            announced: false,
            is_laid_out: false,
            loader_options: parts.loader_options,
            device: parts.device,
            stop: parts.stop,
            done: parts.done,
            metrics: parts.metrics,
            progress: parts.progress,
            launched: parts.launched,
            heartbeat: parts.heartbeat,
            account: Account::default(),
            bad_samples: 0,
            skipped: Skipped::default(),
            best: parts.best,
            owes_evaluation: parts.owes_evaluation,
            run_dir: parts.run_dir,
            data: parts.data,
            checkpoints,
            memory_copies,
            from_memory: parts.from_memory,
            is_anothers: parts.is_anothers,
            told_of_waiting: false,
            began: Instant::now(),
            saved_at: Instant::now(),
            summary,
        };
        let stage = &trainer.plan.stages()[parts.place.stage];
        trainer.model.recompute.set(stage.recompute);
        trainer.begin_stage(parts.place)?;
        if let Some(reason) = trainer.graphs.take_reason() {
            trainer.progress.note(format!(
                "warning: model.compile = \"graph\" does nothing: {reason}"
            ));
        }
        Ok(trainer)
    }

    /// Trains to the end of the run or to the first request to stop.
    ///
    /// # Errors
    /// See [`TrainError`]; where memory runs out, [`crate::OutOfMemory::is_out_of_memory`] says so.
    pub fn run(mut self) -> Result<Outcome, TrainError> {
        self.began = Instant::now();
        let first = self.done;
        self.summary.result.startup_ms = self
            .launched
            .and_then(|launched| launched.elapsed().ok())
            .map(|elapsed| elapsed.as_secs_f64() * 1e3);
        let mut training_s = 0.0;
        let mut stopped = !self.make_up()?;
        while self.done < self.plan.total_steps && !stopped {
            self.enter_phase()?;
            self.grow()?;
            let (record, status) = self.step()?;
            if !std::mem::replace(&mut self.is_laid_out, true) {
                self.follow_backward()?;
                self.prepare_checkpoint()?;
            }
            training_s += record.step_ms / 1e3;
            self.report(&record)?;
            self.watch(&record, &status)?;
            self.follow_checkpoint(&status)?;
            self.keep_in_memory()?;
            stopped = status.stop > 0.0;
            if self.plan.is_checkpoint(self.done) {
                stopped |= !self.evaluate_and_save()?;
            } else if stopped || status.due > 0.0 {
                self.save(None)?;
            }
        }
        self.finish_checkpoint()?;

        self.progress.finish();
        self.note_fragmentation();
        self.conclude_best();
        let result = &mut self.summary.result;
        let samples = self.plan.samples_after(self.done);
        result.steps = Some(self.done);
        result.epochs = Some(self.plan.epochs_after(self.done));
        result.samples = Some(samples);
        if training_s > 0.0 {
            let own = samples - self.plan.samples_after(first);
            result.samples_per_s = Some(own as f64 / training_s);
        }
        result.skipped_images = Some(self.bad_samples);
        result.oom_replays = Some(self.replay.count);
        result.graph_replays = self.graphs.replays();
        result.micro_batch = Some(
            self.plan
                .stage(self.done.saturating_sub(1))
                .partition
                .micro_batch(),
        );
        tracing::debug!("trained for {:.3} s", self.began.elapsed().as_secs_f64());
        let unfinished = self.done < self.plan.total_steps || self.owes_evaluation;
        Ok(if stopped && unfinished {
            Outcome::Stopped(self.summary)
        } else {
            Outcome::Finished(self.summary)
        })
    }

    /// After the first step of a phase the parameters are laid out in the order in which rank 0 saw their gradients become ready, so
    /// that every bucket is complete as early as possible.
    fn follow_backward(&mut self) -> Result<(), TrainError> {
        let order = self.reducer.ready_order()?;
        if !self.has_room_to_rearrange()? {
            return Ok(());
        }
        self.graphs.forget();
        if self.model.table.rearrange(&order, &self.ranks)? {
            self.reducer.follow(&self.model.table)?;
        }
        Ok(())
    }

    /// Whether every rank has memory for its parameters and moments once more, which a new order takes for a moment. One that has
    /// not is no reason to end a run: the old order is only slower.
    fn has_room_to_rearrange(&self) -> Result<bool, TrainError> {
        let whole_moments = match self.model.table.shards() {
            1 => 0,
            _ => self.model.table.moments().count(),
        };
        let bytes = self.model.table.bytes(Group::is_trained) as i64 * (1 + whole_moments as i64);
        let options = (Kind::Uint8, self.device);
        let room = patiently(self.device, || Tensor::f_empty([bytes], options));
        let lacking = f64::from(u8::from(self.replay.survive(room, Phase::Prepare)?.is_err()));
        let lacking = patiently(Device::Cpu, || Tensor::f_from_slice(&[lacking]))?;
        self.ranks.all_reduce(&lacking, ReduceOp::Max)?.wait()?;
        Ok(f64::try_from(&lacking)? == 0.0)
    }

    /// What the device holds beyond what tensors took at most, where that is worth a word. The host's allocator keeps no blocks.
    fn note_fragmentation(&self) {
        let Ok(usage) = memory::report(self.device) else {
            return;
        };
        let used = self.summary.peak.max(usage.allocated);
        let beyond = usage.reserved.saturating_sub(used);
        if !self.device.is_cuda() || beyond * FRAGMENTED < usage.reserved {
            return;
        }
        self.progress.note(format!(
            "{} of {} reserved were never in use at once, which is {}%: memory in pieces. expandable_segments:True in \
             PYTORCH_CUDA_ALLOC_CONF, which is on unless that is set, keeps it together",
            ByteSize(beyond),
            ByteSize(usage.reserved),
            100 * beyond / usage.reserved.max(1)
        ));
    }

    /// Loads the micro-batches of the plan from the next step on.
    pub(super) fn restart_loader(&mut self) -> Result<(), TrainError> {
        let work = self.plan.micro_batches(self.ranks.rank(), self.done);
        let train_set = self.model.task.train_set();
        self.feed = Feed::start(train_set, self.loader_options, work, self.device)?;
        Ok(())
    }

    fn report(&mut self, record: &StepRecord) -> Result<(), TrainError> {
        self.heartbeat.beat();
        if let Some(metrics) = &mut self.metrics {
            metrics.step(record).map_err(TrainError::Metrics)?;
        }
        let peak = &mut self.summary.peak;
        *peak = (*peak).max(record.memory.report.peak);
        self.progress.step(record, Instant::now());
        if record.loss.is_finite() {
            let figures = &mut self.summary.result.final_metrics;
            figures.insert("train_loss".into(), record.loss);
        }
        Ok(())
    }

    /// Ends a run that will not recover; all ranks see the same figures and end together.
    fn watch(&mut self, record: &StepRecord, status: &Status) -> Result<(), TrainError> {
        self.skipped.see(record.step, record.skipped);
        // No checkpoint of such a last step is written: a run that goes on from it would have nothing left to do.
        if let Some(failure) = self.skipped.failure(self.done == self.plan.total_steps) {
            return Err(failure);
        }
        self.bad_samples += status.bad_samples as u64;
        let total = self.plan.train_samples;
        if too_many_bad(self.bad_samples as usize, total as usize) {
            return Err(TrainError::TooManyBad {
                bad: self.bad_samples,
                total,
            });
        }
        Ok(())
    }
}
