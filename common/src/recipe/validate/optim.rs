//! Conditions between the settings of `[optim]`, and between `[optim]` and the run's length.

use toml::Value;

use super::super::schedules::{EVERY, MILESTONES, TIMESCALE};
use super::Checks;
use crate::recipe::{AtStageStart, Decay, General, OptimName, Per, Scaling, ScheduleName, Span};

impl Checks<'_> {
    pub(super) fn optim(&mut self) {
        let optim = &self.recipe.optim;
        let name = match optim.name {
            OptimName::AdamW | OptimName::Adam => None,
            OptimName::Sgd => Some("SGD"),
            OptimName::RmsProp => Some("RMSprop"),
            OptimName::Lion => Some("Lion"),
            OptimName::Muon => Some("Muon"),
        };
        if let Some(name) = name.filter(|_| !self.is_stated("optim.lr")) {
            let message = format!("missing; {name} has no default learning rate, so state one");
            self.add("optim.lr", message);
        }
        let clips = [
            ("optim.clip", optim.clip),
            ("optim.clip_value", optim.clip_value),
            ("optim.clip_adaptive", optim.clip_adaptive),
        ];
        let clips: Vec<&'static str> = clips.iter().filter_map(|(key, limit)| limit.map(|_| *key)).collect();
        if let [first, others @ ..] = clips.as_slice() {
            others
                .iter()
                .for_each(|key| self.add(key, format!("{first} is also set; remove one of the two")));
        }
        if optim.name == OptimName::Muon
            && (0..self.recipe.stages()).any(|stage| self.recipe.of_stage(stage).optim.lr == 0.0)
        {
            self.add("optim.lr", "Muon needs a learning rate above 0, which AdamW's follows; raise it");
        }
        if optim.nesterov == Some(true) && optim.momentum.is_none_or(|momentum| momentum == 0.0) {
            self.add("optim.nesterov", "Nesterov's method needs optim.momentum above 0");
        }
        if optim.scaling != Scaling::None && optim.reference_batch.is_none() {
            let rule = optim.scaling.as_str();
            let message =
                format!("{rule:?} needs optim.reference_batch, the batch for which optim.lr was stated");
            self.add("optim.scaling", message);
        } else if !self.recipe.learning_rate().is_finite() {
            self.add(
                "optim.lr",
                "the learning rate becomes infinite when it is scaled to the batch; lower it",
            );
        }
        // A stated decay of 0 may be one value of a search; only a default of 0 is an error.
        let no_decay = optim.weight_decay == Some(0.0) && !self.is_stated("optim.weight_decay");
        if optim.decay == Decay::Weights && no_decay {
            let message = format!(
                "this setting has no effect: optim.weight_decay is 0 by default for {:?}; set it, or remove this setting",
                optim.name.as_str()
            );
            self.add("optim.decay", message);
        }
        self.groups(self.stated.get("optim").and_then(|optim| optim.get("group")), "optim.group");
        self.schedule();
    }

    /// Checks that each group that is `stated` under `key` sets something.
    pub(super) fn groups(&mut self, stated: Option<&Value>, key: &str) {
        for (index, group) in stated.and_then(Value::as_array).into_iter().flatten().enumerate() {
            let key = format!("{key}[{index}]");
            // A stated factor of 1 has an effect: it keeps the group's parameters from a later group.
            let settings = ["lr_factor", "weight_decay", "betas", "eps", "muon", "clip_adaptive"];
            if settings.iter().all(|setting| group.get(setting).is_none()) {
                let message = "this group has no effect: it sets none of lr_factor, weight_decay, betas, eps, muon and clip_adaptive; add \
                               one, or remove the group";
                self.add(&key, message);
            }
            let name = self.recipe.optim.name;
            if self.recipe.optim.clip_adaptive.is_none() && group.get("clip_adaptive").is_some() {
                let message = "this setting has no effect: optim.clip_adaptive is not set; set it, or remove this setting";
                self.add(&format!("{key}.clip_adaptive"), message);
            }
            for (setting, is_taken) in [
                (
                    "betas",
                    matches!(name, OptimName::AdamW | OptimName::Adam | OptimName::Lion | OptimName::Muon),
                ),
                (
                    "eps",
                    matches!(name, OptimName::AdamW | OptimName::Adam | OptimName::RmsProp | OptimName::Muon),
                ),
                ("muon", name == OptimName::Muon),
            ] {
                if !is_taken && group.get(setting).is_some() {
                    let message =
                        format!("this setting has no effect: optim.name is {:?}; remove it", name.as_str());
                    self.add(&format!("{key}.{setting}"), message);
                }
            }
        }
    }

    fn schedule(&mut self) {
        let schedule = &self.recipe.optim.schedule;
        let lr = self.recipe.learning_rate();
        if let Some(min_lr) = schedule.min_lr.filter(|min_lr| *min_lr > lr) {
            let scaled = if lr == self.recipe.optim.lr { "" } else { " after scaling" };
            let message = format!("{min_lr} is above the learning rate, which is {lr}{scaled}; lower it");
            self.add("optim.schedule.min_lr", message);
        }
        if let Some(warmup) = schedule.warmup {
            if schedule.name == ScheduleName::OneCycle {
                self.add(
                    "optim.schedule.warmup",
                    "\"onecycle\" already has a rise; remove this setting, and set optim.schedule.rise for its length",
                );
            } else if let Some(run) = shorter_run(self.recipe, self.samples, warmup) {
                let message =
                    format!("a warm-up of {warmup} is longer than {run}; shorten it, or train for longer");
                self.add("optim.schedule.warmup", message);
            }
        }
        match schedule.name {
            ScheduleName::Step => self.changes(),
            ScheduleName::CosineRestarts if schedule.every.is_none() => {
                self.add(
                    EVERY,
                    "missing; state the length of the first cosine, as optim.schedule.every = \"10 epochs\"",
                );
            }
            ScheduleName::CosineRestarts | ScheduleName::InverseSqrt => self.whole_epochs(),
            ScheduleName::Exponential if schedule.gamma.is_none() => {
                let per = schedule.per.as_str();
                let message =
                    format!("missing; state the factor by which the learning rate changes in every {per}");
                self.add("optim.schedule.gamma", message);
            }
            _ => {}
        }
    }

    fn changes(&mut self) {
        let schedule = &self.recipe.optim.schedule;
        match (&schedule.every, &schedule.milestones) {
            (None, None) => self.add(
                EVERY,
                "missing; state when the learning rate changes, as optim.schedule.every = \"30 epochs\" or as \
                 optim.schedule.milestones = [\"30 epochs\", \"60 epochs\"]",
            ),
            (Some(_), Some(_)) => self.add(
                MILESTONES,
                "optim.schedule.every is also set; remove one of the two",
            ),
            _ => {}
        }
        self.whole_epochs();
        let times = schedule.milestones.as_deref().unwrap_or_default();
        let falls = times.windows(2).find(|pair| match pair {
            [Span::Steps(a), Span::Steps(b)] => a >= b,
            [Span::Epochs(a), Span::Epochs(b)] => a >= b,
            // The steps of an epoch are not known yet.
            _ => false,
        });
        if let Some([a, b]) = falls {
            let message =
                format!("{b} comes after {a} in the list; put the times in rising order, each once");
            self.add(MILESTONES, message);
        }
    }

    /// Checks that times are whole epochs, if the rate changes between epochs alone.
    fn whole_epochs(&mut self) {
        let schedule = &self.recipe.optim.schedule;
        let times = schedule.milestones.as_deref().unwrap_or_default();
        let is_whole = |span: &&Span| matches!(span, Span::Epochs(epochs) if epochs.fract() == 0.0);
        let all = [
            (EVERY, schedule.every.as_slice()),
            (MILESTONES, times),
            (TIMESCALE, schedule.timescale.as_slice()),
        ];
        for (key, spans) in all {
            if schedule.per == Per::Epoch
                && let Some(part) = spans.iter().find(|span| !is_whole(span))
            {
                if key == TIMESCALE && !self.is_stated(TIMESCALE) {
                    self.add(key, "missing; state it in whole epochs, as optim.schedule.per is \"epoch\"");
                    continue;
                }
                let message = format!(
                    "{part} is not a whole number of epochs, and optim.schedule.per is \"epoch\"; give whole epochs, or set \
                     optim.schedule.per = \"step\""
                );
                self.add(key, message);
            }
        }
    }
}

