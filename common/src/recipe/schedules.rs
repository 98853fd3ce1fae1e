//! The schedules of the learning rate: what a recipe's settings depend on, declared once for each. Their rates are in
//! [`crate::schedule`].

use super::Per;
use super::kinds::{Kind, PART, PLANNED, RATE, Range, SPAN, SPAN_OR_NONE, SPANS, choice};
use crate::choices;
use crate::section;
use crate::units::Span;

choices! {
    /// The course of the learning rate after the warm-up.
    ScheduleName {
        Constant = "constant": "Stays.",
        Linear = "linear": "Falls in a straight line to `min_lr` at the end of the run.",
        Cosine = "cosine": "Falls along half a cosine to `min_lr` at the end of the run.",
        Step = "step": "Is multiplied by `gamma` at given times.",
        Exponential = "exponential": "Is multiplied by `gamma` in every step or epoch.",
        OneCycle = "onecycle": "Rises along half a cosine, then falls along another to almost 0.",
    }
}

section! {
    /// `optim.schedule`
    Schedule "optim.schedule" {
        /// The course after the warm-up.
        name: ScheduleName = ScheduleName::Constant, Kind::Choice(ScheduleName::NAMES, &[("polynomial", PLANNED)]), experiment;
        /// Time in which the learning rate rises to its full value; not with one-cycle, which has `rise`.
        warmup: Option<Span> = None, SPAN_OR_NONE, experiment;
        /// How often the rate changes after the warm-up.
        per: Per = Per::Step, choice(Per::NAMES), experiment;
        /// Linear and cosine: the last learning rate; filled in (0).
        min_lr: Option<f64> = None, RATE, experiment;
        /// Step: the time between two changes; whole epochs with `per = "epoch"`. In place of `milestones`.
        every: Option<Span> = None, SPAN, experiment;
        /// Step: the times of the changes, in rising order; whole epochs with `per = "epoch"`.
        milestones: Option<Vec<Span>> = None, SPANS, experiment;
        /// Step, exponential: the factor at each change; filled in for step (0.1).
        gamma: Option<f64> = None, Kind::Number(Range::ABOVE_ZERO), experiment;
        /// One-cycle: the part of the run in which the rate rises; filled in (0.3). PyTorch's pct_start.
        rise: Option<f64> = None, PART, experiment;
        /// One-cycle: the run begins at the learning rate divided by this; filled in (25). PyTorch's div_factor.
        start_factor: Option<f64> = None, Kind::Number(Range::AT_LEAST_ONE), experiment;
        /// One-cycle: the run ends at the first rate divided by this; filled in (1e4). PyTorch's final_div_factor.
        final_factor: Option<f64> = None, Kind::Number(Range::AT_LEAST_ONE), experiment;
    }
}

/// The settings that only some schedules take.
pub(super) const SETTINGS: [&str; 7] = [MIN_LR, EVERY, MILESTONES, GAMMA, RISE, START, FINAL];
const MIN_LR: &str = "optim.schedule.min_lr";
pub(super) const EVERY: &str = "optim.schedule.every";
pub(super) const MILESTONES: &str = "optim.schedule.milestones";
const GAMMA: &str = "optim.schedule.gamma";
const RISE: &str = "optim.schedule.rise";
const START: &str = "optim.schedule.start_factor";
const FINAL: &str = "optim.schedule.final_factor";

impl ScheduleName {
    /// Returns those of [`SETTINGS`] that the schedule takes, and a section with the defaults of these.
    fn declaration(self) -> (&'static [&'static str], Schedule) {
        let none = Schedule::default();
        match self {
            Self::Constant => (&[], none),
            Self::Linear | Self::Cosine => (&[MIN_LR], Schedule { min_lr: Some(0.0), ..none }),
            Self::Step => (&[EVERY, MILESTONES, GAMMA], Schedule { gamma: Some(0.1), ..none }),
            Self::Exponential => (&[GAMMA], none),
            Self::OneCycle => {
                let (rise, start_factor, final_factor) = (Some(0.3), Some(25.0), Some(1e4));
                (&[RISE, START, FINAL], Schedule { rise, start_factor, final_factor, ..none })
            }
        }
    }

    /// Returns whether the schedule takes one of [`SETTINGS`].
    pub(super) fn takes(self, key: &str) -> bool {
        self.declaration().0.contains(&key)
    }
}

/// Fills in the settings of a schedule.
pub(super) fn fill(schedule: &mut Schedule) {
    fn or<T>(setting: &mut Option<T>, usual: Option<T>) {
        *setting = setting.take().or(usual);
    }
    // Every setting is named, so that the compiler asks about a new one.
    let (_, usual) = schedule.name.declaration();
    let Schedule {
        name: _,
        warmup: _,
        per: _,
        min_lr,
        every,
        milestones,
        gamma,
        rise,
        start_factor,
        final_factor,
    } = usual;
    or(&mut schedule.min_lr, min_lr);
    or(&mut schedule.every, every);
    or(&mut schedule.milestones, milestones);
    or(&mut schedule.gamma, gamma);
    or(&mut schedule.rise, rise);
    or(&mut schedule.start_factor, start_factor);
    or(&mut schedule.final_factor, final_factor);
}
