//! Learning-rate schedules: the rate of every optimizer step, a pure function of its number.
//!
//! There is no state. A rate depends only on the step's number within the run, so a resume, another optimizer
//! or another stage does not change it.

use std::f64::consts::PI;

pub use crate::recipe::Per;
use crate::recipe::{FallShape, General, ScheduleName, Span};

#[cfg(test)]
mod tests;

/// A learning rate over the steps of a run.
///
/// After the warm-up the rate follows `decay`, counted in units of `per`. Unit 0 is the first step after the
/// warm-up or, per epoch, the epoch in which the warm-up ends. In torch: a `SequentialLR` of a `LinearLR` and
/// the scheduler that each [`Decay`] names, with the milestone `warmup_steps`.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// The rate after warm-up; for one-cycle the highest rate.
    pub peak: f64,
    /// Steps of linear warm-up. The rate of step t is `peak (t + 1) / warmup`: the first step already trains,
    /// and the last one runs at the peak. The warm-up counts steps for any `per` (Goyal et al. 2017, arXiv
    /// 1706.02677). It must be 0 for [`Decay::OneCycle`], which has its own rise; callers check that.
    pub warmup_steps: u64,
    /// Steps of the whole run. After them the rate stays at its last value.
    pub total_steps: u64,
    /// Steps of one epoch; only `Per::Epoch` uses it.
    pub steps_per_epoch: u64,
    /// How often the rate changes after the warm-up.
    pub per: Per,
    pub decay: Decay,
}

/// The rate after warm-up. u counts units from the warm-up's end, and n is their number until the run's end.
#[derive(Debug, Clone, PartialEq)]
pub enum Decay {
    Constant,
    /// A line from the peak to `min_lr`, which it would reach at u = n: torch's `LinearLR(start_factor=1,
    /// end_factor=min_lr/peak, total_iters=n)`; used by Devlin et al. 2019, arXiv 1810.04805.
    Linear {
        min_lr: f64,
    },
    /// Half a cosine down to `min_lr` (Loshchilov and Hutter 2017, arXiv 1608.03983, without restarts). Unit
    /// u runs at the cosine's point u / n, as in torch's `CosineAnnealingLR(T_max=n, eta_min=min_lr)`.
    Cosine {
        min_lr: f64,
    },
    /// Down to `min_lr` as a power of what is left: torch's `PolynomialLR(total_iters=n, power=power)` for `min_lr` 0.
    Polynomial {
        min_lr: f64,
        power: f64,
    },
    /// Half a cosine down to `min_lr`, again and again (Loshchilov and Hutter 2017): torch's
    /// `CosineAnnealingWarmRestarts(T_0=first, T_mult=stretch, eta_min=min_lr)`.
    Restarts {
        min_lr: f64,
        /// Units of the first cosine; 0 counts as 1.
        first: u64,
        /// The length of a cosine as a multiple of the one before; 0 counts as 1.
        stretch: u64,
    },
    /// As 1 / sqrt(u + timescale), from the peak on (Vaswani et al. 2017, arXiv 1706.03762): transformers'
    /// `get_inverse_sqrt_schedule`, whose time scale is the warm-up.
    InverseSqrt {
        /// Units; 0 counts as 1.
        timescale: u64,
    },
    /// At the peak until the last part of the time after the warm-up, and then down to `min_lr` (Hu et al. 2024, arXiv
    /// 2404.06395): transformers' `get_wsd_schedule`.
    Stable {
        min_lr: f64,
        /// The part of the units in which the rate falls.
        fall: f64,
        shape: FallShape,
    },
    /// Times `gamma` after every `every` units since the warm-up: torch's `StepLR`.
    Step {
        /// Units between two drops; 0 counts as 1.
        every: u64,
        gamma: f64,
    },
    /// Times `gamma` at each of `milestones`: torch's `MultiStepLR`. Milestones count from the run's start,
    /// as papers state them, not from the warm-up's end. One within the warm-up takes effect at its end.
    MultiStep {
        /// The first unit of each lower rate, in any order; a repeated one counts twice.
        milestones: Vec<u64>,
        gamma: f64,
    },
    /// Times `gamma` with every unit: torch's `ExponentialLR`.
    Exponential {
        gamma: f64,
    },
    /// Up to the peak and down again along half cosines (Smith and Topin 2018, arXiv 1708.07120): torch's
    /// `OneCycleLR(max_lr=peak, anneal_strategy="cos", three_phase=False, cycle_momentum=False)`. Only the
    /// rate changes; torch by default also cycles momentum or betas. Unlike torch's, it may count epochs.
    OneCycle {
        /// The share of the units that rise, from 0 to 1; torch's default is 0.3.
        pct_start: f64,
        /// The first rate is `peak / div_factor`; torch's default is 25.
        div_factor: f64,
        /// The last rate is the first rate divided by this; torch's default is 1e4.
        final_div_factor: f64,
    },
}

