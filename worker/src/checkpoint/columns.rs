//! The columns of the state table for a checkpoint: whole tensors where every rank has all of a column, and where the ranks hold parts
//! of it what this rank has, so that nothing is gathered.

use tch::{Kind, TchError, Tensor};

use super::error::CheckpointError;
use super::layout::Held;
use super::source::{Source, item};
use crate::collectives::{Ranks, ReduceOp};
use crate::engine::patiently;
use crate::state::{ColumnSpec, Part, Role, Slot, Table, pieces};

/// Sources, by their place in a list, that no rank can write in ranges, and the blocks and places of their elements.
type Scattered<'a> = Vec<(usize, (usize, &'a Slot))>;

/// The name of a row's tensor in the file of its column.
pub(super) fn name(spec: ColumnSpec, slot: &Slot) -> String {
    match spec.role {
        Role::Moment => format!("{}.{}", spec.name, slot.name),
        Role::Average => slot.name.clone(),
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
        Role::Average => vec![table.parts(spec.role)],
    };
    let parts = table.parts(spec.role);
    let (mut sources, mut scattered) = (Vec::new(), Vec::new());
    for (block, slot) in table.slots_of(spec.role) {
        let kind = table.blocks()[block].kind;
        if slot.is_empty() {
            // No part has anything of it, and who reads the file looks for it.
            let empty = Tensor::f_zeros(slot.shape.as_slice(), (kind, table.device()))?;
            sources.push(Source::whole(name(spec, slot), empty)?.lasting());
            continue;
        }
        let mut pieces = pieces(&parts, held, (block, slot))?;
        if let [_] = holders.as_slice() {
            if let Some((_, elements)) = pieces.pop() {
                sources.push(Source::whole(name(spec, slot), slot.shaped(&elements)?)?.lasting());
            }
            continue;
        }
        let owners = owners(&holders, block, slot);
        if !slot.is_contiguous() {
            match owners.len() {
                1 => pieces.iter_mut().try_for_each(|(_, tensor)| {
                    *tensor = slot.shaped(tensor)?;
                    Ok::<_, TchError>(())
                })?,
                _ => scattered.push((sources.len(), (block, slot))),
            }
        }
        let held = pieces
            .into_iter()
            .map(|(range, tensor)| (range.start as u64..range.end as u64, tensor));
        sources.push(Source {
            item: item(name(spec, slot), kind, slot.shape.clone(), Held::Parts(owners))?,
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
        let own = parts
            .iter()
            .filter(|part| part.block == block)
            .filter_map(|part| part.of(slot));
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
    table: &Table,
    ranks: &Ranks,
) -> Result<(), CheckpointError> {
    if scattered.is_empty() {
        return Ok(());
    }
    let device = table.device();
    let width = |block: usize| table.blocks()[block].kind.elt_size_in_bytes() as i64;
    let total: i64 = scattered
        .iter()
        .map(|(_, (block, slot))| slot.len() * width(*block))
        .sum();
    // As bytes, each of which only one rank sets: a sum of floats would lose the sign of a zero.
    let bytes = patiently(device, || Tensor::f_zeros([total], (Kind::Uint8, device)))?;
    let mut offset = 0;
    for (index, (block, slot)) in scattered {
        let own = bytes.f_narrow(0, offset, slot.len() * width(*block))?;
        for (range, tensor) in &sources[*index].held {
            let flat = tensor.f_contiguous()?.f_view_dtype(Kind::Uint8)?;
            let mut place = own.f_narrow(0, range.start as i64 * width(*block), flat.numel() as i64)?;
            tch::no_grad(|| place.f_copy_(&flat))?;
        }
        offset += slot.len() * width(*block);
    }
    ranks.all_reduce(&bytes, ReduceOp::Sum)?.wait()?;
    let mut offset = 0;
    for (index, (block, slot)) in scattered {
        let source = &mut sources[*index];
        // A copy begins where its elements may.
        let piece = bytes.f_narrow(0, offset, slot.len() * width(*block))?;
        let mut own = patiently(device, || piece.f_empty_like())?;
        tch::no_grad(|| own.f_copy_(&piece))?;
        let own = own.f_view_dtype(table.blocks()[*block].kind)?;
        source.held = vec![(0..slot.len() as u64, slot.shaped(&own)?)];
        source.item.held = Held::All { divisible: false };
        offset += slot.len() * width(*block);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tch::Device;

    use super::*;
    use crate::state::{AVERAGE, Group, LayoutOptions, Parameter};

    #[test]
    fn every_row_of_a_column_is_written_also_one_of_no_elements() {
        let make = |len: i64| Tensor::ones([len], (Kind::Float, Device::Cpu));
        let rows = [
            ("trained", make(40)),
            ("nothing", make(0)),
            ("counter", make(3)),
            ("empty", make(0)),
        ];
        let groups = [
            Group::Trained(0),
            Group::Trained(0),
            Group::Statistics,
            Group::Statistics,
        ];
        let parameters: Vec<Parameter<'_>> = std::iter::zip(&rows, groups)
            .map(|((name, tensor), group)| Parameter { name, tensor, group })
            .collect();
        for shards in [1, 2] {
            let options = LayoutOptions {
                shards,
                ..LayoutOptions::default()
            };
            let mut table = Table::new(&parameters, options, 0).unwrap();
            let moment = ColumnSpec {
                name: "exp_avg",
                role: Role::Moment,
            };
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
