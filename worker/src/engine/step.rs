//! One optimizer step, from top to bottom: load, forward, backward, reduce, prepare, decide, update, report; and again from the
//! top where a rank has run out of memory before the decision.

use std::ops::Range;
use std::time::{Duration, Instant};

use rand_chacha::rand_core::Rng;
use tch::{Kind, Tensor};

use super::error::TrainError;
use super::feed::Fed;
use super::plan::Position;
use super::replay::{Phase, Shortage, shielded};
use super::status::Status;
use super::stopwatch::Stopwatch;
use super::trainer::Trainer;
use super::verdict::{Counted, Decides, Decision, Judged, Question, judge};
use crate::data::rng::{Domain, keyed};
use crate::memory::{self, Books};
use crate::metrics::{SkipCause, StepRecord, WaitMs};
use crate::state::Table;
use crate::tasks::Mode;

/// How a try to take a step has ended, the same on every rank.
enum Attempt {
    /// It was taken.
    Taken(Box<(StepRecord, Status)>),
    /// Memory ran out on the ranks that have a shortage here, and no rank has changed anything that lasts.
    Dropped(Vec<Option<Shortage>>),
}

/// What is settled about a step before it begins.
struct Cut {
    /// The number of the step, counted from 1.
    step: u64,
    position: Position,
    samples: usize,
    /// Those of this rank, as positions within the step.
    micro_batches: Vec<Range<usize>>,
    lr: f64,
    loss_scale: f64,
    /// The weight of the step if nothing is left out of it; what is left out is made up for after the reduction.
    expected: f64,
}

/// What a rank has done of a step.
struct Pass {
    phase: Phase,
    /// Whole micro-steps.
    micro_steps: usize,
    status: Status,
    waited_for_data: Duration,
}

/// Memory for what the update takes beside its gathering: scalars, and the scratch of a norm.
const UPDATE_BYTES: u64 = 64 << 10;

/// The memory that an update takes.
pub(super) fn update_bytes(table: &Table) -> u64 {
    UPDATE_BYTES + table.gathering_bytes()
}

