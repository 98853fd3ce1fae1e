//! The defaults that depend on other settings, written down where nothing was stated, so that a saved recipe says it all
//! and equals one that states the same.

use super::{
    Amp, Augment, Data, DataKind, IMAGENET_MEAN, IMAGENET_STD, Masks, Model, ModelName, Optim, OptimName,
    Recipe, ScheduleName, Task,
};

/// Fills in what the task, the model, the optimizer and the schedule use; `given` tells what the recipe states.
pub(super) fn fill(recipe: &mut Recipe, given: &dyn Fn(&str) -> bool) {
    data(recipe.task, &mut recipe.data, given);
    model(recipe.task, &mut recipe.model);
    optim(&mut recipe.optim);
    if matches!(recipe.precision.amp, Amp::Auto | Amp::Fp16) {
        // GradScaler's of PyTorch.
        recipe.precision.loss_scale.get_or_insert(65536.0);
    }
}

fn data(task: Task, data: &mut Data, given: &dyn Fn(&str) -> bool) {
    if task == Task::Lm {
        if !given("data.kind") {
            data.kind = DataKind::Text;
        }
        if !given("data.augment") {
            data.augment = Augment::Shift;
        }
    }
    let colour = data.channels == 3;
    for (key, values, imagenet, other) in [
        ("data.mean", &mut data.mean, IMAGENET_MEAN, 0.0),
        ("data.std", &mut data.std, IMAGENET_STD, 1.0),
    ] {
        if !given(key) {
            *values = if colour {
                imagenet.into()
            } else {
                vec![other; data.channels]
            };
        }
    }
    if task == Task::Segment
        && data.kind == DataKind::Folder
        && data.masks == Masks::Binary
        && !given("data.classes")
    {
        data.classes = 2;
    }
}

fn model(task: Task, model: &mut Model) {
    let usual = match task {
        Task::Classify => Some(ModelName::Resnet18),
        Task::Segment => Some(ModelName::Unet),
        Task::Lm => Some(ModelName::Gpt),
        Task::Torchscript | Task::Custom => None,
    };
    model.name = model.name.or(usual);
    let sizes: &mut [(&mut Option<usize>, usize)] = match model.name {
        Some(ModelName::Vit) => &mut [
            (&mut model.width, 192),
            (&mut model.depth, 12),
            (&mut model.heads, 3),
            (&mut model.patch, 16),
        ],
        Some(ModelName::Unet) => &mut [(&mut model.width, 32), (&mut model.depth, 4)],
        Some(ModelName::Gpt) => &mut [
            (&mut model.width, 384),
            (&mut model.depth, 6),
            (&mut model.heads, 6),
            (&mut model.context, 256),
        ],
        _ => &mut [],
    };
    for (size, usual) in sizes {
        size.get_or_insert(*usual);
    }
}

/// PyTorch's values.
fn optim(optim: &mut Optim) {
    optim
        .weight_decay
        .get_or_insert(if optim.name == OptimName::AdamW { 0.01 } else { 0.0 });
    match optim.name {
        OptimName::AdamW | OptimName::Adam => {
            optim.betas.get_or_insert([0.9, 0.999]);
            optim.eps.get_or_insert(1e-8);
        }
        OptimName::Sgd => {
            optim.momentum.get_or_insert(0.0);
            optim.nesterov.get_or_insert(false);
        }
    }
    let schedule = &mut optim.schedule;
    match schedule.name {
        ScheduleName::Linear | ScheduleName::Cosine => {
            schedule.min_lr.get_or_insert(0.0);
        }
        ScheduleName::Step => {
            schedule.gamma.get_or_insert(0.1);
        }
        ScheduleName::OneCycle => {
            schedule.rise.get_or_insert(0.3);
            schedule.start_factor.get_or_insert(25.0);
            schedule.final_factor.get_or_insert(1e4);
        }
        ScheduleName::Constant | ScheduleName::Exponential => {}
    }
}
