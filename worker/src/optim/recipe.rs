//! The optimizer that a recipe states.

use dtrain_common::recipe::{OptimName, Recipe};

use super::{Rule, WeightDecay};

/// The rule of a recipe. A loaded recipe has its defaults filled in; the values here are those of torch.
pub fn of_recipe(recipe: &Recipe) -> Rule {
    let optim = &recipe.optim;
    let adam = |decay| {
        let [beta1, beta2] = optim.betas.unwrap_or([0.9, 0.999]);
        Rule::Adam {
            betas: (beta1, beta2),
            eps: optim.eps.unwrap_or(1e-8),
            decay,
        }
    };
    match optim.name {
        OptimName::AdamW => adam(WeightDecay::Decoupled),
        OptimName::Adam => adam(WeightDecay::L2),
        OptimName::Sgd => Rule::Sgd {
            momentum: optim.momentum.unwrap_or(0.0),
            nesterov: optim.nesterov.unwrap_or(false),
        },
    }
}