impl Schedule {
    /// Makes the recipe's schedule for a run of `total_steps`. A loaded recipe has its defaults filled in;
    /// the defaults here are torch's.
    pub fn of(recipe: &General, warmup_steps: u64, steps_per_epoch: u64, total_steps: u64) -> Self {
        let stated = &recipe.optim.schedule;
        let per = stated.per;
        let units = |span: Span| match per {
            Per::Step => span.steps(steps_per_epoch),
            // Whole epochs; the recipe's checks guarantee it.
            Per::Epoch => span.steps(steps_per_epoch) / steps_per_epoch.max(1),
        };
        let min_lr = stated.min_lr.unwrap_or(0.0);
        let gamma = stated.gamma.unwrap_or(0.1);
        let decay = match (stated.name, &stated.milestones) {
            (ScheduleName::Constant, _) => Decay::Constant,
            (ScheduleName::Linear, _) => Decay::Linear { min_lr },
            (ScheduleName::Cosine, _) => Decay::Cosine { min_lr },
            (ScheduleName::Polynomial, _) => Decay::Polynomial { min_lr, power: stated.power.unwrap_or(1.0) },
            (ScheduleName::CosineRestarts, _) => Decay::Restarts {
                min_lr,
                first: stated.every.map_or(1, units),
                stretch: stated.stretch.unwrap_or(1) as u64,
            },
            (ScheduleName::InverseSqrt, _) => Decay::InverseSqrt { timescale: units(stated.timescale()) },
            (ScheduleName::Wsd, _) => Decay::Stable {
                min_lr,
                fall: stated.fall.unwrap_or(0.2),
                shape: stated.shape.unwrap_or(FallShape::Linear),
            },
            (ScheduleName::Step, Some(milestones)) => {
                Decay::MultiStep { milestones: milestones.iter().map(|&span| units(span)).collect(), gamma }
            }
            (ScheduleName::Step, None) => Decay::Step { every: stated.every.map_or(1, units), gamma },
            (ScheduleName::Exponential, _) => Decay::Exponential { gamma },
            (ScheduleName::OneCycle, _) => Decay::OneCycle {
                pct_start: stated.rise.unwrap_or(0.3),
                div_factor: stated.start_factor.unwrap_or(25.0),
                final_div_factor: stated.final_factor.unwrap_or(1e4),
            },
        };
        Self { peak: recipe.learning_rate(), warmup_steps, total_steps, steps_per_epoch, per, decay }
    }

    /// Returns the learning rate of optimizer step `step`, counted from 0 over the whole run.
    pub fn lr(&self, step: u64) -> f64 {
        self.rate(&self.place(step))
    }

    /// Returns the place of a step.
    fn place(&self, step: u64) -> Place {
        let is_warm = step >= self.warmup_steps;
        let now = self.unit(step.min(self.total_steps.max(self.warmup_steps)));
        let first = self.unit(self.warmup_steps);
        let since = now.saturating_sub(first);
        let units = self.units().saturating_sub(first).max(1);
        Place {
            warmup: (!is_warm).then(|| ((step + 1) as f64, self.warmup_steps as f64)),
            now,
            since,
            done: since.min(units) as f64,
            units: units as f64,
        }
    }

