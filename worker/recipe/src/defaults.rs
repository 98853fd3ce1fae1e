//! Defaults that depend on other settings. They are filled in, so that a saved recipe is complete.

use super::{
    Augment, ColumnKind, DataKind, Documents, IMAGENET_MEAN, IMAGENET_STD, Masks, Model, ModelName, Recipe,
    Target, Task, figures,
};

/// Fills in settings of data and model; `is_stated`: whether the recipe states a key.
pub(super) fn fill(recipe: &mut Recipe, is_stated: &dyn Fn(&str) -> bool) {
    data(recipe, is_stated);
    if let (Some(usual), false) = (recipe.task.usual_loss(recipe.target()), is_stated("model.loss")) {
        recipe.model.loss = usual;
    }
    model(recipe.task, &mut recipe.model);
    figures::fill(recipe);
}

fn data(recipe: &mut Recipe, is_stated: &dyn Fn(&str) -> bool) {
    let fields = if recipe.data.fields.is_empty() { recipe.fields().unwrap_or_default() } else { Vec::new() };
    let (has_masks, ignores_maps) = (recipe.has(ColumnKind::Mask), recipe.ignores_maps());
    let (task, target, data) = (recipe.task, recipe.target(), &mut recipe.data);
    data.fields.extend(fields.into_iter().map(|field| (field.field.clone(), field.text())));
    if task.chooses_target() {
        data.target = target.filter(|target| task.states(*target));
    }
    if target == Some(Target::Tokens) {
        if !is_stated("data.kind") {
            data.kind = DataKind::Text;
        }
        if !is_stated("data.augment") && data.documents == Documents::None && !data.is_of_tables() {
            data.augment = Augment::Shift;
        }
    }
    for (key, values, imagenet, other) in
        [("data.mean", &mut data.mean, IMAGENET_MEAN, 0.0), ("data.std", &mut data.std, IMAGENET_STD, 1.0)]
    {
        if !is_stated(key) {
            *values = if data.channels == 3 { imagenet.into() } else { vec![other; data.channels] };
        }
    }
    if has_masks {
        if !ignores_maps {
            data.ignore.get_or_insert(255);
        }
        if data.mask_colors.is_some() && !is_stated("data.masks") {
            data.masks = Masks::Colors;
        }
        let of_files = data.kind.is_of_images();
        if of_files && data.masks.is_of_two_classes() && !is_stated("data.classes") {
            data.classes = 2;
        }
        // Also if a recipe states it: the colours determine it.
        if let (true, Masks::Colors, Some(colors)) = (of_files, data.masks, &data.mask_colors) {
            data.classes = colors.classes(&data.ignore_classes).len();
        }
    }
}

fn model(task: Task, model: &mut Model) {
    let facts = task.facts();
    model.name = model.name.or(facts.network.filter(|_| model.file.is_none()));
    let Some(network) = model.name.map(ModelName::facts) else { return };
    model.width = model.width.or(network.width);
    model.depth = model.depth.or(network.depth);
    model.heads = model.heads.or(network.heads);
    model.patch = model.patch.or(network.patch);
    model.context = model.context.or(network.context);
    model.dropout = model.dropout.or(network.drops.then_some(0.0));
    model.drop_path = model.drop_path.or(network.drops_paths.then_some(0.0));
}
