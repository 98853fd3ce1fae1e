//! What must hold between the settings of `[model]`, and between them and the data.

use super::super::hints::quoted;
use super::data::image_size;
use super::{Problem, Recipe, Task};
use crate::recipe::ModelName;

/// The networks of a task; none where a file holds it.
fn networks(task: Task) -> Vec<&'static str> {
    let of = |test: &dyn Fn(&str) -> bool| {
        ModelName::NAMES
            .iter()
            .copied()
            .filter(|name| test(name))
            .collect()
    };
    let (unet, gpt) = (ModelName::Unet.as_str(), ModelName::Gpt.as_str());
    match task {
        Task::Classify => of(&|name| name != unet && name != gpt),
        Task::Segment => vec![unet],
        Task::Lm => vec![gpt],
        Task::Torchscript | Task::Custom => Vec::new(),
    }
}

/// Whether the task takes this network.
pub(super) fn pairing(recipe: &Recipe, problems: &mut Vec<Problem>) {
    let takes = networks(recipe.task);
    if let Some(name) = recipe.model.name
        && !takes.is_empty()
        && !takes.contains(&name.as_str())
    {
        let message = format!(
            "task = {:?} takes {}, not {:?}",
            recipe.task.as_str(),
            quoted(&takes),
            name.as_str()
        );
        problems.push(Problem::at("model.name", message));
    }
}

pub(super) fn check(recipe: &Recipe, given: &dyn Fn(&str) -> bool, problems: &mut Vec<Problem>) {
    if recipe.task == Task::Torchscript && recipe.model.file.is_none() {
        problems.push(Problem::at(
            "model.file",
            "missing; name the file of a module that torch.jit.script made and save() wrote",
        ));
    }
    match recipe.model.name {
        Some(ModelName::Vit) => {
            heads(recipe, given, problems);
            patch(recipe, given, problems);
        }
        Some(ModelName::Gpt) => heads(recipe, given, problems),
        Some(ModelName::Unet) => levels(recipe, given, problems),
        _ => {}
    }
}

/// Of two keys that do not fit the first that the recipe states: the one to look at.
fn stated<'a>(keys: [&'a str; 2], given: &dyn Fn(&str) -> bool) -> &'a str {
    let [first, second] = keys;
    if given(first) || !given(second) {
        first
    } else {
        second
    }
}

fn heads(recipe: &Recipe, given: &dyn Fn(&str) -> bool, problems: &mut Vec<Problem>) {
    let (Some(width), Some(heads)) = (recipe.model.width, recipe.model.heads) else {
        return;
    };
    if !width.is_multiple_of(heads) {
        let above = width.next_multiple_of(heads);
        problems.push(Problem::at(
            stated(["model.width", "model.heads"], given),
            format!(
                "a width of {width} does not divide by {heads} heads; set model.width = {above}, or model.heads to a \
                 divisor of {width}"
            ),
        ));
    }
}

fn patch(recipe: &Recipe, given: &dyn Fn(&str) -> bool, problems: &mut Vec<Problem>) {
    let Some(patch) = recipe.model.patch else { return };
    let Some(size) = image_size(recipe) else {
        problems.push(Problem::at(
            "data.resize",
            "\"vit\" needs images of a known size; set data.resize = \"crop\" or \"stretch\" and data.image_size",
        ));
        return;
    };
    if !size.is_multiple_of(patch) {
        let above = size.next_multiple_of(patch);
        problems.push(Problem::at(
            stated(["model.patch", "data.image_size"], given),
            format!(
                "images of {size} pixels do not divide into patches of {patch}; set data.image_size = {above}, or \
                 model.patch to a divisor of {size}"
            ),
        ));
    }
}

/// The U-Net's width doubles and the image's size halves with every level.
fn levels(recipe: &Recipe, given: &dyn Fn(&str) -> bool, problems: &mut Vec<Problem>) {
    /// Beyond it a single convolution is larger than any machine's memory or the image smaller than a pixel.
    const DEEPEST: usize = 8;
    let Some(depth) = recipe.model.depth else { return };
    if depth > DEEPEST {
        problems.push(Problem::at(
            "model.depth",
            format!("a U-Net of {depth} levels doubles its width {depth} times; set model.depth to at most {DEEPEST}"),
        ));
        return;
    }
    if let Some(size) = image_size(recipe)
        && size >> depth == 0
    {
        problems.push(Problem::at(
            stated(["model.depth", "data.image_size"], given),
            format!(
                "nothing is left of images of {size} pixels when they are halved {depth} times; set data.image_size to \
                 at least {}, or lower model.depth",
                1usize << depth
            ),
        ));
    }
}
