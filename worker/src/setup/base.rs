//! The base of a model: parameters that a run does not train and its checkpoints lack. They come from `model.file` or
//! `model.weights` at every start.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use dtrain_common::manifest::Base;
use dtrain_recipe::{Frozen, Recipe};
use dtrain_torch_shim::symbolic::is_symbolic;
use globset::{Glob, GlobMatcher};
use tch::{Device, TchError};

use super::error::{Result, WorkerError};
use crate::models::{self, Entry, FrozenAs, FrozenWeights, Registry};
use crate::optim::{GroupError, match_names};
use crate::tensors::write;

/// Sets the adapters of a network that is built next.
///
/// # Errors
/// A glob that is no pattern.
pub(crate) fn prepare(recipe: &Recipe, registry: &mut Registry) -> Result<()> {
    if let Some(frozen) = &recipe.model.frozen {
        registry.frozen = Some(frozen_weights(frozen)?);
    }
    let Some(lora) = &recipe.model.lora else { return Ok(()) };
    let matchers = matchers("model.lora.match", &lora.patterns)?;
    let chooses = move |name: &str| matchers.iter().any(|matcher| matcher.is_match(name));
    registry.lora = Some(models::Lora {
        rank: lora.rank as i64,
        alpha: lora.alpha,
        dropout: lora.dropout,
        chooses: Arc::new(chooses),
    });
    Ok(())
}

fn matchers(key: &str, globs: &[String]) -> Result<Vec<GlobMatcher>> {
    let matcher = |glob: &String| match Glob::new(glob) {
        Ok(matcher) => Ok(matcher.compile_matcher()),
        Err(error) => {
            let reason = error.kind().to_string();
            Err(at(key)(GroupError::Glob { glob: glob.clone(), reason }))
        }
    };
    globs.iter().map(matcher).collect()
}

