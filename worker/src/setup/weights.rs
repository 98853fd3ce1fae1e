//! The initial weights of a run: those of a file, or those that the model was built with.

use std::path::Path;

use dtrain_recipe::Recipe;

use crate::models::{self, Entry, Registry, Renames};
use crate::optim::match_names;
use crate::setup::base;
use crate::setup::error::{Result, WorkerError};
use crate::tensors::bytes;

/// The warning about a training from zeros.
const ZERO_WEIGHTS: &str = "warning: model.file has no weights and model.zero_weights is true: its large tensors are zero, so losses \
                            and checkpoints mean nothing";

/// Loads the recipe's weights into the model. `lacks`: its file has no weights. Returns lines for people.
pub(crate) fn load(recipe: &Recipe, registry: &Registry, lacks: bool) -> Result<Vec<String>> {
    let path = recipe.model.weights.as_deref();
    if path.is_none() && recipe.program().is_none() && registry.has_base() {
        return Err(WorkerError::NoBase);
    }
    let mut notes = Vec::from_iter(path.map(|path| import(recipe, path, registry, lacks)).transpose()?);
    if lacks && (path.is_none() || has_large_zeros(registry)?) {
        if !recipe.model.zero_weights {
            return Err(WorkerError::NoWeights);
        }
        notes.push(ZERO_WEIGHTS.to_owned());
    }
    Ok(notes)
}

/// Returns whether a tensor of the size that an import without weights leaves out has no value but zero: a file of weights
/// need not have all of them.
fn has_large_zeros(registry: &Registry) -> Result<bool> {
    const LARGE: u64 = 1 << 20;
    // The half of an adapter begins at zero.
    let own = registry.parameters().filter(|entry| !registry.is_adapter(entry.name()));
    for entry in own.chain(registry.buffers()) {
        let tensor = entry.tensor();
        if bytes(tensor) >= LARGE && tensor.f_any()?.f_int64_value(&[])? == 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Loads a file of weights into the model, and returns a report.
fn import(recipe: &Recipe, weights: &Path, registry: &Registry, lacks: bool) -> Result<String> {
    let renames = Renames::new(&recipe.model.weights_rename)
        .map_err(|error| WorkerError::Rename { reason: error.to_string() })?;
    let names: Vec<&str> = registry.state().iter().map(Entry::name).collect();
    let new = match_names(&names, &recipe.model.weights_new)
        .map_err(|source| WorkerError::Globs { key: "model.weights_new".to_owned(), source })?;
    let new =
        names.iter().zip(new).filter(|(_, is_new)| *is_new).map(|(name, _)| (*name).to_owned()).collect();
    let report = models::load_renamed(registry, weights, recipe.model.weights_mode, &renames, &new)?;
    base::check_filled(registry, &report.unfilled, recipe.program().is_some() && !lacks)?;
    Ok(format!("weights from {}: {report}", weights.display()))
}
