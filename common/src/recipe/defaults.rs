//! Defaults that depend on other settings. They are filled in, so that a saved recipe is complete.

use super::{
    Amp, Augment, DataKind, IMAGENET_MEAN, IMAGENET_STD, Loss, Masks, Model, ModelName, Optim, OptimName,
    Recipe, ScheduleName, Target, Task,
};

/// Fills in settings of task, model, optimizer and schedule; `is_stated`: whether the recipe states a key.
pub(super) fn fill(recipe: &mut Recipe, is_stated: &dyn Fn(&str) -> bool) {
    data(recipe, is_stated);
    model(recipe.task, &mut recipe.model, is_stated);
    optim(&mut recipe.optim);
    if matches!(recipe.precision.amp, Amp::Auto | Amp::Fp16) {
        // The default of PyTorch's GradScaler.
        recipe.precision.loss_scale.get_or_insert(65536.0);
    }
}

fn data(recipe: &mut Recipe, is_stated: &dyn Fn(&str) -> bool) {
    let (task, target, data) = (recipe.task, recipe.target(), &mut recipe.data);
    if !task.targets().is_empty() {
        data.target = target;
    }
    if target == Some(Target::Tokens) {
        if !is_stated("data.kind") {
            data.kind = DataKind::Text;
        }
        if !is_stated("data.augment") {
            data.augment = Augment::Shift;
        }
    }
    for (key, values, imagenet, other) in
        [("data.mean", &mut data.mean, IMAGENET_MEAN, 0.0), ("data.std", &mut data.std, IMAGENET_STD, 1.0)]
    {
        match is_stated(key) {
            true => {}
            false if data.channels == 3 => *values = imagenet.into(),
            false => *values = vec![other; data.channels],
        }
    }
    if target == Some(Target::Mask) {
        data.ignore.get_or_insert(255);
        let binary = data.kind == DataKind::Folder && data.masks == Masks::Binary;
        if binary && !is_stated("data.classes") {
            data.classes = 2;
        }
    }
}

fn model(task: Task, model: &mut Model, is_stated: &dyn Fn(&str) -> bool) {
    if task == Task::Regress && !is_stated("model.loss") {
        model.loss = Loss::Mse;
    }
    let usual = match task {
        _ if model.file.is_some() => None,
        Task::Classify => Some(ModelName::Resnet18),
        Task::Segment => Some(ModelName::Unet),
        Task::Lm => Some(ModelName::Gpt),
        Task::Regress | Task::Program | Task::Custom => None,
    };
    model.name = model.name.or(usual);
    let [width, depth, heads, patch, context] = match model.name {
        Some(ModelName::Vit) => [Some(192), Some(12), Some(3), Some(16), None],
        Some(ModelName::Unet) => [Some(32), Some(4), None, None, None],
        Some(ModelName::Gpt) => [Some(384), Some(6), Some(6), None, Some(256)],
        _ => [None; 5],
    };
    model.width = model.width.or(width);
    model.depth = model.depth.or(depth);
    model.heads = model.heads.or(heads);
    model.patch = model.patch.or(patch);
    model.context = model.context.or(context);
}

fn optim(optim: &mut Optim) {
    let decay = if optim.name == OptimName::AdamW { 0.01 } else { 0.0 };
    optim.weight_decay = optim.weight_decay.or(Some(decay));
    match optim.name {
        OptimName::AdamW | OptimName::Adam => {
            optim.betas = optim.betas.or(Some([0.9, 0.999]));
            optim.eps = optim.eps.or(Some(1e-8));
        }
        OptimName::Sgd => {
            optim.momentum = optim.momentum.or(Some(0.0));
            optim.nesterov = optim.nesterov.or(Some(false));
        }
    }
    let schedule = &mut optim.schedule;
    match schedule.name {
        ScheduleName::Linear | ScheduleName::Cosine => schedule.min_lr = schedule.min_lr.or(Some(0.0)),
        ScheduleName::Step => schedule.gamma = schedule.gamma.or(Some(0.1)),
        ScheduleName::OneCycle => {
            schedule.rise = schedule.rise.or(Some(0.3));
            schedule.start_factor = schedule.start_factor.or(Some(25.0));
            schedule.final_factor = schedule.final_factor.or(Some(1e4));
        }
        ScheduleName::Constant | ScheduleName::Exponential => {}
    }
}
