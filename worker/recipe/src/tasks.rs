//! The tasks: what the checks of a recipe know of each, declared once.

use std::collections::BTreeSet;
use std::fmt;

use dtrain_common::recipe::hints::and;
use dtrain_common::recipe::kinds::PLANNED;

use super::kinds::IMPORTED;
use super::{Loss, ModelName, Target};

/// What the checks of a recipe know of a task.
#[derive(Debug, PartialEq, Eq)]
pub struct TaskFacts {
    /// The word of a recipe.
    pub name: &'static str,
    /// The learning targets of a sample. The first is the default, or tokens if the data is text and they are
    /// among them. `data.target` chooses if there are several.
    pub targets: &'static [Target],
    /// The network of a recipe that names none. It also takes the others with its target. None if `model.file` holds it.
    pub network: Option<ModelName>,
    /// The losses that `model.loss` takes for the main output, by target. The first is the default. A task that returns its loss
    /// takes those of outputs and fields by name.
    pub losses: &'static [(Target, &'static [&'static str])],
    /// Whether the network itself returns the loss.
    pub returns_loss: bool,
    /// Settings that apply only to tasks that list them, besides those that follow from the other facts.
    pub settings: &'static [&'static str],
    /// Whether a user's trainer decides the meaning of `[data]` and `[model]`, and takes `[custom]`.
    pub is_own: bool,
}

impl TaskFacts {
    const NONE: Self = Self {
        name: "",
        targets: &[],
        network: None,
        losses: &[],
        returns_loss: false,
        settings: &[],
        is_own: false,
    };
}

const OF_PIXELS: &[&str] = &["cross-entropy", "focal", "dice", "jaccard", "tversky", "boundary", "program"];
const OF_NUMBERS: &[&str] = &["mse", "l1", "huber", "smooth-l1", "quantile", "program"];

/// Every task, in the order in which messages list them: one class for each image; one class for each pixel; the next
/// token of a text; numbers for each image or each pixel; the loss that an exported program returns; a user's own.
const TASKS: &[TaskFacts] = &[
    TaskFacts {
        name: "classify",
        targets: &[Target::Class, Target::Classes],
        network: Some(ModelName::Resnet18),
        losses: &[
            (Target::Class, &["cross-entropy", "focal", "ordinal", "program"]),
            (Target::Classes, &["binary", "focal", "program"]),
        ],
        settings: &["data.mix", "data.mix_by", "model.figures"],
        ..TaskFacts::NONE
    },
    TaskFacts {
        name: "segment",
        targets: &[Target::Mask],
        network: Some(ModelName::Unet),
        losses: &[(Target::Mask, OF_PIXELS)],
        settings: &["model.figures"],
        ..TaskFacts::NONE
    },
    TaskFacts {
        name: "lm",
        targets: &[Target::Tokens],
        network: Some(ModelName::Gpt),
        settings: &["model.figures"],
        ..TaskFacts::NONE
    },
    TaskFacts {
        name: "regress",
        targets: &[Target::Vector, Target::Map, Target::Classes],
        losses: &[(Target::Vector, OF_NUMBERS), (Target::Map, OF_NUMBERS), (Target::Classes, OF_NUMBERS)],
        settings: &["data.mix", "data.mix_by", "data.normalize_targets", "model.figures"],
        ..TaskFacts::NONE
    },
    TaskFacts {
        name: "program",
        targets: &[Target::Class, Target::Mask, Target::Vector, Target::Map, Target::Tokens, Target::Classes],
        returns_loss: true,
        settings: &["data.episodes", "data.mix", "data.mix_by", "model.losses", "model.figures"],
        ..TaskFacts::NONE
    },
    TaskFacts { name: "custom", is_own: true, ..TaskFacts::NONE },
];

/// Tasks of other versions, and what became of them.
pub(super) const OTHER_TASKS: &[(&str, &str)] = &[
    ("cod", PLANNED),
    ("fgvc", PLANNED),
    ("elevation", PLANNED),
    ("few-shot", "is task = \"program\" with data.episodes"),
    ("reasoning-seg", PLANNED),
    ("torchscript", IMPORTED),
];

/// The learning task of a recipe.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Task(&'static TaskFacts);

impl Task {
    /// All tasks as a recipe writes them.
    pub const NAMES: &'static [&'static str] = &{
        let mut names = [""; TASKS.len()];
        let mut number = 0;
        while number < names.len() {
            names[number] = TASKS[number].name;
            number += 1;
        }
        names
    };

    /// Returns the task of this name.
    pub fn named(name: &str) -> Option<Self> {
        TASKS.iter().find(|facts| facts.name == name).map(Self)
    }

    /// Returns what the task is.
    pub fn facts(self) -> &'static TaskFacts {
        self.0
    }

    /// Returns the task as a recipe writes it.
    pub fn as_str(self) -> &'static str {
        self.0.name
    }

    /// Returns whether a recipe states this target when it is filled in: not the usual one of a task with a network, which once
    /// had no other.
    pub(super) fn states(self, target: Target) -> bool {
        self.chooses_target() && (self.0.network.is_none() || self.0.targets.first() != Some(&target))
    }

    /// Returns the names of the losses that `model.loss` takes; none if it has no effect.
    pub fn losses(self, target: Option<Target>) -> &'static [&'static str] {
        let found = self.0.losses.iter().find(|(of, _)| Some(*of) == target);
        found.map_or(&[], |(_, names)| names)
    }

    /// Returns the loss of a recipe that states none.
    pub(super) fn usual_loss(self, target: Option<Target>) -> Option<Loss> {
        self.losses(target).first().and_then(|name| Loss::word(name))
    }

    /// Returns whether the losses depend on the target.
    pub(super) fn losses_differ(self) -> bool {
        self.0.losses.windows(2).any(|pair| pair[0].1 != pair[1].1)
    }

    /// Returns whether `data.target` has a choice.
    pub(super) fn chooses_target(self) -> bool {
        self.0.targets.len() > 1
    }
}

/// Lists the tasks of which a fact is true, as a message names the owners of a setting.
pub(super) fn owners(is_owner: impl Fn(&TaskFacts) -> bool) -> String {
    let names: Vec<_> = TASKS.iter().filter(|facts| is_owner(facts)).map(|facts| facts.name).collect();
    and(&names)
}

/// Returns each setting that applies to some tasks only, with these tasks as a message names them.
pub(super) fn settings() -> impl Iterator<Item = (&'static str, String)> {
    let keys: BTreeSet<_> = TASKS.iter().flat_map(|facts| facts.settings).collect();
    keys.into_iter().map(|key| (*key, owners(|facts| facts.settings.contains(key))))
}

impl Target {
    /// Returns the names of the losses that take such a target. A user's own takes its inputs by name.
    pub fn losses(self) -> Vec<&'static str> {
        let all = TASKS.iter().flat_map(|facts| facts.losses).filter(|(of, _)| *of == self);
        all.flat_map(|(_, names)| *names)
            .filter(|name| **name != "program")
            .copied()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Task({:?})", self.0.name)
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0.name)
    }
}
