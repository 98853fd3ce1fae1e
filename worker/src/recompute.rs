//! What a recipe says of recomputation, where it meets a model.

use dtrain_common::recipe::{self, Recipe};

use super::error::{Result, WorkerError};
use crate::models::{Recompute, Registry};

/// The handle of the model in `registry`, set as the recipe wishes; called once the model is built. With "auto" nothing is
/// computed again at first: whoever finds that memory is short raises it.
pub(crate) fn begin(recipe: &Recipe, registry: &Registry, notes: &mut Vec<String>) -> Result<Recompute> {
    let recompute = registry.recompute().clone();
    if recipe.memory.recompute == recipe::Recompute::On {
        if recompute.segments() == 0 {
            return Err(WorkerError::NoSegments);
        }
        recompute.all();
        notes.push(format!(
            "recompute: all {} segments of the model are computed again in backward",
            recompute.count()
        ));
    }
    Ok(recompute)
}
