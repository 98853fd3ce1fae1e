//! The state of a checkpoint that only rank 0 can read: rank 0 sends it to the others, one tensor at a time.

use std::path::Path;

use tch::{Device, Kind, Tensor};

use super::error::CheckpointError;
use super::items::name;
use super::read::write_row;
use super::{EMA_FILE, OPTIMIZER_FILE};
use crate::collectives::Ranks;
use crate::models::{Entry, ModelError, Registry, TensorFile};
use crate::optim::Model;
use crate::state::AVERAGE;

/// Sends the optimizer's state and the moving average from `folder`, which rank 0 has restored. All ranks have
/// laid their models out for the checkpoint's phase. Every rank calls this.
pub(crate) fn send_state(folder: &Path, model: &mut Model, ranks: &Ranks) -> Result<(), CheckpointError> {
    send_model(&model.registry, ranks)?;
    let table = &model.table;
    let open = |name: &str| match ranks.rank() {
        0 => TensorFile::open(&folder.join(name)).map(Some).map_err(ModelError::from),
        _ => Ok(None),
    };
    let moments = open(OPTIMIZER_FILE)?;
    let average = table.column(AVERAGE.name).map(|_| open(EMA_FILE)).transpose()?.flatten();
    for (spec, held) in table.columns() {
        let file = if spec.role.is_moment() { &moments } else { &average };
        for (block, slot) in table.slots_of(spec.role) {
            let kind = table.blocks()[block].kind;
            let whole = match file {
                Some(file) => file.read(&name(spec, slot))?.f_to_kind(kind)?,
                None => Tensor::f_empty(slot.shape.as_slice(), (kind, Device::Cpu))?,
            };
            send_tensor(&whole, ranks)?;
            if ranks.rank() > 0 {
                write_row(table, spec, held, block, slot, &whole)?;
            }
        }
    }
    let counts: Vec<i64> = table.updates.iter().map(|count| *count as i64).collect();
    let counts = Tensor::f_from_slice(&counts)?;
    send_tensor(&counts, ranks)?;
    let counts = Vec::<i64>::try_from(counts)?;
    model.table.updates = counts.into_iter().map(|count| count as u64).collect();
    Ok(())
}

/// Sends rank 0's parameters and buffers. Every rank calls this.
pub(crate) fn send_model(registry: &Registry, ranks: &Ranks) -> Result<(), CheckpointError> {
    let send = |entry: &Entry| {
        let mut own = entry.tensor().f_detach()?;
        // Another memory order, or a device, needs a copy.
        let copy = Tensor::f_empty(own.size(), (own.f_kind()?, Device::Cpu))?;
        tch::no_grad(|| copy.shallow_clone().f_copy_(&own))?;
        send_tensor(&copy, ranks)?;
        if ranks.rank() > 0 {
            tch::no_grad(|| own.f_copy_(&copy))?;
        }
        Ok(())
    };
    registry.parameters().chain(registry.buffers()).try_for_each(send)
}

/// Returns rank 0's bytes on every rank.
pub(crate) fn broadcast_bytes(bytes: &[u8], ranks: &Ranks) -> Result<Vec<u8>, CheckpointError> {
    let length = Tensor::f_from_slice(&[bytes.len() as i64])?;
    send_tensor(&length, ranks)?;
    let length = length.f_int64_value(&[0])?;
    let tensor = match ranks.rank() {
        0 => Tensor::f_from_slice(bytes)?,
        _ => Tensor::f_empty([length], (Kind::Uint8, Device::Cpu))?,
    };
    send_tensor(&tensor, ranks)?;
    Ok(tensor.try_into()?)
}

/// Copies rank 0's bytes of a contiguous CPU tensor to every rank.
fn send_tensor(tensor: &Tensor, ranks: &Ranks) -> Result<(), CheckpointError> {
    let bytes = tensor.f_view([-1])?.f_view_dtype(Kind::Uint8)?;
    Ok(ranks.start(crate::collectives::Collective::Broadcast(&bytes, 0))?.wait()?)
}
