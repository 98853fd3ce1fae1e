//! What must hold between the settings of `[data]`.

use super::super::hints::quoted;
use super::{DataKind, Problem, Recipe, Task};
use crate::recipe::{Augment, Masks, Resize};

/// Whether the task takes this kind of data and this augmentation.
pub(super) fn pairing(recipe: &Recipe, problems: &mut Vec<Problem>) {
    let (task, kind, augment) = (recipe.task, recipe.data.kind, recipe.data.augment);
    let lm = task == Task::Lm;
    let kinds = if lm {
        [DataKind::Text, DataKind::Generated]
    } else {
        [DataKind::Folder, DataKind::Generated]
    };
    if !kinds.contains(&kind) {
        problems.push(Problem::at(
            "data.kind",
            format!(
                "task = {:?} takes the kinds {}, not {:?}",
                task.as_str(),
                quoted(&kinds.map(DataKind::as_str)),
                kind.as_str()
            ),
        ));
    }
    if augment != Augment::None && lm != (augment == Augment::Shift) {
        let takes = Augment::NAMES
            .iter()
            .copied()
            .filter(|name| *name == "none" || lm == (*name == Augment::Shift.as_str()));
        problems.push(Problem::at(
            "data.augment",
            format!(
                "task = {:?} takes {}, not {:?}",
                task.as_str(),
                quoted(&takes.collect::<Vec<_>>()),
                augment.as_str()
            ),
        ));
    }
}

pub(super) fn check(recipe: &Recipe, given: &dyn Fn(&str) -> bool, problems: &mut Vec<Problem>) {
    let data = &recipe.data;
    let missing_root = match data.kind {
        _ if data.root.is_some() => None,
        DataKind::Folder => Some("missing; name the folder that holds the train and test folders"),
        DataKind::Text => Some("missing; name a text file (.txt) or a folder of them"),
        DataKind::Generated => None,
    };
    if let Some(missing) = missing_root {
        problems.push(Problem::at(
            "data.root",
            format!("{missing}, or set data.kind = \"generated\""),
        ));
    }
    if recipe.task != Task::Lm {
        channels(recipe, given, problems);
    }
    if recipe.task == Task::Segment && data.kind == DataKind::Folder {
        masks(recipe, given, problems);
    }
}

fn channels(recipe: &Recipe, given: &dyn Fn(&str) -> bool, problems: &mut Vec<Problem>) {
    let data = &recipe.data;
    for (key, count) in [("data.mean", data.mean.len()), ("data.std", data.std.len())] {
        if count == data.channels {
            continue;
        }
        let remedy = if given("data.channels") {
            "give as many numbers as there are channels".into()
        } else {
            format!("give as many numbers as there are channels, or set data.channels = {count}")
        };
        problems.push(Problem::at(
            key,
            format!(
                "the list has {count} numbers and data.channels is {}; {remedy}",
                data.channels
            ),
        ));
    }
    if data.kind == DataKind::Generated && data.channels != 3 {
        problems.push(Problem::at(
            "data.channels",
            format!(
                "generated images have 3 channels, not {}; remove the setting",
                data.channels
            ),
        ));
    }
}

fn masks(recipe: &Recipe, given: &dyn Fn(&str) -> bool, problems: &mut Vec<Problem>) {
    let data = &recipe.data;
    match data.masks {
        Masks::Index if !given("data.classes") => problems.push(Problem::at(
            "data.classes",
            "missing; state how many classes the masks tell apart, without the value of data.ignore",
        )),
        Masks::Binary if data.classes != 2 => problems.push(Problem::at(
            "data.classes",
            format!(
                "binary masks have 2 classes, not {}; remove the setting, or set data.masks = \"index\"",
                data.classes
            ),
        )),
        _ => {}
    }
    for (images, masks, key) in [
        (&data.train, &data.train_masks, "data.train_masks"),
        (&data.test, &data.test_masks, "data.test_masks"),
    ] {
        if images == masks {
            problems.push(Problem::at(
                key,
                format!("{masks:?} is the folder of the images; masks lie in a folder of their own"),
            ));
        }
    }
}

/// The size of the network's input where the recipe says it.
pub(super) fn image_size(recipe: &Recipe) -> Option<usize> {
    let data = &recipe.data;
    let own = data.kind == DataKind::Folder && data.resize == Resize::None;
    (!own).then_some(data.image_size)
}
