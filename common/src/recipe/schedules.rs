//! The schedules of the learning rate: what a recipe's settings depend on, declared once for each. Their rates are in
//! [`crate::schedule`].

use super::Per;
use super::kinds::{Kind, PART, RATE, Range, SPAN, SPAN_OR_NONE, SPANS, choice};
use crate::choices;
use crate::section;
use crate::units::Span;

choices! {
    /// The course of the learning rate after the warm-up.
    ScheduleName {
        Constant = "constant": "Stays.",
        Linear = "linear": "Falls in a straight line to `min_lr` at the end of the run.",
        Polynomial = "polynomial": "Falls to `min_lr` at the end of the run, as `power` of what is left of it.",
        Cosine = "cosine": "Falls along half a cosine to `min_lr` at the end of the run.",
        CosineRestarts = "cosine-restarts": "Falls along half a cosine to `min_lr`, again and again.",
        InverseSqrt = "inverse-sqrt": "Falls as 1 / sqrt(time).",
        Wsd = "wsd": "Stays, and falls to `min_lr` in the last part of the run.",
        Step = "step": "Is multiplied by `gamma` at given times.",
        Exponential = "exponential": "Is multiplied by `gamma` in every step or epoch.",
        OneCycle = "onecycle": "Rises along half a cosine, then falls along another to almost 0.",
    }
}

choices! {
    /// The course of the fall of `wsd`.
    FallShape {
        Linear = "linear": "A straight line.",
        Cosine = "cosine": "Half a cosine.",
        Sqrt = "sqrt": "1 - sqrt(part of the fall).",
    }
}

section! {
    /// `optim.schedule`
    Schedule "optim.schedule" {
        /// The course after the warm-up.
        name: ScheduleName = ScheduleName::Constant, choice(ScheduleName::NAMES), experiment;
        /// Time in which the learning rate rises to its full value; not with one-cycle, which has `rise`.
        warmup: Option<Span> = None, SPAN_OR_NONE, experiment;
        /// How often the rate changes after the warm-up.
        per: Per = Per::Step, choice(Per::NAMES), experiment;
        /// Linear, polynomial, cosine, cosine-restarts and wsd: the last learning rate; filled in (0).
        min_lr: Option<f64> = None, RATE, experiment;
        /// Step: the time between two changes, in place of `milestones`; cosine-restarts: the first cosine. Whole epochs with
        /// `per = "epoch"`.
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
        /// Polynomial: the power; filled in (1). PyTorch's PolynomialLR.
        power: Option<f64> = None, Kind::Number(Range::ABOVE_ZERO), experiment;
        /// Cosine-restarts: how many times as long each cosine is as the one before; filled in (1). PyTorch's T_mult.
        stretch: Option<usize> = None, Kind::Whole(1, 1 << 16), experiment;
        /// Inverse-sqrt: the time after which the rate has fallen by sqrt(2); filled in (the warm-up, else 10000 steps).
        timescale: Option<Span> = None, SPAN, experiment;
        /// Wsd: the part of the time after the warm-up in which the rate falls; filled in (0.2).
        fall: Option<f64> = None, PART, experiment;
        /// Wsd: the course of the fall; filled in (linear).
        shape: Option<FallShape> = None, choice(FallShape::NAMES), experiment;
    }
}

/// The time scale of transformers' `get_inverse_sqrt_schedule` without a warm-up.
const TIMESCALE_STEPS: u64 = 10_000;

/// The settings that only some schedules take.
pub(super) const SETTINGS: [&str; 12] =
    [MIN_LR, EVERY, MILESTONES, GAMMA, RISE, START, FINAL, POWER, STRETCH, TIMESCALE, FALL, SHAPE];
const MIN_LR: &str = "optim.schedule.min_lr";
pub(super) const EVERY: &str = "optim.schedule.every";
pub(super) const MILESTONES: &str = "optim.schedule.milestones";
const GAMMA: &str = "optim.schedule.gamma";
const RISE: &str = "optim.schedule.rise";
const START: &str = "optim.schedule.start_factor";
const FINAL: &str = "optim.schedule.final_factor";
const POWER: &str = "optim.schedule.power";
const STRETCH: &str = "optim.schedule.stretch";
pub(super) const TIMESCALE: &str = "optim.schedule.timescale";
const FALL: &str = "optim.schedule.fall";
const SHAPE: &str = "optim.schedule.shape";

impl ScheduleName {
    /// Returns those of [`SETTINGS`] that the schedule takes, and a section with the defaults of these.
    fn declaration(self) -> (&'static [&'static str], Schedule) {
        let none = Schedule::default();
        match self {
            Self::Constant => (&[], none),
            Self::Linear | Self::Cosine => (&[MIN_LR], Schedule { min_lr: Some(0.0), ..none }),
            Self::Polynomial => (&[MIN_LR, POWER], Schedule { min_lr: Some(0.0), power: Some(1.0), ..none }),
            Self::CosineRestarts => {
                (&[MIN_LR, EVERY, STRETCH], Schedule { min_lr: Some(0.0), stretch: Some(1), ..none })
            }
            Self::InverseSqrt => (&[TIMESCALE], none),
            Self::Wsd => {
                let (fall, shape) = (Some(0.2), Some(FallShape::Linear));
                (&[MIN_LR, FALL, SHAPE], Schedule { min_lr: Some(0.0), fall, shape, ..none })
            }
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

impl Schedule {
    /// Returns the time scale of `inverse-sqrt`.
    pub(crate) fn timescale(&self) -> Span {
        self.timescale
            .or(self.warmup.filter(|warmup| !warmup.is_zero()))
            .unwrap_or(Span::Steps(TIMESCALE_STEPS))
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
        power,
        stretch,
        timescale: _,
        fall,
        shape,
    } = usual;
    or(&mut schedule.min_lr, min_lr);
    or(&mut schedule.every, every);
    or(&mut schedule.milestones, milestones);
    or(&mut schedule.gamma, gamma);
    or(&mut schedule.rise, rise);
    or(&mut schedule.start_factor, start_factor);
    or(&mut schedule.final_factor, final_factor);
    or(&mut schedule.power, power);
    or(&mut schedule.stretch, stretch);
    or(&mut schedule.fall, fall);
    or(&mut schedule.shape, shape);
    if schedule.name == ScheduleName::InverseSqrt {
        schedule.timescale = Some(schedule.timescale());
    }
}
