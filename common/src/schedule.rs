//! Learning-rate schedules: the rate of every optimizer step, a pure function of its number.
//!
//! There is no state. A run that was resumed, changed its optimizer or entered another stage has the rates of one that did
//! not, since a rate depends on the step's number within the run alone.

use std::f64::consts::PI;

pub use crate::recipe::Per;
use crate::recipe::{Recipe, ScheduleName, Span};

#[cfg(test)]
mod tests;

/// A learning rate over the steps of a run.
///
/// After the warm-up the rate follows `decay`, counted in units of `per`: unit 0 is the first step after the warm-up or,
/// per epoch, the epoch in which the warm-up ends. What torch runs as a `SequentialLR` of a `LinearLR` and the scheduler
/// that each [`Decay`] names, with the milestone `warmup_steps`.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// The rate after warm-up; the highest of a one-cycle.
    pub peak: f64,
    /// Steps of linear warm-up; the rate of step t is `peak (t + 1) / warmup`, so the first step already moves and the
    /// last of them runs at the peak. The warm-up moves with every step, whatever `per` says (Goyal et al. 2017, arXiv
    /// 1706.02677). [`Decay::OneCycle`] brings its own rise; whoever builds a schedule refuses to give it a second one.
    pub warmup_steps: u64,
    /// Steps of the whole run. Beyond them the rate stays where it is at that number.
    pub total_steps: u64,
    /// Steps of one epoch; only `Per::Epoch` looks at it.
    pub steps_per_epoch: u64,
    /// When the rate moves after the warm-up.
    pub per: Per,
    pub decay: Decay,
}

/// The course of the rate after warm-up; u counts units from the warm-up's end and n is their number up to the run's end.
#[derive(Debug, Clone, PartialEq)]
pub enum Decay {
    Constant,
    /// A line from the peak to `min_lr`, which it would reach at u = n: torch's `LinearLR(start_factor=1,
    /// end_factor=min_lr/peak, total_iters=n)`; used by Devlin et al. 2019, arXiv 1810.04805.
    Linear {
        min_lr: f64,
    },
    /// Half a cosine down to `min_lr` (Loshchilov and Hutter 2017, arXiv 1608.03983, without restarts); unit u of n runs
    /// at the cosine's point u / n, as torch's `CosineAnnealingLR(T_max=n, eta_min=min_lr)`.
    Cosine {
        min_lr: f64,
    },
    /// Times `gamma` after every `every` units since the warm-up: torch's `StepLR`.
    Step {
        /// Units between two drops; 0 counts as 1.
        every: u64,
        gamma: f64,
    },
    /// Times `gamma` at each of `milestones`: torch's `MultiStepLR`. These are places in the run, counted from its
    /// beginning and not from the warm-up's end, as papers state them; one within the warm-up takes effect at its end.
    MultiStep {
        /// The first unit of each lower rate, in any order; one named twice counts twice.
        milestones: Vec<u64>,
        gamma: f64,
    },
    /// Times `gamma` with every unit: torch's `ExponentialLR`.
    Exponential {
        gamma: f64,
    },
    /// Up to the peak and down again along half cosines (Smith and Topin 2018, arXiv 1708.07120): torch's `OneCycleLR(
    /// max_lr=peak, anneal_strategy="cos", three_phase=False, cycle_momentum=False)`. Only the rate moves; momentum and
    /// betas stay, where torch by default would cycle them too. Unlike torch's, it may be counted in epochs.
    OneCycle {
        /// The share of the units that rise, from 0 to 1; torch's default is 0.3.
        pct_start: f64,
        /// It begins at `peak / div_factor`; torch's default is 25.
        div_factor: f64,
        /// It ends at the beginning divided by this; torch's default is 1e4.
        final_div_factor: f64,
    },
}

impl Schedule {
    /// The recipe's schedule for a run of so many steps. A loaded recipe has the defaults of its schedule filled in; those
    /// here are torch's.
    pub fn of(recipe: &Recipe, warmup_steps: u64, steps_per_epoch: u64, total_steps: u64) -> Self {
        let stated = &recipe.optim.schedule;
        let per = stated.per;
        let units = |span: Span| match per {
            Per::Step => span.steps(steps_per_epoch),
            // Whole epochs, or the recipe would have been refused.
            Per::Epoch => span.steps(steps_per_epoch) / steps_per_epoch.max(1),
        };
        let min_lr = stated.min_lr.unwrap_or(0.0);
        let gamma = stated.gamma.unwrap_or(0.1);
        let decay = match (stated.name, &stated.milestones) {
            (ScheduleName::Constant, _) => Decay::Constant,
            (ScheduleName::Linear, _) => Decay::Linear { min_lr },
            (ScheduleName::Cosine, _) => Decay::Cosine { min_lr },
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

    /// The learning rate of optimizer step `step`, counted from 0 over the whole run. Past the end the last value stays.
    pub fn lr(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.peak * (step + 1) as f64 / self.warmup_steps as f64;
        }
        let now = self.unit(step.min(self.total_steps.max(self.warmup_steps)));
        let first = self.unit(self.warmup_steps);
        let (done, units) = (now - first, self.units().saturating_sub(first).max(1));
        let part = done.min(units) as f64 / units as f64;
        match &self.decay {
            Decay::Constant => self.peak,
            Decay::Linear { min_lr } => self.peak + (min_lr - self.peak) * part,
            Decay::Cosine { min_lr } => cosine(self.peak, *min_lr, part),
            Decay::Step { every, gamma } => self.peak * power(*gamma, done / (*every).max(1)),
            Decay::MultiStep { milestones, gamma } => {
                let passed = milestones.iter().filter(|&&milestone| milestone <= now).count();
                self.peak * power(*gamma, passed as u64)
            }
            Decay::Exponential { gamma } => self.peak * power(*gamma, done),
            Decay::OneCycle { pct_start, div_factor, final_div_factor } => {
                let start = self.peak / div_factor;
                let end = start / final_div_factor;
                let last = (units - 1) as f64;
                let turn = pct_start * units as f64 - 1.0;
                let now = (done as f64).min(last);
                if now <= turn {
                    cosine(start, self.peak, share(now, turn))
                } else {
                    cosine(self.peak, end, share(now - turn, last - turn))
                }
            }
        }
    }

    /// The unit in which a step lies.
    fn unit(&self, step: u64) -> u64 {
        match self.per {
            Per::Step => step,
            Per::Epoch => step / self.steps_per_epoch.max(1),
        }
    }

    /// Units of the whole run; a last epoch that is cut short is one.
    fn units(&self) -> u64 {
        match self.per {
            Per::Step => self.total_steps,
            Per::Epoch => self.total_steps.div_ceil(self.steps_per_epoch.max(1)),
        }
    }
}

/// Half a cosine from `from` at `part` = 0 to `to` at 1.
fn cosine(from: f64, to: f64, part: f64) -> f64 {
    to + (from - to) * (1.0 + (PI * part).cos()) / 2.0
}

/// `part / whole`; a phase of no length is over (where torch would divide by zero).
fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 1.0 }
}

/// `gamma` to a whole power.
fn power(gamma: f64, exponent: u64) -> f64 {
    gamma.powf(exponent as f64)
}
