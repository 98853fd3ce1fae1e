//! Defaults that depend on other settings. They are filled in, so that a saved recipe is complete.

use super::{Amp, General, Optim, OptimName, schedules};

/// Fills in settings of optimizer, schedule and precision.
pub(super) fn fill(recipe: &mut General) {
    optim(&mut recipe.optim);
    if matches!(recipe.precision.amp, Amp::Auto | Amp::Fp16) {
        // The default of PyTorch's GradScaler.
        recipe.precision.loss_scale.get_or_insert(65536.0);
    }
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
    schedules::fill(&mut optim.schedule);
}