/// Returns the length, as text, that the schedule covers, if the recipe shows that `warmup` is longer.
fn shorter_run(recipe: &General, samples: Option<usize>, warmup: Span) -> Option<String> {
    let all: Vec<_> = (0..recipe.stages()).map(|number| recipe.of_stage(number)).collect();
    let shorter = |over: &[General], what: &str| {
        let length = shorter_than(over, samples, warmup)?;
        Some(format!("{what} of {length}"))
    };
    if recipe.stage.is_empty() {
        return shorter(&all, "the run");
    }
    recipe.stage.iter().zip(&all).find_map(|(stage, alone)| match stage.schedule {
        AtStageStart::Restart => shorter(std::slice::from_ref(alone), &format!("stage {:?}", stage.name)),
        AtStageStart::Continue => shorter(&all, "the run"),
    })
}

/// Returns the length of these stages, if the recipe shows that `warmup` is longer and there is a step.
fn shorter_than(stages: &[General], samples: Option<usize>, warmup: Span) -> Option<Span> {
    let rate = |stage: &General| Some(stage.train.steps_per_epoch(samples? as u64));
    let steps = |stage: &General| match rate(stage) {
        Some(rate) => Some(stage.train.total_steps(rate)),
        None => stage.train.steps,
    };
    let sum = |lengths: Option<Vec<u64>>| lengths.map(|all| all.into_iter().fold(0, u64::saturating_add));
    let run_steps = sum(stages.iter().map(steps).collect());
    let run_epochs = sum(stages.iter().map(|stage| stage.train.epochs).collect());
    // Steps of an epoch, if all stages have equally many.
    let first = stages.first().and_then(rate);
    let per_epoch = first.filter(|_| stages.iter().all(|stage| rate(stage) == first));
    let warmup_steps = match warmup {
        Span::Steps(steps) => Some(steps),
        Span::Epochs(_) => per_epoch.map(|per_epoch| warmup.steps(per_epoch)),
    };
    match (warmup, warmup_steps.zip(run_steps)) {
        (_, Some((warmup, steps))) => (steps > 0 && warmup > steps).then_some(Span::Steps(steps)),
        (Span::Epochs(warmup), None) => {
            let epochs = run_epochs.map(|epochs| epochs as f64)?;
            (warmup > epochs).then_some(Span::Epochs(epochs))
        }
        (Span::Steps(_), None) => None,
    }
}
