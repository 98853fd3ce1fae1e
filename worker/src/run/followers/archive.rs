//! Evaluations and checkpoints of a run, and the best of them.

use std::time::{Duration, Instant};

use dtrain_common::manifest::BestSoFar;
use dtrain_common::result::RunResult;
use dtrain_common::run_dir::RunDir;
use dtrain_recipe::Recipe;

use super::contents::{Owed, Rest, keep, manifest};
use super::evaluating::{Evaluating, is_evaluated};
use crate::checkpoint::{self, Amendment, Checkpoints};
use crate::heartbeat::Heartbeat;
use crate::metrics::{EvalRecord, Line, figures};
use crate::run::best::figures_of;
use crate::run::error::Result;
use crate::run::evaluate::evaluate;
use crate::run::follower::{Flow, Follower, Followers};
use crate::run::shown::Show;
use crate::run::{Course, Training};
use crate::step::{Status, StepError, StepObserver, Taken};
use crate::stop::StopFlag;
use crate::tasks::TEST;

pub(crate) struct Archive<'a> {
    pub(super) checkpoints: Checkpoints,
    pub(super) heartbeat: Heartbeat,
    pub(super) done: u64,
    /// The start of the last checkpoint, or of the training.
    pub(super) saved_at: Instant,
    is_prepared: bool,
    /// Whether a note has reported that training waits for checkpoints.
    pub(super) wait_reported: bool,
    stop: StopFlag,
    /// The time between checkpoints.
    every: Option<Duration>,
    /// The time that evaluations have taken.
    evaluating: Evaluating,
    origin: ResumeOrigin<'a>,
    best: Option<BestSoFar>,
    show: Show,
}

/// The checkpoint from which a run continues.
pub(crate) struct ResumeOrigin<'a> {
    pub(crate) run_dir: &'a RunDir,
    /// Whether it is a copy in memory.
    pub(crate) from_memory: bool,
    /// Whether it belongs to another run and must not change.
    pub(crate) is_foreign: bool,
    /// Whether its evaluation was interrupted.
    pub(crate) evaluation_missing: bool,
}

impl<'a> Archive<'a> {
    pub(crate) fn new(
        checkpoints: Checkpoints,
        heartbeat: Heartbeat,
        stop: StopFlag,
        course: &Course,
        settings: &Recipe,
        origin: ResumeOrigin<'a>,
        show: Show,
    ) -> Self {
        Self {
            checkpoints,
            heartbeat,
            done: course.done,
            saved_at: Instant::now(),
            is_prepared: false,
            wait_reported: false,
            stop,
            every: settings.checkpoint.every.time(),
            evaluating: Evaluating::new(settings.evaluate.share),
            origin,
            best: None,
            show,
        }
    }

    /// Evaluates the model, after all copies of its state are complete.
    fn evaluate(
        &mut self,
        training: &mut Training<'_>,
        others: &mut Followers<'_>,
    ) -> Result<Option<EvalRecord>> {
        others.before_update()?;
        self.settle()?;
        let begun = Instant::now();
        let record = evaluate(training, &self.stop, &self.show, others);
        self.evaluating.add(begun.elapsed());
        record
    }

