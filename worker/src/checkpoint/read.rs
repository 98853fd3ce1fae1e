//! Reading a checkpoint back into a model and its optimizer.

use std::path::Path;

use dtrain_common::manifest::Manifest;

use super::error::CheckpointError;
use super::{MODEL_FILE, OPTIMIZER_FILE, STEPS};
use crate::engine::Arena;
use crate::models::{LoadMode, ModelError, Registry, TensorFile, load_state};
use crate::optim::Optimizer;

/// Puts the checkpoint in `folder` into `registry` and `optimizer` and returns its manifest. Every rank calls it; sizes and
/// checksums are verified first, and nothing is changed where one of them is wrong.
///
/// # Errors
/// `Manifest` for a damaged checkpoint, `Model` or `Tensors` for one of another model or optimizer.
pub fn restore(
    folder: &Path,
    registry: &Registry,
    arena: &Arena,
    optimizer: &mut dyn Optimizer,
) -> Result<Manifest, CheckpointError> {
    let manifest = Manifest::read(folder)?;
    manifest.verify(folder)?;

    let path = folder.join(OPTIMIZER_FILE);
    let file = TensorFile::open(&path).map_err(ModelError::from)?;
    let refuse = |reason: String| CheckpointError::Tensors {
        path: path.clone(),
        reason,
    };
    let steps = u64::try_from(i64::try_from(file.read(STEPS)?)?)
        .map_err(|_| refuse("its number of steps is negative".into()))?;

    // Read everything before anything is changed.
    let mut copies = Vec::new();
    for (index, buffer) in arena.buffers().iter().enumerate() {
        for (kind, whole) in optimizer.state(index) {
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
                copies.push((slot.view(whole)?, tensor));
            }
        }
    }
    load_state(registry, &folder.join(MODEL_FILE), LoadMode::Strict)?;
    for (mut to, from) in copies {
        tch::no_grad(|| to.f_copy_(&from))?;
    }
    optimizer.resume(steps);
    Ok(manifest)
}
