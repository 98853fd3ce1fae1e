//! What is kept of a training: its evaluations, and checkpoints with the best of them.

use std::time::Duration;

use dtrain_common::result::RunResult;
use dtrain_common::run_dir::RunDir;

use super::best::{figures_of, named};
use super::saver::{Saver, unwritten};
use super::{BestKeeper, Flow, Follower, Followers};
use crate::checkpoint;
use crate::engine::TrainError;
use crate::metrics::{EvalRecord, Line};
use crate::run::evaluate::evaluate;
use crate::run::{StopFlag, Training};
use crate::step::{Status, Taken, Witness};

/// Evaluates and saves when it is time for it.
pub(crate) struct Archive<'a> {
    pub(crate) saver: Saver,
    pub(crate) stop: StopFlag,
    /// A length of time after which a checkpoint is written.
    pub(crate) every: Option<Duration>,
    pub(crate) origin: Origin<'a>,
    /// Whether the last evaluation was broken off, by this run or by the one before.
    pub(crate) owes_evaluation: bool,
    /// As it is at the end.
    pub(crate) best: BestKeeper,
}

/// The checkpoint that a run goes on from.
pub(crate) struct Origin<'a> {
    pub(crate) run_dir: &'a RunDir,
    /// Whether it is a copy in memory.
    pub(crate) from_memory: bool,
    /// Whether it is another run's, which stays as it is.
    pub(crate) is_anothers: bool,
}

impl Archive<'_> {
    /// Evaluates the test set when nobody copies anything of the model any more.
    fn evaluate(
        &mut self,
        training: &mut Training<'_>,
        others: &mut Followers<'_>,
    ) -> Result<Option<EvalRecord>, TrainError> {
        others.before_update()?;
        self.saver.settle()?;
        let evaluation = evaluate(training, &self.stop, others)?;
        self.owes_evaluation = evaluation.is_none();
        Ok(evaluation)
    }

    /// Evaluates, tells of it, and writes a checkpoint. Where a request to stop came before the end of the evaluation, the run that
    /// goes on makes it up.
    fn evaluate_and_save(
        &mut self,
        training: &mut Training<'_>,
        others: &mut Followers<'_>,
    ) -> Result<Flow, TrainError> {
        let evaluation = self.evaluate(training, others)?;
        // Whether the one before is there counts for which is the best.
        self.saver.make_way(training, others)?;
        let evaluation = evaluation
            .map(|evaluation| judge(training, evaluation, others))
            .transpose()?;
        let owed = self.owes_evaluation;
        self.saver.save(training, evaluation.as_ref(), owed, others)?;
        Ok(match owed {
            true => Flow::BrokenOff,
            false => Flow::On,
        })
    }
}

impl Follower for Archive<'_> {
    /// Makes the evaluation that the checkpoint owes which the run goes on from, and completes the checkpoint by it.
    fn begin(&mut self, training: &mut Training<'_>, others: &mut Followers<'_>) -> Result<Flow, TrainError> {
        if !self.owes_evaluation {
            return Ok(Flow::On);
        }
        let Some(evaluation) = self.evaluate(training, others)? else {
            return Ok(Flow::BrokenOff);
        };
        // Another run's checkpoint stays as it is, and is never this run's best; this run's next one has the figures.
        if self.origin.is_anothers {
            report(&evaluation, others)?;
            return Ok(Flow::On);
        }
        let evaluation = judge(training, evaluation, others)?;
        if self.origin.from_memory {
            self.saver.save(training, Some(&evaluation), false, others)?;
        } else if training.exchange.rank() == 0 {
            let (step, best) = (training.course.done, training.course.best.so_far().cloned());
            checkpoint::amend(self.origin.run_dir, step, figures_of(&evaluation), best)
                .map_err(unwritten(step))?;
        }
        Ok(Flow::On)
    }

    fn say(&mut self, status: &mut Status, rank: usize) -> Result<(), TrainError> {
        // The time is for rank 0 to tell.
        let is_due = rank == 0 && self.every.is_some_and(|every| self.saver.age() >= every);
        status.due = f64::from(u8::from(is_due));
        status.writing[rank] = self.saver.writing();
        Ok(())
    }

    fn before_update(&mut self) -> Result<(), TrainError> {
        self.saver.settle()
    }

    fn after_step(
        &mut self,
        training: &mut Training<'_>,
        taken: &Taken,
        others: &mut Followers<'_>,
    ) -> Result<Flow, TrainError> {
        let status = &taken.status;
        self.saver.done = training.course.done;
        self.saver.prepare(training)?;
        self.saver.follow(training, status, others)?;
        if training.course.plan.is_checkpoint(training.course.done) {
            return self.evaluate_and_save(training, others);
        }
        if status.stop > 0.0 || status.due > 0.0 {
            self.saver.save(training, None, self.owes_evaluation, others)?;
        }
        Ok(Flow::On)
    }

    fn finish(&mut self, training: &mut Training<'_>, others: &mut Followers<'_>) -> Result<(), TrainError> {
        self.saver.finish(training, others, false)?;
        self.best = training.course.best.clone();
        if let Some(best) = self.best.so_far() {
            let value = named(&best.by.figure, best.value);
            others.note(format!(
                "best checkpoint ({}): {value} after step {}",
                best.by, best.step
            ));
        }
        Ok(())
    }

    fn conclude(&self, result: &mut RunResult) {
        result.best = self.best.so_far().cloned();
    }
}

/// Compares an evaluation with those before, and tells of it.
fn judge(
    training: &mut Training<'_>,
    mut evaluation: EvalRecord,
    others: &mut Followers<'_>,
) -> Result<EvalRecord, TrainError> {
    let course = &mut training.course;
    evaluation.best = course.best.see(&figures_of(&evaluation), course.done);
    report(&evaluation, others)?;
    Ok(evaluation)
}

fn report(record: &EvalRecord, others: &mut Followers<'_>) -> Result<(), TrainError> {
    others.hear(&Line::Eval(record))?;
    let figures: String = record
        .metrics
        .0
        .iter()
        .map(|(name, value)| format!(", {}", named(name, *value)))
        .collect();
    let best = match record.best {
        Some(true) => ", the best so far",
        _ => "",
    };
    others.note(format!(
        "after step {} (epoch {}): test loss {:.4}{figures} of {} samples{best}",
        record.step, record.epoch, record.loss, record.samples,
    ));
    Ok(())
}
