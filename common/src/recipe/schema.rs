//! Every key of a recipe.

use super::keys::{Key, Kind, Section};
use super::{Checkpoint, Data, Ema, Log, Memory, Model, Optim, Precision, Reduce, Stage, Task, Test, Train};

const fn section<T: Section>(name: &'static str) -> Key {
    let kind = Kind::Section(T::KEYS);
    Key { name, kind }
}

/// Tasks that a later version will have.
const PLANNED: &[&str] = &["cod", "fgvc", "elevation", "few-shot", "reasoning-seg"];

pub(super) const RECIPE: &[Key] = &[
    Key {
        name: "task",
        kind: Kind::Choice(Task::NAMES, PLANNED),
    },
    section::<Data>("data"),
    section::<Model>("model"),
    section::<Train>("train"),
    section::<Optim>("optim"),
    section::<Precision>("precision"),
    section::<Memory>("memory"),
    section::<Reduce>("reduce"),
    section::<Ema>("ema"),
    section::<Checkpoint>("checkpoint"),
    section::<Test>("test"),
    section::<Log>("log"),
    Key {
        name: "custom",
        kind: Kind::Free,
    },
    Key {
        name: "stage",
        kind: Kind::Sections(Stage::KEYS, 1),
    },
];
