//! The base of a model: parameters that a run does not train and its checkpoints lack. They come from `model.file` or
//! `model.weights` at every start.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use dtrain_common::manifest::Base;
use dtrain_recipe::{Frozen, Recipe};
use dtrain_torch_shim::symbolic::is_symbolic;
use globset::{Glob, GlobMatcher};
use tch::{Device, Kind, Tensor};

use super::error::{Result, WorkerError};
use crate::models::{self, Entry, FrozenAs, FrozenWeights, Registry};
use crate::optim::{GroupError, match_names};

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
pub(crate) fn check_filled(recipe: &Recipe, registry: &Registry, unfilled: &[String]) -> Result<()> {
    // The file of a program has values.
    if recipe.program().is_some() {
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
    for entry in registry.parameters().filter(|entry| entry.is_base()) {
        let tensor = entry
            .tensor()
            .f_detach()
            .and_then(|tensor| tensor.f_to_device(Device::Cpu))
            .map_err(models::ModelError::from)?;
        hasher.update(format!("{} {:?} {:?}\n", entry.name(), tensor.kind(), tensor.size()).as_bytes());
        hash(&tensor, &mut hasher).map_err(models::ModelError::from)?;
        if let Some(scale) = entry.scale() {
            let scale = scale.f_to_device(Device::Cpu).map_err(models::ModelError::from)?;
            hash(&scale, &mut hasher).map_err(models::ModelError::from)?;
        }
    }
    let transposed = registry.adapted().iter().filter(|adapted| adapted.is_transposed);
    Ok(Some(Base {
        blake3: hasher.finalize().to_hex().to_string(),
        adapted: registry.adapted().iter().map(|adapted| adapted.weight.clone()).collect(),
        transposed: transposed.map(|adapted| adapted.weight.clone()).collect(),
    }))
}

/// Hashes the bytes of a tensor on the CPU.
fn hash(tensor: &Tensor, hasher: &mut blake3::Hasher) -> std::result::Result<(), tch::TchError> {
    const ELEMENTS: i64 = 1 << 22;
    let bytes = tensor.f_contiguous()?.f_view([-1])?.f_view_dtype(Kind::Uint8)?;
    let mut buffer = Vec::new();
    for first in (0..bytes.numel() as i64).step_by(ELEMENTS as usize) {
        let part = bytes.f_narrow(0, first, ELEMENTS.min(bytes.numel() as i64 - first))?;
        buffer.resize(part.numel(), 0);
        part.f_copy_data(&mut buffer, part.numel())?;
        hasher.update(&buffer);
    }
    Ok(())
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
