//! Reading a checkpoint back into a model and its optimizer.

use std::path::Path;

use dtrain_common::manifest::Manifest;

use super::error::CheckpointError;
use super::{EMA_FILE, MODEL_FILE, OPTIMIZER_FILE, STEPS};
use crate::engine::{Arena, Buffers, Ema, Resting, overlap};
use crate::models::{LoadMode, ModelError, Registry, TensorFile, load_state};
use crate::optim::Optimizer;

/// Puts a checkpoint's weights alone into a model, by `average` those of its moving average where it has one. Returns its manifest and
/// whether they are the average.
///
/// # Errors
/// As [`restore`].
pub fn restore_weights(
    folder: &Path,
    registry: &Registry,
    average: bool,
) -> Result<(Manifest, bool), CheckpointError> {
    let manifest = Manifest::read(folder)?;
    manifest.check_sizes(folder)?;
    load_state(registry, &folder.join(MODEL_FILE), LoadMode::Strict)?;
    let average = average && manifest.ema_updates.is_some();
    if average {
        // Of what was never trained there is none.
        load_state(registry, &folder.join(EMA_FILE), LoadMode::Partial)?;
    }
    Ok((manifest, average))
}

/// What a checkpoint is put into.
pub struct Target<'a> {
    /// The model's tensors.
    pub registry: &'a Registry,
    /// The layout of its parameters.
    pub arena: &'a Arena,
    /// The layout of its running statistics.
    pub buffers: &'a Buffers,
    /// The optimizer.
    pub optimizer: &'a mut dyn Optimizer,
    /// The moving average, where the run has one.
    pub ema: Option<&'a mut Ema>,
    /// What is frozen and the average is of all the same.
    pub resting: &'a [Resting],
}

/// Puts the checkpoint in `folder` into `target`, which is laid out for the phase that the checkpoint ends in, and returns its
/// manifest. Every rank calls it, after rank 0 has verified the checkpoint ([`super::choose`]); nothing is changed where it does not
/// fit.
///
/// # Errors
/// `Manifest` for a checkpoint whose files have other sizes than they should, `Model` or `Tensors` for one of another model or
/// optimizer.
pub fn restore(folder: &Path, target: Target<'_>) -> Result<Manifest, CheckpointError> {
    let Target {
        registry,
        arena,
        buffers,
        optimizer,
        ema,
        resting,
    } = target;
    let manifest = Manifest::read(folder)?;
    manifest.check_sizes(folder)?;

    let path = folder.join(OPTIMIZER_FILE);
    let file = TensorFile::open(&path).map_err(ModelError::from)?;
    let refuse = |reason: String| CheckpointError::Tensors {
        path: path.clone(),
        reason,
    };
    // Read everything before anything is changed.
    let mut steps = vec![0; arena.leaves().len()];
    let mut copies = Vec::new();
    for (number, buffer) in arena.buffers().iter().enumerate() {
        for slot in &buffer.slots {
            let name = format!("{STEPS}.{}", slot.name);
            let count = i64::try_from(file.read(&name)?)?;
            steps[slot.parameter] =
                u64::try_from(count).map_err(|_| refuse(format!("{name} is negative")))?;
        }
        for (kind, parts) in optimizer.moments() {
            for slot in &buffer.slots {
                let name = format!("{kind}.{}", slot.name);
                let tensor = file.read(&name)?;
                if tensor.size() != slot.shape {
                    return Err(refuse(format!(
                        "{name} has the shape {:?}, the model's is {:?}",
                        tensor.size(),
                        slot.shape
                    )));
                }
                let flat = slot.flat(&tensor)?;
                for (part, held) in arena
                    .parts()
                    .iter()
                    .zip(parts)
                    .filter(|(part, _)| part.buffer == number)
                {
                    copies.extend(overlap(slot, part, &flat, held)?);
                }
            }
        }
    }
    if let Some(ema) = &ema {
        let path = folder.join(EMA_FILE);
        let file = TensorFile::open(&path).map_err(ModelError::from)?;
        let parameters = arena.buffers().iter().map(|buffer| buffer.slots.as_slice());
        let at_rest = resting.iter().map(|resting| std::slice::from_ref(&resting.slot));
        for (slots, flat) in parameters.chain(buffers.slots()).chain(at_rest).zip(ema.flats()) {
            for slot in slots {
                copies.push((slot.view(flat)?, file.read(&slot.name)?));
            }
        }
    }
    load_state(registry, &folder.join(MODEL_FILE), LoadMode::Strict)?;
    for (mut to, from) in copies {
        tch::no_grad(|| to.f_copy_(&from))?;
    }
    optimizer.resume(steps);
    if let (Some(ema), Some(updates)) = (ema, manifest.ema_updates) {
        ema.restore(updates);
    }
    Ok(manifest)
}
