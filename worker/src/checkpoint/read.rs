//! Reading a checkpoint back into a model and its optimizer.

use std::path::Path;

use dtrain_common::manifest::Manifest;

use super::error::CheckpointError;
use super::{EMA_FILE, MODEL_FILE, OPTIMIZER_FILE, STEPS};
use tch::Tensor;

use crate::engine::{Arena, Buffers, Ema, Part, Resting, Slot, overlap};
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
    let same_shape = |file: &TensorFile, name: &str, slot: &Slot| -> Result<(), CheckpointError> {
        let shape = file.shape(name)?;
        if shape == slot.shape {
            return Ok(());
        }
        Err(CheckpointError::Tensors {
            path: file.path().to_owned(),
            reason: format!("{name} has the shape {shape:?}, the model's is {:?}", slot.shape),
        })
    };
    let kinds: Vec<&str> = optimizer.moments().iter().map(|(kind, _)| *kind).collect();
    // Whether it fits is seen before anything is changed.
    let mut steps = vec![0; arena.leaves().len()];
    for slot in arena.buffers().iter().flat_map(|buffer| &buffer.slots) {
        let name = format!("{STEPS}.{}", slot.name);
        let count = i64::try_from(file.read(&name)?)?;
        steps[slot.parameter] = u64::try_from(count).map_err(|_| CheckpointError::Tensors {
            path: path.clone(),
            reason: format!("{name} is negative"),
        })?;
        for kind in &kinds {
            same_shape(&file, &format!("{kind}.{}", slot.name), slot)?;
        }
    }
    let average = match &ema {
        Some(ema) => {
            let file = TensorFile::open(&folder.join(EMA_FILE)).map_err(ModelError::from)?;
            let parameters = arena.buffers().iter().map(|buffer| buffer.slots.as_slice());
            let at_rest = resting.iter().map(|resting| std::slice::from_ref(&resting.slot));
            let slots = parameters.chain(buffers.slots()).chain(at_rest);
            let places: Vec<(&Slot, &Tensor)> = slots
                .zip(ema.flats())
                .flat_map(|(slots, flat)| slots.iter().map(move |slot| (slot, flat)))
                .collect();
            for (slot, _) in &places {
                same_shape(&file, &slot.name, slot)?;
            }
            Some((file, places))
        }
        None => None,
    };
    load_state(registry, &folder.join(MODEL_FILE), LoadMode::Strict)?;
    for (kind, parts) in optimizer.moments() {
        for (part, held) in arena.parts().iter().zip(parts) {
            for slot in &arena.buffers()[part.buffer].slots {
                restore_moment(&file, &format!("{kind}.{}", slot.name), slot, part, held)?;
            }
        }
    }
    if let Some((file, places)) = average {
        for (slot, flat) in places {
            file.read_into(&slot.name, &slot.view(flat)?)?;
        }
    }
    optimizer.resume(steps);
    if let (Some(ema), Some(updates)) = (ema, manifest.ema_updates) {
        ema.restore(updates);
    }
    Ok(manifest)
}

/// Reads what `part` has of a parameter's moment into `held`, the memory of that part.
fn restore_moment(
    file: &TensorFile,
    name: &str,
    slot: &Slot,
    part: &Part,
    held: &Tensor,
) -> Result<(), CheckpointError> {
    if let Some(whole) = part.whole(slot, held)? {
        return Ok(file.read_into(name, &whole)?);
    }
    if part.meets(slot) {
        let flat = slot.flat(&file.read(name)?)?;
        if let Some((mut to, from)) = overlap(slot, part, &flat, held)? {
            tch::no_grad(|| to.f_copy_(&from))?;
        }
    }
    Ok(())
}