    /// Writes a checkpoint, evaluates, and adds the result to the checkpoint. The checkpoint is whole before the
    /// evaluation begins, which may fail, crash or be killed. The resumed run repeats an unfinished evaluation.
    ///
    /// `taken` is the step before it, if this attempt took one. If that step was skipped and may be the run's last, the evaluation
    /// comes first: it may be what fails the run, and with a checkpoint of the last step a resumed run would have no steps left.
    fn save_and_evaluate(
        &mut self,
        training: &mut Training<'_>,
        taken: Option<&Taken>,
        others: &mut Followers<'_>,
    ) -> Result<Flow> {
        let is_last = training.course.done >= training.course.plan.total_steps;
        let may_be_last = is_last || training.course.patience.may_end();
        let is_withheld = may_be_last && taken.is_some_and(|taken| taken.skipped.is_some());
        let is_written = match is_withheld {
            // The best checkpoint depends on the success of the previous one.
            true => self.finish_previous(training, others).map(|()| false)?,
            false => self.save_whole(training, Rest::after(training), others)?,
        };
        let Some(evaluation) = self.evaluate(training, others)? else {
            if !is_written {
                self.save(training, Owed::Evaluation, others)?;
            }
            return Ok(Flow::Interrupted);
        };
        let evaluation = compare(training, evaluation, others)?;
        let ends = training.course.early_end().is_some();
        if ends {
            others.before_early_end(&evaluation)?;
        }
        // An early end makes this checkpoint the last one, which must succeed.
        let is_due = is_withheld || ends;
        match is_written || is_due && self.save_whole(training, Rest::after(training), others)? {
            true => self.complete(training, &evaluation, others)?,
            false => training.course.best.forget(self.done),
        }
        Ok(end_if_due(training, others))
    }

    /// Evaluates after a step without a checkpoint. If a stop interrupts the evaluation, a checkpoint leaves it to the resumed
    /// run.
    fn evaluate_alone(&mut self, training: &mut Training<'_>, others: &mut Followers<'_>) -> Result<Flow> {
        let Some(evaluation) = self.evaluate(training, others)? else {
            self.save(training, Owed::Evaluation, others)?;
            return Ok(Flow::Interrupted);
        };
        compare(training, evaluation, others)?;
        Ok(Flow::Continue)
    }

    /// Writes a checkpoint that owes its evaluation, and waits for it. Returns false after a failure that the recipe allows.
    fn save_whole(
        &mut self,
        training: &mut Training<'_>,
        rest: Rest,
        others: &mut Followers<'_>,
    ) -> Result<bool> {
        self.save(training, Owed::Evaluation, others)?;
        self.finish_checkpoint(training, others, rest)
    }

    /// Adds a result to the checkpoint of the last step, which has been written.
    fn complete(
        &mut self,
        training: &mut Training<'_>,
        evaluation: &EvalRecord,
        others: &mut Followers<'_>,
    ) -> Result<()> {
        let _writing = self.heartbeat.guard_write();
        let Course { done: step, best, patience, .. } = &training.course;
        let step = *step;
        let amendment = Amendment {
            metrics: figures_of(evaluation),
            best: best.so_far.clone(),
            stopping: patience.so_far.clone(),
        };
        let amended = match training.exchange.rank() {
            0 => checkpoint::amend(self.origin.run_dir, step, amendment, &keep(training)),
            _ => Ok(()),
        };
        let amended = amended.map(|()| None);
        self.agree_on_checkpoint(training, amended, step, Rest::after(training), others).map(drop)
    }
}

