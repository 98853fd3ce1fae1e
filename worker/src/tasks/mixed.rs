//! The losses of samples whose images are mixed with those of a partner (`data.mix`).

use dtrain_recipe::Recipe;
use tch::Tensor;

use super::network::Network;
use super::program_error::Unfit;
use super::{Batch, Loss, Mode, TaskError};
use crate::data::{Field, mixed};

/// Computes the loss of a batch by `of`, from targets and the weights of the samples. In training, a mixed sample counts as two: with
/// its own targets and its share as weight, and with those of its partner and the rest. The figures are those of the own targets.
pub(super) fn loss(
    batch: &Batch,
    mode: Mode,
    field: &str,
    of: impl Fn(&Tensor, &Tensor) -> Result<Loss, TaskError>,
) -> Result<Loss, TaskError> {
    let targets = batch.field(field)?;
    let share = match (mode, batch.field(mixed::SHARE)) {
        (Mode::Train, Ok(share)) => share,
        _ => return of(targets, &batch.weights),
    };
    let own_weights = batch.weights.f_mul(share)?;
    let partner = batch.field(&format!("{}{field}", mixed::PREFIX))?;
    let (own, rest) = (of(targets, &own_weights)?, of(partner, &batch.weights.f_sub(&own_weights)?)?);
    Ok(Loss { sum: own.sum.f_add(&rest.sum)?, weight: own.weight.f_add(&rest.weight)?, sums: own.sums })
}

/// Checks that a program can be trained on mixed images: a task that computes the loss gives it images alone, and a program that
/// returns its loss takes the targets of both and the share.
pub(super) fn check(
    recipe: &Recipe,
    network: &Network,
    fields: &[Field],
    has_own_loss: bool,
) -> Result<(), TaskError> {
    if recipe.data.mix.is_empty() {
        return Ok(());
    }
    let taken = network.fields();
    let is_image = |name: &str| fields.iter().any(|field| field.name == *name && mixed::is_image(field));
    let is_taken = |name: &str| taken.iter().any(|one| one == name);
    let own = taken.iter().filter(|name| !is_image(name) && !name.starts_with(mixed::PREFIX));
    let missing = |name: &String| {
        let partner = format!("{}{name}", mixed::PREFIX);
        (!has_own_loss || !is_taken(&partner)).then_some((name.clone(), partner))
    };
    let unfit = match own.clone().find_map(missing) {
        Some((field, _)) if !has_own_loss => Unfit::MixedInput { field },
        Some((_, partner)) => Unfit::NotMixed { field: partner },
        None if has_own_loss && !is_taken(mixed::SHARE) => Unfit::NotMixed { field: mixed::SHARE.to_owned() },
        None => return Ok(()),
    };
    Err(network.unfit(unfit))
}

#[cfg(test)]
mod tests;
