//! The schedule that a recipe states.

use super::{Decay, Per, Schedule};
use crate::recipe::{Recipe, ScheduleName, Span};

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
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn schedule(stated: &str) -> Schedule {
        let text = format!(
            "task = \"classify\"\n[data]\nkind = \"generated\"\n[train]\nepochs = 10\n[optim]\nlr = 0.5\nschedule = {stated}"
        );
        Schedule::of(&Recipe::parse("test", &text, &[]).unwrap(), 3, 20, 200)
    }

    #[test]
    fn every_name_has_its_course() {
        let decay = |stated| schedule(stated).decay;
        assert_eq!(decay("{ name = \"constant\" }"), Decay::Constant);
        assert_eq!(decay("{ name = \"linear\", min_lr = 0.1 }"), Decay::Linear { min_lr: 0.1 });
        assert_eq!(decay("{ name = \"cosine\" }"), Decay::Cosine { min_lr: 0.0 });
        assert_eq!(decay("{ name = \"step\", every = \"3 epochs\" }"), Decay::Step { every: 60, gamma: 0.1 });
        assert_eq!(
            decay("{ name = \"step\", milestones = [\"30 steps\", \"4 epochs\"], gamma = 0.2 }"),
            Decay::MultiStep { milestones: vec![30, 80], gamma: 0.2 }
        );
        assert_eq!(decay("{ name = \"exponential\", gamma = 0.9 }"), Decay::Exponential { gamma: 0.9 });
        assert!(matches!(decay("{ name = \"onecycle\" }"), Decay::OneCycle { pct_start: 0.3, .. }));
    }

    #[test]
    fn per_epoch_lengths_are_counted_in_epochs() {
        let schedule = schedule("{ name = \"step\", every = \"3 epochs\", per = \"epoch\" }");
        assert_eq!((schedule.per, &schedule.decay), (Per::Epoch, &Decay::Step { every: 3, gamma: 0.1 }));
        assert_eq!((schedule.peak, schedule.warmup_steps, schedule.total_steps), (0.5, 3, 200));
    }
}