impl Follower for Archive<'_> {
    /// Checks that a resume will read the run's manifests, and completes the checkpoint from which the run continues, if its
    /// evaluation is missing.
    fn begin(&mut self, training: &mut Training<'_>, others: &mut Followers<'_>) -> Result<Flow> {
        let model = &training.replica.model;
        let average = u64::from(model.average.is_some()) * model.table.trained_elements();
        let values = model.registry.parameter_count() as u64 + average + model.table.moment_elements();
        let state = values * size_of::<f32>() as u64;
        manifest(training, Owed::Nothing).check_room(&self.origin.run_dir.checkpoints(), state)?;
        if !self.origin.evaluation_missing {
            // The step's checkpoint is not on the disk: the copy in memory is newer than all there.
            let is_due = training.course.plan.is_checkpoint(self.done, false);
            if self.origin.from_memory && !self.origin.is_foreign && is_due {
                self.save(training, Owed::Nothing, others)?;
            }
            return Ok(end_if_due(training, others));
        }
        if self.origin.from_memory && !self.origin.is_foreign {
            return self.save_and_evaluate(training, None, others);
        }
        let Some(evaluation) = self.evaluate(training, others)? else { return Ok(Flow::Interrupted) };
        // Another run's checkpoint must not change, and is never this run's best.
        if self.origin.is_foreign {
            report(&evaluation, others)?;
            return Ok(Flow::Continue);
        }
        let evaluation = compare(training, evaluation, others)?;
        self.complete(training, &evaluation, others)?;
        Ok(end_if_due(training, others))
    }

    fn add_status(&mut self, status: &mut Status, rank: usize) -> Result<(), StepError> {
        // Only rank 0 decides by time.
        let is_due = rank == 0 && self.every.is_some_and(|every| self.saved_at.elapsed() >= every);
        status.due = f64::from(u8::from(is_due));
        status.spent = f64::from(u8::from(rank == 0 && !self.evaluating.has_time()));
        status.writing[rank] = self.checkpoints.progress();
        Ok(())
    }

    fn before_update(&mut self) -> Result<(), StepError> {
        self.settle()
    }

    fn after_step(
        &mut self,
        training: &mut Training<'_>,
        taken: &Taken,
        others: &mut Followers<'_>,
    ) -> Result<Flow> {
        let status = &taken.status;
        self.done = training.course.done;
        if !std::mem::replace(&mut self.is_prepared, true) {
            // Allocates memory for the first checkpoint during training.
            let prepared = self.checkpoints.prepare(&training.replica.model);
            prepared.map_err(StepError::unwritten(self.done))?;
        }
        self.follow_checkpoint(training, status, others)?;
        let plan = &training.course.plan;
        let evaluates = is_evaluated(plan, self.done, status);
        if plan.is_evaluation(self.done) && !evaluates {
            others.note(format!("after step {}: {}", self.done, self.evaluating));
        }
        let saves = status.stop > 0.0 || status.due > 0.0 || plan.is_checkpoint(self.done, evaluates);
        match (saves, evaluates) {
            (true, true) => self.save_and_evaluate(training, Some(taken), others),
            (false, true) => self.evaluate_alone(training, others),
            (true, false) => self.save(training, Owed::Nothing, others).map(|()| Flow::Continue),
            (false, false) => Ok(Flow::Continue),
        }
    }

    fn finish(&mut self, training: &mut Training<'_>, others: &mut Followers<'_>) -> Result<()> {
        self.finish_checkpoint(training, others, Rest::Nothing)?;
        self.best = training.course.best.so_far.clone();
        Ok(())
    }

    fn conclude(&self, result: &mut RunResult) {
        result.best = self.best.clone();
    }
}

/// Compares an evaluation with earlier ones and reports it.
fn compare(
    training: &mut Training<'_>,
    mut evaluation: EvalRecord,
    others: &mut Followers<'_>,
) -> Result<EvalRecord> {
    let course = &mut training.course;
    let figures = figures_of(&evaluation);
    evaluation.best = course.best.compare(&figures, course.done);
    course.patience.compare(&figures, course.done);
    report(&evaluation, others)?;
    Ok(evaluation)
}

/// Ends the run if `train.stop_early` does.
fn end_if_due(training: &Training<'_>, others: &mut Followers<'_>) -> Flow {
    match training.course.early_end() {
        Some(reason) => {
            others.note(reason);
            Flow::Finished
        }
        None => Flow::Continue,
    }
}

fn report(record: &EvalRecord, others: &mut Followers<'_>) -> Result<()> {
    others.record(&Line::Eval(record))?;
    let figures: String = figures(record).iter().map(|(name, value)| format!(", {name} {value}")).collect();
    let best = if record.best == Some(true) { ", the best so far" } else { "" };
    others.note(format!(
        "after step {} (epoch {}): {} loss {:.4}{figures} of {} samples{best}",
        record.step,
        record.epoch,
        record.set.as_deref().unwrap_or(TEST),
        record.loss,
        record.samples,
    ));
    Ok(())
}
