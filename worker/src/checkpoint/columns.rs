//! The columns of the state table for a checkpoint: whole tensors where every rank has all of a column, and where the ranks hold parts
//! of it what this rank has, so that nothing is gathered.

use tch::{Device, Kind, Tensor};

use super::error::CheckpointError;
use super::layout::Held;
use super::source::{Source, item};
use crate::collectives::{Collective, Ranks, ReduceOp};
use crate::out_of_memory::patiently;
use crate::state::{ColumnSpec, Part, Role, Slot, Table, pieces};

/// Sources, by their place in a list, that no rank can write in ranges, with their types and the places of their elements.
type Scattered<'a> = Vec<(usize, Kind, &'a Slot)>;

/// The name of a row's tensor in the file of its column.
pub(super) fn name(spec: ColumnSpec, slot: &Slot) -> String {
    match spec.role {
        Role::Moment => format!("{}.{}", spec.name, slot.name),
        _ => slot.name.clone(),
    }
}

/// What this rank has of a column, row by row in an order that does not depend on the layout, and which of it cannot be written so.
pub(super) fn sources<'a>(
    table: &'a Table,
    spec: ColumnSpec,
    held: &[Tensor],
) -> Result<(Vec<Source>, Scattered<'a>), CheckpointError> {
    let holders: Vec<Vec<Part>> = match spec.role {
        Role::Moment => (0..table.shards()).map(|shard| table.parts_of(shard)).collect(),
        _ => vec![table.parts(spec.role)],
    };
    let parts = table.parts(spec.role);
    let (mut sources, mut scattered) = (Vec::new(), Vec::new());
    for (block, slot) in table.slots_of(spec.role) {
        let kind = table.blocks()[block].kind;
        let mut pieces = pieces(&parts, held, (block, slot))?;
        let owners = owners(&holders, block, slot);
        let divisible = slot.is_contiguous();
        if !divisible && owners.len() > 1 {
            scattered.push((sources.len(), kind, slot));
        } else if !divisible {
            for (_, tensor) in &mut pieces {
                *tensor = slot.shaped(tensor)?;
            }
        }
        let held_by = match holders.len() {
            1 => Held::All { divisible },
            _ => Held::Parts(owners),
        };
        let held = pieces.into_iter().map(|(range, tensor)| (range.start as u64..range.end as u64, tensor));
        sources.push(Source {
            item: item(name(spec, slot), kind, slot.shape.clone(), held_by)?,
            held: held.collect(),
            lasts: true,
        });
    }
    Ok((sources, scattered))
}

/// Who holds a row's elements, in the order in which memory holds them: up to which of them, and which rank.
fn owners(holders: &[Vec<Part>], block: usize, slot: &Slot) -> Vec<(u64, usize)> {
    let mut owners = Vec::new();
    for (rank, parts) in holders.iter().enumerate() {
        let own = parts.iter().filter(|part| part.block == block).filter_map(|part| part.of(slot));
        owners.extend(own.map(|range| ((range.end - slot.offset) as u64, rank)));
    }
    owners.sort_unstable();
    owners
}

/// Tensors that lie otherwise in memory than in a file, and in parts at several ranks, cannot be written in ranges: every rank
/// gets them whole. These are convolutions' weights that lie pixel by pixel, at a boundary of two ranks' parts.
pub(super) fn assemble(
    sources: &mut [Source],
    scattered: &Scattered<'_>,
    ranks: &Ranks,
    device: Device,
) -> Result<(), CheckpointError> {
    let mut whole = Vec::new();
    for (index, kind, slot) in scattered {
        let source = &sources[*index];
        let width = kind.elt_size_in_bytes() as i64;
        // As bytes, each of which only one rank sets: a sum of floats would lose the sign of a zero.
        let bytes = patiently(device, || Tensor::f_zeros([slot.len() * width], (Kind::Uint8, device)))?;
        for (range, tensor) in &source.held {
            let flat = tensor.f_contiguous()?.f_view_dtype(Kind::Uint8)?;
            let mut place = bytes.f_narrow(0, range.start as i64 * width, flat.numel() as i64)?;
            tch::no_grad(|| place.f_copy_(&flat))?;
        }
        whole.push(bytes);
    }
    if whole.is_empty() {
        return Ok(());
    }
    let sums = whole.iter().map(|bytes| Collective::AllReduce(bytes, ReduceOp::Sum));
    ranks.start_all(&sums.collect::<Vec<_>>())?.wait()?;
    for ((index, kind, slot), bytes) in scattered.iter().zip(whole) {
        let source = &mut sources[*index];
        source.held = vec![(0..slot.len() as u64, slot.shaped(&bytes.f_view_dtype(*kind)?)?)];
        source.item.held = Held::All { divisible: false };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::state::{AVERAGE, Group, LayoutOptions, Parameter};

    #[test]
    fn every_row_of_a_column_is_written_also_one_of_no_elements() {
        let make = |len: i64| Tensor::ones([len], (Kind::Float, Device::Cpu));
        let rows = [("trained", make(40)), ("nothing", make(0)), ("counter", make(3)), ("empty", make(0))];
        let groups = [Group::Trained(0), Group::Trained(0), Group::Statistics, Group::Statistics];
        let parameters: Vec<Parameter<'_>> = std::iter::zip(&rows, groups)
            .map(|((name, tensor), group)| Parameter { name, tensor, group })
            .collect();
        for shards in [1, 2] {
            let options = LayoutOptions { shards, ..LayoutOptions::default() };
            let mut table = Table::new(&parameters, options, 0).unwrap();
            let moment = ColumnSpec { name: "exp_avg", role: Role::Moment };
            for (spec, expected) in [
                (moment, &["exp_avg.trained", "exp_avg.nothing"][..]),
                (AVERAGE, &["trained", "nothing", "counter", "empty"]),
            ] {
                table.add(spec).unwrap();
                let (sources, _) = sources(&table, spec, table.column(spec.name).unwrap()).unwrap();
                let names: Vec<&str> = sources.iter().map(|source| source.item.name.as_str()).collect();
                assert_eq!(names, expected, "{shards} shards");
            }
        }
    }
}