/// The keys of `[model.frozen]` with their globs.
fn forms(frozen: &Frozen) -> [(&'static str, &[String], FrozenAs); 3] {
    [
        ("model.frozen.bf16", &frozen.bf16, FrozenAs::Bf16),
        ("model.frozen.fp16", &frozen.fp16, FrozenAs::Fp16),
        ("model.frozen.int8", &frozen.int8, FrozenAs::Int8),
    ]
}

/// Returns the choice of the weights that are held in fewer bytes: the first glob that matches a name decides.
fn frozen_weights(frozen: &Frozen) -> Result<FrozenWeights> {
    let mut all = Vec::new();
    for (key, globs, form) in forms(frozen) {
        all.extend(matchers(key, globs)?.into_iter().map(|matcher| (matcher, form)));
    }
    Ok(FrozenWeights(Arc::new(move |name| {
        all.iter().find(|(matcher, _)| matcher.is_match(name)).map(|(_, form)| *form)
    })))
}

fn at(key: &str) -> impl FnOnce(GroupError) -> WorkerError {
    let key = key.to_owned();
    move |source| WorkerError::Globs { key, source }
}

/// Makes the parameters that adapters leave the base of a network that was built.
///
/// # Errors
/// Globs that match no weight with an adapter, no weight that can be held in fewer bytes, or no further parameter.
pub(crate) fn settle(recipe: &Recipe, registry: &mut Registry) -> Result<()> {
    if let Some(frozen) = &recipe.model.frozen {
        let held: Vec<&str> =
            registry.parameters().filter(|entry| entry.frozen().is_some()).map(Entry::name).collect();
        for (key, globs, _) in forms(frozen) {
            match_names(&held, globs).map_err(|error| no_product(key, error, registry))?;
        }
    }
    let Some(lora) = &recipe.model.lora else { return Ok(()) };
    let adapted: Vec<&str> = registry.adapted().iter().map(|adapted| adapted.weight.as_str()).collect();
    match_names(&adapted, &lora.patterns).map_err(|error| no_product("model.lora.match", error, registry))?;
    let names: Vec<String> = own(registry).map(|entry| entry.name().to_owned()).collect();
    let trained = match_names(&names, &lora.train).map_err(at("model.lora.train"))?;
    let (trained, base): (Vec<_>, Vec<_>) = std::iter::zip(names, trained).partition(|(_, trained)| *trained);
    let is_held = |name: &str| registry.get(name).is_some_and(|entry| entry.frozen().is_some());
    if let Some((name, _)) = trained.into_iter().find(|(name, _)| is_held(name)) {
        return Err(WorkerError::TrainedFrozen { key: "model.lora.train".to_owned(), name });
    }
    let base: HashSet<String> = base.into_iter().map(|(name, _)| name).collect();
    registry.set_base(|name| base.contains(name));
    Ok(())
}

/// Returns the parameters that belong to no adapter.
fn own(registry: &Registry) -> impl Iterator<Item = &Entry> {
    registry.parameters().filter(|entry| !registry.is_adapter(entry.name()))
}

/// Returns the error of a glob that matches no weight of the layers in question: perhaps it matches other parameters.
fn no_product(key: &'static str, error: GroupError, registry: &Registry) -> WorkerError {
    let GroupError::NoMatch { glob, .. } = &error else { return at(key)(error) };
    let names: Vec<&str> = own(registry).map(Entry::name).collect();
    let matched = match_names(&names, std::slice::from_ref(glob)).unwrap_or_default();
    match std::iter::zip(names, matched).find(|(_, matched)| *matched) {
        Some((example, _)) => WorkerError::NoProduct { key, glob: glob.clone(), example: example.to_owned() },
        None => at(key)(error),
    }
}

/// Checks that the file of weights has every tensor of the base: others would stay random.
/// `has_values`: whether the network itself has values, as that of a program.
pub(crate) fn check_filled(registry: &Registry, unfilled: &[String], has_values: bool) -> Result<()> {
    if has_values {
        return Ok(());
    }
    let is_base = |name: &&String| registry.get(name).is_some_and(Entry::is_base);
    match unfilled.iter().find(is_base) {
        Some(name) => Err(WorkerError::RandomBase { name: name.clone() }),
        None => Ok(()),
    }
}

/// Describes the base of a model for its checkpoints; None without one, and in a rehearsal without values.
pub(crate) fn describe(registry: &Registry) -> Result<Option<Base>> {
    if is_symbolic() || !registry.parameters().any(Entry::is_base) {
        return Ok(None);
    }
    let mut hasher = blake3::Hasher::new();
    let cannot = |error: std::io::Error| models::ModelError::from(TchError::Torch(error.to_string()));
    for entry in registry.parameters().filter(|entry| entry.is_base()) {
        hasher.update(
            format!("{} {:?} {:?}\n", entry.name(), entry.tensor().kind(), entry.tensor().size()).as_bytes(),
        );
        for tensor in [Some(entry.tensor()), entry.scale()].into_iter().flatten() {
            let tensor = tensor.f_detach().and_then(|tensor| tensor.f_to_device(Device::Cpu));
            write(&tensor.map_err(models::ModelError::from)?, &mut hasher).map_err(cannot)?;
        }
    }
    let transposed = registry.adapted().iter().filter(|adapted| adapted.is_transposed);
    Ok(Some(Base {
        blake3: hasher.finalize().to_hex().to_string(),
        adapted: registry.adapted().iter().map(|adapted| adapted.weight.clone()).collect(),
        transposed: transposed.map(|adapted| adapted.weight.clone()).collect(),
    }))
}

/// Checks that the base is that of a checkpoint.
pub(crate) fn check_same(folder: &Path, then: Option<&Base>, now: Option<&Base>) -> Result<()> {
    match (then, now) {
        (Some(then), Some(now)) if then.blake3 != now.blake3 => {
            Err(WorkerError::OtherBase { folder: folder.to_owned() })
        }
        _ => Ok(()),
    }
}