    /// Returns the learning rate at a place. [`Schedule::lr`] finds the place in a run whose epochs all have as many steps.
    pub fn rate(&self, place: &Place) -> f64 {
        let Place { now, since, done, units, .. } = *place;
        if let Some((steps, of)) = place.warmup {
            return self.peak * steps / of;
        }
        let part = done / units;
        match &self.decay {
            Decay::Constant => self.peak,
            Decay::Linear { min_lr } => self.peak + (min_lr - self.peak) * part,
            Decay::Cosine { min_lr } => cosine(self.peak, *min_lr, part),
            Decay::Polynomial { min_lr, power } => min_lr + (self.peak - min_lr) * (1.0 - part).powf(*power),
            Decay::Restarts { min_lr, first, stretch } => {
                let (within, length) = cycle(since, (*first).max(1), (*stretch).max(1));
                cosine(self.peak, *min_lr, within as f64 / length as f64)
            }
            Decay::InverseSqrt { timescale } => {
                let timescale = (*timescale).max(1) as f64;
                self.peak / ((since as f64 + timescale) / timescale).sqrt()
            }
            Decay::Stable { min_lr, fall, shape } => {
                let fallen = share((part - (1.0 - fall)).max(0.0), *fall).min(1.0);
                let left = match shape {
                    FallShape::Linear => 1.0 - fallen,
                    FallShape::Cosine => cosine(1.0, 0.0, fallen),
                    FallShape::Sqrt => 1.0 - fallen.sqrt(),
                };
                min_lr + (self.peak - min_lr) * left
            }
            Decay::Step { every, gamma } => self.peak * power(*gamma, since / (*every).max(1)),
            Decay::MultiStep { milestones, gamma } => {
                let passed = milestones.iter().filter(|&&milestone| milestone <= now).count();
                self.peak * power(*gamma, passed as u64)
            }
            Decay::Exponential { gamma } => self.peak * power(*gamma, since),
            Decay::OneCycle { pct_start, div_factor, final_div_factor } => {
                let start = self.peak / div_factor;
                let end = start / final_div_factor;
                let last = units - 1.0;
                let turn = pct_start * units - 1.0;
                let now = done.min(last);
                if now <= turn {
                    cosine(start, self.peak, share(now, turn))
                } else {
                    cosine(self.peak, end, share(now - turn, last - turn))
                }
            }
        }
    }

    /// Returns the unit of a step.
    fn unit(&self, step: u64) -> u64 {
        match self.per {
            Per::Step => step,
            Per::Epoch => step / self.steps_per_epoch.max(1),
        }
    }

    /// Returns the units of the whole run; a short last epoch counts as one.
    fn units(&self) -> u64 {
        match self.per {
            Per::Step => self.total_steps,
            Per::Epoch => self.total_steps.div_ceil(self.steps_per_epoch.max(1)),
        }
    }
}

/// Where a step stands on a schedule, in units of its `per`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Place {
    /// During the warm-up, its steps up to and with this one, and all its steps.
    pub warmup: Option<(f64, f64)>,
    /// Units since the run's start.
    pub now: u64,
    /// Units since the warm-up's end.
    pub since: u64,
    /// The same as a position between the warm-up's end and the run's: at most `units`.
    pub done: f64,
    /// Units from the warm-up's end to the run's; above 0.
    pub units: f64,
}

/// Returns half a cosine from `from` at `part` = 0 to `to` at 1.
fn cosine(from: f64, to: f64, part: f64) -> f64 {
    to + (from - to) * (1.0 + (PI * part).cos()) / 2.0
}

/// Returns the place of a unit within its cycle, and the cycle's length.
fn cycle(unit: u64, first: u64, stretch: u64) -> (u64, u64) {
    if stretch == 1 {
        return (unit % first, first);
    }
    let (mut begin, mut length) = (0u64, first);
    while unit - begin >= length {
        begin += length;
        length = length.saturating_mul(stretch);
    }
    (unit - begin, length)
}

/// Returns `part / whole`; a phase of length 0 is over (torch would divide by zero).
fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 1.0 }
}

fn power(gamma: f64, exponent: u64) -> f64 {
    gamma.powf(exponent as f64)
}