impl Trainer<'_> {
    /// Takes the step that follows `self.done` others, and says how it went. Where memory runs out on a rank, all ranks take it
    /// again in smaller micro-batches.
    pub(super) fn step(&mut self) -> Result<(StepRecord, Status), TrainError> {
        loop {
            match self.attempt()? {
                Attempt::Taken(taken) => return Ok(*taken),
                Attempt::Dropped(shortages) => self.start_again(&shortages)?,
            }
        }
    }

    fn attempt(&mut self) -> Result<Attempt, TrainError> {
        let begun = Instant::now();
        let cut = self.cut();
        let books = Books::Device(self.device);
        self.account.set_state(self.model.owners());
        self.account.begin(books, self.feed.bytes_ahead())?;
        self.model.buffers.begin(self.ranks.rank())?;
        self.reducer.begin()?;
        self.tally.begin();

        // Load, forward, backward: the gradient of the summed loss, over the expected weight, adds up in the table.
        let mut pass = Pass {
            phase: Phase::Forward,
            micro_steps: 0,
            status: Status::blank(self.model.task.sums(), self.ranks.size()),
            waited_for_data: Duration::ZERO,
        };
        let computed = shielded(|| self.compute(&cut, &mut pass))
            .map_err(TrainError::from)
            .and_then(|computed| computed);
        self.replay.fault.end();
        let mut short = self.replay.survive(computed, pass.phase)?.err();
        if short.is_some() {
            self.leave(cut.micro_batches.len() - pass.micro_steps)?;
        }

        // Reduce: every bucket leaves, also where memory for it was refused at first, before the host waits for anything.
        let mut reducing = Stopwatch::start(self.device)?;
        self.account.enter(books, memory::Phase::Reduce)?;
        self.replay.fault.begin(Phase::Reduce, cut.step, 1);
        let lacking = self.reducer.start_rest();
        self.replay.fault.end();
        if lacking? && short.is_none() {
            short = Some(self.replay.shortage(Phase::Reduce, None));
        }

        // Prepare: after the decision nobody can go back, so room for the update is taken before it.
        let mut reserve = None;
        if short.is_none() {
            match self.prepare(cut.step)? {
                Ok(room) => reserve = Some(room),
                Err(shortage) => short = Some(shortage),
            }
        }

        self.settle_memory()?;

        // Agree: afterwards every rank holds the same gradient and the same status.
        let mut status = pass.status;
        // A GPU's totals stay there, and travel behind its gradients.
        let mut figures = None;
        match Decides::of(self.device) {
            Decides::Host => match self.replay.survive(self.tally.totals(), Phase::Reduce)? {
                Ok(totals) => status.totals = totals,
                Err(shortage) => short = short.or(Some(shortage)),
            },
            Decides::Device => figures = Some(self.tally.figures()?),
        }
        status.stop = f64::from(u8::from(self.stop.is_asked()));
        status.due = f64::from(u8::from(self.is_due()));
        status.shortages[self.ranks.rank()] = short;
        status.writing[self.ranks.rank()] = self.writing()?;
        let mut status = self
            .reducer
            .finish_beside(&self.model.buffers, status, figures.as_ref())?;
        reducing.stop()?;
        drop(reserve);
        if status.ran_out() {
            return Ok(Attempt::Dropped(status.shortages));
        }

        // Decide and update: the same on every rank.
        self.account.enter(books, memory::Phase::Update)?;
        self.replay.fault.begin(Phase::Update, cut.step, 1);
        let updated = self.update(&cut, &status, figures);
        self.replay.fault.end();
        let judged = updated?;
        status.totals = judged.totals;
        self.done += 1;

        // Report.
        let memory = self.account.finish(books)?;
        let step_s = begun.elapsed().as_secs_f64();
        let record = StepRecord {
            step: self.done,
            epoch: cut.position.epoch + 1,
            stage: self.plan.stages()[cut.position.stage].name.clone(),
            samples: self.plan.samples_after(self.done),
            loss: status.totals.loss(),
            lr: cut.lr,
            grad_norm: judged.norm,
            loss_scale: cut.loss_scale,
            samples_per_s: cut.samples as f64 / step_s,
            step_ms: step_s * 1e3,
            elapsed_s: self.began.elapsed().as_secs_f64(),
            wait_ms: WaitMs {
                data: pass.waited_for_data.as_secs_f64() * 1e3,
                comm: reducing.ms()?,
            },
            memory,
            skipped: (judged.decision == Decision::Skip)
                .then(|| SkipCause::of(status.totals.loss(), status.totals.weight)),
        };
        Ok(Attempt::Taken(Box::new((record, status))))
    }

    fn cut(&self) -> Cut {
        let position = self.plan.position(self.done);
        let samples = self.plan.step_samples(position);
        Cut {
            step: self.done + 1,
            position,
            samples,
            micro_batches: self.plan.micro_ranges(position, self.ranks.rank()),
            lr: self.plan.lr(self.done),
            loss_scale: self.precision.loss_scale(),
            expected: samples as f64 * self.model.task.weight_per_sample(),
        }
    }

    /// The micro-steps of this rank. Nothing of them is left in memory when it returns but gradients in the table.
    fn compute(&mut self, cut: &Cut, pass: &mut Pass) -> Result<(), TrainError> {
        // What a step draws depends on its number and the rank, so that a step taken again, or after a resume, draws the same.
        let mut seeds = keyed(
            Domain::Torch,
            self.recipe.train.seed,
            cut.step,
            self.ranks.rank() as u64,
        );
        tch::manual_seed(seeds.next_u64() as i64);
        for index in 0..cut.micro_batches.len() {
            self.micro_step(cut, index, pass)?;
            pass.micro_steps += 1;
        }
        Ok(())
    }

    fn micro_step(&mut self, cut: &Cut, index: usize, pass: &mut Pass) -> Result<(), TrainError> {
        let sync = self.replay.sync.clone();
        if let Some(sync) = &sync {
            sync.begin();
        }
        let books = Books::Device(self.device);
        self.account.enter(books, memory::Phase::Forward)?;
        pass.phase = Phase::Forward;
        self.replay.fault.begin(pass.phase, cut.step, index + 1);
        let Fed { batch, bad, waited } = self.feed.next()?;
        pass.waited_for_data += waited;
        pass.status.bad_samples += bad as f64;
        let is_last = index + 1 == cut.micro_batches.len();
        let factor = cut.loss_scale / cut.expected;
        if !self.replay_graph(&batch, factor, index == 0)? {
            let loss = self
                .precision
                .run(|| self.model.task.loss(&batch, Mode::Train))??;
            self.replay.fault.end();
            self.account.forward_done(books)?;
            self.account.enter(books, memory::Phase::Backward)?;

            pass.phase = Phase::Backward;
            if is_last {
                self.reducer.arm();
            }
            self.replay.fault.begin(pass.phase, cut.step, index + 1);
            self.model.recompute.backward(&loss.sum.f_mul_scalar(factor)?)?;
            self.tally.add(&loss)?;
        }
        let share = cut.micro_batches[index].len() as f64 / cut.samples as f64;
        self.model.buffers.take(share)?;
        self.replay.fault.end();
        if let Some(sync) = &sync {
            sync.end()?;
        }
        // An evaluation has the memory for itself.
        if !is_last || !self.plan.is_checkpoint(cut.step) {
            drop(batch);
            self.feed.fetch_ahead();
        }
        Ok(())
    }

    /// This rank takes no part in what is left of the step, `micro_steps` of it begun or not, but in what the others wait for.
    fn leave(&mut self, micro_steps: usize) -> Result<(), TrainError> {
        self.reducer.abandon()?;
        self.replay.free();
        match &self.replay.sync {
            Some(sync) => sync.take_part(micro_steps),
            None => Ok(()),
        }
    }

    /// Memory that is held until the update begins, as much as it may need for a moment.
    fn prepare(&mut self, step: u64) -> Result<Result<Tensor, Shortage>, TrainError> {
        let bytes = update_bytes(&self.model.table);
        self.replay.fault.begin(Phase::Prepare, step, 1);
        let room = self
            .precision
            .prepare()
            .and_then(|()| Tensor::f_empty([bytes as i64], (Kind::Uint8, self.device)));
        self.replay.fault.end();
        Ok(self.replay.survive(room, Phase::Prepare)?)
    }

    /// Decides, and updates what is to be updated. What takes memory here is tried again where it is refused, as the other ranks cannot
    /// be told any more. `figures` are the totals of all ranks, where the device has them.
    fn update(&mut self, cut: &Cut, status: &Status, figures: Option<Tensor>) -> Result<Judged, TrainError> {
        let counted = match figures {
            Some(figures) => Counted::OnDevice(figures),
            None => Counted::OnHost(status.totals.clone()),
        };
        let question = Question {
            expected: cut.expected,
            clip: self.clip,
        };
        let sync = self.replay.sync.clone();
        let sync = sync.as_deref();
        let verdict = judge(
            &self.reducer,
            &self.model.table,
            &mut self.precision,
            sync,
            counted,
            question,
        )?;
        self.settle_copy()?;
        let judged = verdict.update(&mut self.model, &self.reducer, sync, cut.lr, &status.used())?;
        self.precision.update(judged.finite)?;
        Ok(judged)
    }
}
