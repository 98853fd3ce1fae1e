//! The learning rates of a stage.

use std::ops::Range;

use dtrain_common::schedule::{Decay, Place, Schedule};
use dtrain_recipe::{AtStageStart, Per, Recipe, ScheduleName, Span};

use super::PlanError;
use super::pace::Pace;
use super::timeline::Timeline;
use super::views::{View, Views};

/// The learning rates of a stage, over its steps or those of the whole run.
#[derive(Debug, Clone)]
pub(crate) struct Rates {
    pub(crate) schedule: Schedule,
    /// The step of the run at which the schedule begins.
    begins: u64,
    /// After a change of the data's size.
    changed: Option<Changed>,
}

/// A schedule whose epochs have different lengths. It continues from where it was at the change: a part of a run of epochs
/// is one of its epochs, and a part of a run of steps is one of its steps.
#[derive(Debug, Clone)]
struct Changed {
    timeline: Timeline,
    stages: Range<usize>,
    /// The step of the run after the warm-up.
    warm: u64,
    warmup: Pace,
    decay: Pace,
    per: Per,
    /// Whether a step schedule counts epochs.
    counts_epochs: bool,
}

impl Rates {
    /// Makes the rates of stage `number`, whose recipe is `alone`, of a run as it was seen in turn.
    pub(super) fn new(
        recipe: &Recipe,
        number: usize,
        alone: &Recipe,
        views: &Views,
    ) -> Result<Self, PlanError> {
        let stages = match recipe.stage.get(number).map(|stage| stage.schedule) {
            Some(AtStageStart::Continue) => 0..recipe.stages(),
            Some(AtStageStart::Restart) | None => number..number + 1,
        };
        let timeline = &views.now.timeline;
        let steps = timeline.steps(&stages);
        let total = steps.end - steps.start;
        let stated = &alone.optim.schedule;
        let after = |span| views.reached(&stages, span).saturating_sub(steps.start);
        let warmup = stated.warmup.map_or(0, after);
        let steps_per_epoch = timeline.last_of(number).steps_per_epoch;
        if views.earlier.is_empty() {
            check_epochs(alone, timeline, &stages, steps_per_epoch)?;
            if warmup > total {
                return Err(PlanError::Warmup { warmup, total });
            }
        }
        let mut schedule = Schedule::of(alone, warmup.min(total), steps_per_epoch, total);
        if let (Decay::MultiStep { milestones, .. }, Per::Step) = (&mut schedule.decay, stated.per) {
            *milestones = stated.milestones.iter().flatten().map(|&span| after(span)).collect();
        }
        let changed = (!views.earlier.is_empty()).then(|| Changed::new(alone, views, &stages));
        Ok(Self { schedule, begins: steps.start, changed })
    }

    /// Returns the learning rate of a step of the run, counted from 0.
    pub(super) fn lr(&self, step: u64) -> f64 {
        match &self.changed {
            None => self.schedule.lr(step - self.begins),
            Some(changed) => self.schedule.rate(&changed.place(step, self.begins)),
        }
    }
}

impl Changed {
    fn new(alone: &Recipe, views: &Views, stages: &Range<usize>) -> Self {
        let warmup = alone.optim.schedule.warmup;
        let per = alone.optim.schedule.per;
        // The warm-up and the decay, as a view sees them, and its step in their units.
        let seen = |view: &View, reached: u64| {
            let steps = view.timeline.steps(stages);
            let warm = if warmup.is_some() { reached.min(steps.end) } else { steps.start };
            let rise = steps.start..warm;
            match per {
                Per::Step => (rise, warm..steps.end, view.from),
                Per::Epoch => {
                    let epoch = |step| view.timeline.epoch(step, stages);
                    let (last, per_epoch) = view.timeline.epoch_steps(steps.end, stages);
                    (rise, epoch(warm)..last.div_ceil(per_epoch), epoch(view.from))
                }
            }
        };
        let span = warmup.unwrap_or(Span::Steps(0));
        // The first view begins at step 0, where a course is a new one.
        let (mut rise_pace, mut fall_pace) = (Pace::new(&(0..0)), Pace::new(&(0..0)));
        let (mut reached, mut warm) = (u64::MAX, 0);
        for view in views.all() {
            reached = view.reach(reached, stages, span);
            let (rise, fall, now) = seen(view, reached);
            (rise_pace, fall_pace) = (rise_pace.moved(view.from, &rise), fall_pace.moved(now, &fall));
            warm = rise.end;
        }
        let stated = &alone.optim.schedule;
        let counts_epochs = matches!(stated.every.or(stated.timescale), Some(Span::Epochs(_)));
        let timeline = views.now.timeline.clone();
        Self {
            timeline,
            stages: stages.clone(),
            warm,
            warmup: rise_pace,
            decay: fall_pace,
            per,
            counts_epochs,
        }
    }

    fn place(&self, step: u64, begins: u64) -> Place {
        let epoch = |step| self.timeline.epoch(step, &self.stages);
        let (now, since, done) = match (self.per, self.counts_epochs) {
            (Per::Step, false) => (step - begins, step.saturating_sub(self.warm), step),
            (Per::Step, true) => (step - begins, self.epoch_steps_since_warmup(step), step),
            (Per::Epoch, _) => (epoch(step), epoch(step).saturating_sub(epoch(self.warm)), epoch(step)),
        };
        let warmup = (self.warmup.done(step) + 1.0, self.warmup.units);
        let warmup = (step < self.warm).then_some(warmup);
        Place { warmup, now, since, done: self.decay.done(done), units: self.decay.units }
    }

    /// Returns the steps since the warm-up, in epochs of the present length.
    fn epoch_steps_since_warmup(&self, step: u64) -> u64 {
        let (now, per_epoch) = self.timeline.epoch_steps(step, &self.stages);
        let (warm, length) = self.timeline.epoch_steps(self.warm, &self.stages);
        let warm = if length == per_epoch { warm } else { (warm * per_epoch).div_ceil(length) };
        now.saturating_sub(warm)
    }
}

/// Checks that a schedule of epochs has epochs of one length.
fn check_epochs(
    alone: &Recipe,
    timeline: &Timeline,
    stages: &Range<usize>,
    here: u64,
) -> Result<(), PlanError> {
    let stated = &alone.optim.schedule;
    let in_epochs = |span: &Span| matches!(span, Span::Epochs(_));
    let counts_epochs = (stated.per == Per::Epoch && stated.name != ScheduleName::Constant)
        || stated.every.iter().chain(&stated.timescale).any(in_epochs)
        || stated.milestones.iter().flatten().any(in_epochs);
    let other = stages.clone().map(|stage| timeline.last_of(stage).steps_per_epoch).find(|&of| of != here);
    match other.filter(|_| counts_epochs) {
        Some(there) => Err(PlanError::Epochs { here, there }),
        None => Ok(()),
    }
}
