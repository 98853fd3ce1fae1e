//! What must hold between the settings of `[optim]`, and between them and the run's length.

use toml::{Table, Value};

use super::{Problem, Recipe, generated_samples, given};
use crate::recipe::{Decay, OptimName, Passage, Per, Scaling, ScheduleName, Span};

pub(super) fn check(recipe: &Recipe, table: &Table, problems: &mut Vec<Problem>) {
    let given = |key: &str| given(table, key);
    let optim = &recipe.optim;
    if optim.name == OptimName::Sgd && !given("optim.lr") {
        problems.push(Problem::at(
            "optim.lr",
            "missing; SGD has no usual learning rate, so state one",
        ));
    }
    if optim.nesterov == Some(true) && optim.momentum.is_none_or(|momentum| momentum == 0.0) {
        problems.push(Problem::at(
            "optim.nesterov",
            "Nesterov's method needs optim.momentum above 0",
        ));
    }
    if optim.scaling != Scaling::None && optim.reference_batch.is_none() {
        problems.push(Problem::at(
            "optim.scaling",
            format!(
                "{:?} needs optim.reference_batch, the batch for which optim.lr was stated",
                optim.scaling.to_string()
            ),
        ));
    } else if !recipe.learning_rate().is_finite() {
        problems.push(Problem::at(
            "optim.lr",
            "the learning rate becomes infinite when it is scaled to the batch",
        ));
    }
    // A decay of 0 that is stated is one of several that are tried; one that was never thought of is not.
    if optim.decay == Decay::Weights && optim.weight_decay == Some(0.0) && !given("optim.weight_decay") {
        problems.push(Problem::at(
            "optim.decay",
            format!(
                "there is nothing to decay by: optim.weight_decay is 0 for {:?} unless it is stated; state it, or remove \
                 this setting",
                optim.name.as_str()
            ),
        ));
    }
    let stated = table.get("optim").and_then(|optim| optim.get("group"));
    groups(optim.group.len(), stated, "optim.group", problems);
    schedule(recipe, problems);
}

/// Whether each of `count` groups sets something; `stated` is the list as it stands in the recipe, under `key`.
pub(super) fn groups(count: usize, stated: Option<&Value>, key: &str, problems: &mut Vec<Problem>) {
    for index in 0..count {
        let group = stated.and_then(|list| list.get(index)?.as_table());
        // A factor of 1 that is stated keeps the group's parameters from a later group.
        if group.is_some_and(|group| !group.contains_key("lr_factor") && !group.contains_key("weight_decay"))
        {
            problems.push(Problem::at(
                &format!("{key}[{index}]"),
                "this group has no effect: it sets neither lr_factor nor weight_decay; add one, or remove the group",
            ));
        }
    }
}

fn schedule(recipe: &Recipe, problems: &mut Vec<Problem>) {
    let schedule = &recipe.optim.schedule;
    if let Some(min_lr) = schedule.min_lr {
        let lr = recipe.learning_rate();
        if min_lr > lr {
            let scaled = if lr == recipe.optim.lr {
                ""
            } else {
                " after scaling"
            };
            problems.push(Problem::at(
                "optim.schedule.min_lr",
                format!("{min_lr} is above the learning rate, which is {lr}{scaled}"),
            ));
        }
    }
    match (schedule.name, schedule.warmup) {
        (ScheduleName::OneCycle, Some(_)) => problems.push(Problem::at(
            "optim.schedule.warmup",
            "\"onecycle\" rises by itself; remove this setting, and set optim.schedule.rise for another length of the rise",
        )),
        (_, Some(warmup)) => {
            if let Some(run) = shorter_run(recipe, warmup) {
                let message = format!("a warm-up of {warmup} is longer than {run}; shorten it, or train for longer");
                problems.push(Problem::at("optim.schedule.warmup", message));
            }
        }
        (_, None) => {}
    }
    match schedule.name {
        ScheduleName::Step => changes(recipe, problems),
        ScheduleName::Exponential if schedule.gamma.is_none() => problems.push(Problem::at(
            "optim.schedule.gamma",
            format!(
                "missing; state the factor by which the learning rate changes in every {}",
                schedule.per.as_str()
            ),
        )),
        _ => {}
    }
}

