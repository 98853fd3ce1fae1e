//! The optimizer that a recipe states.

use dtrain_common::recipe::{OptimName, Recipe};
use tch::TchError;

use super::{Adam, AdamOptions, GroupOptions, Optimizer, Sgd, SgdOptions, WeightDecay};
use crate::engine::Arena;

/// The recipe's optimizer over `arena`, whose groups have these settings; its state is new. A loaded recipe has its defaults
/// filled in; the values here are those of torch.
///
/// # Errors
/// Where memory runs out.
pub fn of_recipe(
    recipe: &Recipe,
    arena: &Arena,
    groups: Vec<GroupOptions>,
) -> Result<Box<dyn Optimizer>, TchError> {
    let optim = &recipe.optim;
    let adam = |decay, groups| {
        let [beta1, beta2] = optim.betas.unwrap_or([0.9, 0.999]);
        let options = AdamOptions {
            betas: (beta1, beta2),
            eps: optim.eps.unwrap_or(1e-8),
            decay,
            groups,
        };
        Adam::new(arena, options)
    };
    Ok(match optim.name {
        OptimName::AdamW => Box::new(adam(WeightDecay::Decoupled, groups)?),
        OptimName::Adam => Box::new(adam(WeightDecay::L2, groups)?),
        OptimName::Sgd => {
            let options = SgdOptions {
                momentum: optim.momentum.unwrap_or(0.0),
                nesterov: optim.nesterov.unwrap_or(false),
                groups,
            };
            Box::new(Sgd::new(arena, options)?)
        }
    })
}