/// The times at which a step schedule moves.
fn changes(recipe: &Recipe, problems: &mut Vec<Problem>) {
    let schedule = &recipe.optim.schedule;
    let (every, milestones) = ("optim.schedule.every", "optim.schedule.milestones");
    match (&schedule.every, &schedule.milestones) {
        (None, None) => problems.push(Problem::at(
            every,
            "missing; state when the learning rate changes, as optim.schedule.every = \"30 epochs\" or as \
             optim.schedule.milestones = [\"30 epochs\", \"60 epochs\"]",
        )),
        (Some(_), Some(_)) => problems.push(Problem::at(
            milestones,
            "optim.schedule.every is stated too, and only one of them can be; remove one",
        )),
        _ => {}
    }
    let spans = |key, spans: &[Span], problems: &mut Vec<Problem>| {
        let whole = |span: &Span| matches!(span, Span::Epochs(epochs) if epochs.fract() == 0.0);
        if schedule.per == Per::Epoch
            && let Some(part) = spans.iter().find(|span| !whole(span))
        {
            let message = format!(
                "{part} is not a whole number of epochs, and optim.schedule.per is \"epoch\"; give whole epochs, or set \
                 optim.schedule.per = \"step\""
            );
            problems.push(Problem::at(key, message));
        }
    };
    spans(every, schedule.every.as_slice(), problems);
    let times = schedule.milestones.as_deref().unwrap_or_default();
    spans(milestones, times, problems);
    let falls = times.windows(2).find(|pair| match pair {
        [Span::Steps(a), Span::Steps(b)] => a >= b,
        [Span::Epochs(a), Span::Epochs(b)] => a >= b,
        // How many steps an epoch has is not known yet.
        _ => false,
    });
    if let Some([a, b]) = falls {
        let message = format!("{b} comes after {a} in the list; put the times in rising order, each once");
        problems.push(Problem::at(milestones, message));
    }
}

/// The length in words of the run, or of a stage whose schedule it is, when `warmup` is longer and that can be told without
/// looking at the data.
fn shorter_run(recipe: &Recipe, warmup: Span) -> Option<String> {
    if recipe.stage.is_empty() {
        let run = Lengths::of([recipe.clone()], generated_samples(recipe));
        return run.shorter_than(warmup).map(|run| format!("the run of {run}"));
    }
    let all: Vec<_> = (0..recipe.stages())
        .map(|number| recipe.of_stage(number))
        .collect();
    recipe.stage.iter().zip(&all).find_map(|(stage, alone)| {
        let (over, what) = match stage.schedule {
            Passage::Restart => (std::slice::from_ref(alone), format!("stage {:?}", stage.name)),
            Passage::Continue => (&all[..], "the run".to_owned()),
        };
        let length = Lengths::of(over.iter().cloned(), generated_samples(recipe));
        length
            .shorter_than(warmup)
            .map(|length| format!("{what} of {length}"))
    })
}

/// How long a run is in all, as far as the recipe alone says it.
struct Lengths {
    steps: Option<u64>,
    epochs: Option<u64>,
    /// Steps of an epoch, where all stages have as many.
    steps_per_epoch: Option<u64>,
}

impl Lengths {
    fn of(stages: impl IntoIterator<Item = Recipe>, samples: Option<usize>) -> Self {
        let mut all = Self {
            steps: Some(0),
            epochs: Some(0),
            steps_per_epoch: None,
        };
        let mut rates = Vec::new();
        for stage in stages {
            let train = &stage.train;
            let per_epoch = samples.map(|samples| train.steps_per_epoch(samples as u64));
            let steps = match per_epoch {
                Some(per_epoch) => Some(train.total_steps(per_epoch)),
                None => train.steps,
            };
            all.steps = all.steps.zip(steps).map(|(sum, steps)| sum.saturating_add(steps));
            all.epochs = all
                .epochs
                .zip(train.epochs)
                .map(|(sum, epochs)| sum.saturating_add(epochs));
            rates.push(per_epoch);
        }
        all.steps_per_epoch = match rates.split_first() {
            Some((first, rest)) if rest.iter().all(|rate| rate == first) => *first,
            _ => None,
        };
        all
    }

    /// The length, if the warm-up is longer. Of a run that takes no step at all another sentence tells.
    fn shorter_than(&self, warmup: Span) -> Option<Span> {
        let warmup_steps = match (warmup, self.steps_per_epoch) {
            (Span::Steps(steps), _) => Some(steps),
            (Span::Epochs(_), Some(per_epoch)) => Some(warmup.steps(per_epoch)),
            (Span::Epochs(_), None) => None,
        };
        match (warmup, warmup_steps.zip(self.steps)) {
            (_, Some((warmup, steps))) => (steps > 0 && warmup > steps).then_some(Span::Steps(steps)),
            (Span::Epochs(warmup), None) => {
                let epochs = self.epochs.map(|epochs| epochs as f64);
                epochs.filter(|epochs| warmup > *epochs).map(Span::Epochs)
            }
            (Span::Steps(_), None) => None,
        }
    }
}
