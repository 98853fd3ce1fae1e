//! The tensors of a checkpoint, as held by this rank.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::ops::Range;

use tch::{Device, Kind, TchError, Tensor};

use super::error::CheckpointError;
use super::layout::{Holders, Item};
use super::{EMA_FILE, MODEL_FILE, OPTIMIZER_FILE, STEPS};
use crate::collectives::{Collective, Ranks, ReduceOp};
use crate::models::{Entry, Registry, dtype_of};
use crate::optim::Model;
use crate::out_of_memory::retry_on_oom;
use crate::state::{AVERAGE, ColumnSpec, Part, Role, Slot, Table, pieces};

/// Returns the files of a checkpoint with their tensors, in the same order on every rank. Every rank calls
/// this between two steps: the ranks exchange tensors that no rank could write alone.
pub(super) fn files(
    model: &Model,
    ranks: &Ranks,
    device: Device,
) -> Result<Vec<(&'static str, Vec<Source>)>, CheckpointError> {
    let table = &model.table;
    let mut tensors = retry_on_oom(device, || tensors(model))?;
    tensors.extend(repeated(&tensors, &model.registry));
    let mut state = retry_on_oom(device, || updates(table))?;
    let mut average = Vec::new();
    for (spec, held) in table.columns() {
        let (mut sources, split_rows) = retry_on_oom(device, || column_sources(table, spec, held))?;
        gather_split_rows(&mut sources, &split_rows, ranks, device)?;
        match spec.role {
            Role::Moment(_) => state.extend(sources),
            _ => average.extend(sources),
        }
    }
    average.extend(repeated(&average, &model.registry));
    let mut files = vec![(MODEL_FILE, tensors), (OPTIMIZER_FILE, state)];
    if table.column(AVERAGE.name).is_some() {
        files.push((EMA_FILE, average));
    }
    Ok(files)
}

/// Returns the tensors that a file has under a second name, too.
fn repeated(sources: &[Source], registry: &Registry) -> Vec<Source> {
    let again = |(name, of): &(String, String)| {
        let first = sources.iter().find(|source| source.item.name == *of)?;
        let ranges = first.ranges.iter().map(|(range, tensor)| (range.clone(), tensor.shallow_clone()));
        Some(Source {
            item: Item { name: name.clone(), ..first.item.clone() },
            ranges: ranges.collect(),
            unchanged_until_update: first.unchanged_until_update,
        })
    };
    registry.repeated().iter().filter_map(again).collect()
}

/// Returns `step.NAME`: the number of updates of each trained row.
fn updates(table: &Table) -> Result<Vec<Source>, CheckpointError> {
    let rows = table.names().zip(&table.updates);
    rows.map(|(name, updates)| Source::whole(format!("{STEPS}.{name}"), Tensor::from(*updates as i64)))
        .collect()
}

/// Returns parameters as float32, or float64 if the model computes in it, and buffers in their own type:
/// restored tensors equal the saved ones.
fn tensors(model: &Model) -> Result<Vec<Source>, CheckpointError> {
    let (registry, unchanged) = (&model.registry, model.task.facts().leaves_parameters_unchanged);
    let updated: HashSet<&str> = model.table.names().collect();
    let parameter = |entry: &Entry| {
        let tensor = entry.tensor().f_detach()?;
        let tensor = match tensor.f_kind()? {
            Kind::Float | Kind::Double => tensor,
            _ => tensor.f_to_kind(Kind::Float)?,
        };
        let unchanged_until_update = unchanged && updated.contains(entry.name());
        Ok(Source { unchanged_until_update, ..Source::whole(entry.name().to_owned(), tensor)? })
    };
    let buffer = |entry: &Entry| Source::whole(entry.name().to_owned(), entry.tensor().f_detach()?);
    let kept = registry.parameters().filter(|entry| !entry.is_base());
    kept.map(parameter).chain(registry.buffers().map(buffer)).collect()
}

/// A row that no rank can write in ranges.
pub(super) struct SplitRow<'a> {
    /// The index of its source.
    source: usize,
    kind: Kind,
    slot: &'a Slot,
}

/// Returns the name of a row's tensor in the file of its column.
pub(super) fn name(spec: ColumnSpec, slot: &Slot) -> String {
    match spec.role {
        Role::Moment(_) => format!("{}.{}", spec.name, slot.name),
        _ => slot.name.clone(),
    }
}

/// Returns this rank's sources of a column, in the same order for any layout, and the rows to gather.
pub(super) fn column_sources<'a>(
    table: &'a Table,
    spec: ColumnSpec,
    held: &[Tensor],
) -> Result<(Vec<Source>, Vec<SplitRow<'a>>), CheckpointError> {
    let parts_of_ranks: Vec<Vec<Part>> = match spec.role {
        Role::Moment(_) => (0..table.shards()).map(|shard| table.parts_of(spec.role, shard)).collect(),
        _ => vec![table.parts(spec.role)],
    };
    let parts = table.parts(spec.role);
    let (mut sources, mut split_rows) = (Vec::new(), Vec::new());
    for (block, slot) in table.slots_of(spec.role) {
        let kind = table.blocks()[block].kind;
        let mut pieces = pieces(&parts, held, block, slot)?;
        let owners = owners(&parts_of_ranks, block, slot);
        let divisible = slot.is_contiguous();
        if !divisible && owners.len() > 1 {
            split_rows.push(SplitRow { source: sources.len(), kind, slot });
        } else if !divisible {
            for (_, tensor) in &mut pieces {
                *tensor = slot.reshape(tensor)?;
            }
        }
        let holders = match parts_of_ranks.len() {
            1 => Holders::All { divisible },
            _ => Holders::Parts(owners),
        };
        let ranges = pieces.into_iter().map(|(range, tensor)| (range.start as u64..range.end as u64, tensor));
        sources.push(Source {
            item: item(name(spec, slot), kind, slot.shape.clone(), holders)?,
            ranges: ranges.collect(),
            unchanged_until_update: true,
        });
    }
    Ok((sources, split_rows))
}

/// Returns the holders of a row's elements, in the order of memory: the end of each range, and its rank.
fn owners(parts_of_ranks: &[Vec<Part>], block: usize, slot: &Slot) -> Vec<(u64, usize)> {
    let mut owners = Vec::new();
    for (rank, parts) in parts_of_ranks.iter().enumerate() {
        let own = parts.iter().filter(|part| part.block == block).filter_map(|part| part.overlap(slot));
        owners.extend(own.map(|range| ((range.end - slot.offset) as u64, rank)));
    }
    owners.sort_unstable();
    owners
}

/// Gives every rank the complete tensors that cannot be written in ranges: several ranks hold parts, in
/// another order than the file's. These are channels-last weights of convolutions at a boundary of two parts.
pub(super) fn gather_split_rows(
    sources: &mut [Source],
    split_rows: &[SplitRow<'_>],
    ranks: &Ranks,
    device: Device,
) -> Result<(), CheckpointError> {
    let mut whole = Vec::new();
    for SplitRow { source, kind, slot } in split_rows {
        let source = &sources[*source];
        let width = kind.elt_size_in_bytes() as i64;
        // Each byte is set by one rank only; a sum of floats would lose the sign of a zero.
        let bytes = retry_on_oom(device, || Tensor::f_zeros([slot.len() * width], (Kind::Uint8, device)))?;
        for (range, tensor) in &source.ranges {
            let flat = tensor.f_contiguous()?.f_view_dtype(Kind::Uint8)?;
            let mut view = bytes.f_narrow(0, range.start as i64 * width, flat.numel() as i64)?;
            tch::no_grad(|| view.f_copy_(&flat))?;
        }
        whole.push(bytes);
    }
    if !whole.is_empty() {
        let sums = whole.iter().map(|bytes| Collective::AllReduce(bytes, ReduceOp::Sum));
        ranks.start_all(&sums.collect::<Vec<_>>())?.wait()?;
    }
    for (SplitRow { source, kind, slot }, bytes) in split_rows.iter().zip(whole) {
        let source = &mut sources[*source];
        source.ranges = vec![(0..slot.len() as u64, slot.reshape(&bytes.f_view_dtype(*kind)?)?)];
        source.item.holders = Holders::All { divisible: false };
    }
    Ok(())
}

/// A tensor of a file, and this rank's share of it.
pub(super) struct Source {
    pub(super) item: Item,
    /// Ranges in the order of the file, and their tensors: in this order, or all elements in any order.
    pub(super) ranges: Vec<(Range<u64>, Tensor)>,
    /// Whether it stays unchanged until the next update and can be copied during a step: true for optimizer
    /// state and average. Forward changes buffers, and a task may change frozen parameters.
    pub(super) unchanged_until_update: bool,
}

impl Borrow<Item> for Source {
    fn borrow(&self) -> &Item {
        &self.item
    }
}

impl Source {
    /// Returns a source that every rank holds. It is copied at once by default.
    pub(super) fn whole(name: String, tensor: Tensor) -> Result<Self, CheckpointError> {
        let holders = Holders::All { divisible: tensor.is_contiguous() };
        Ok(Self {
            item: item(name, tensor.f_kind()?, tensor.size(), holders)?,
            ranges: vec![(0..tensor.numel() as u64, tensor)],
            unchanged_until_update: false,
        })
    }

    /// Returns a tensor of the elements `range`, which this rank must hold.
    pub(super) fn elements(&self, range: &Range<u64>) -> Result<Tensor, TchError> {
        let covers = |(held, _): &&(Range<u64>, Tensor)| held.start <= range.start && range.end <= held.end;
        let missing = || TchError::Convert(format!("{} is not on this rank", self.item.name));
        let (held, tensor) = self.ranges.iter().find(covers).ok_or_else(missing)?;
        if held == range {
            return Ok(tensor.shallow_clone());
        }
        let (start, length) = (range.start - held.start, range.end - range.start);
        tensor.f_view([-1])?.f_narrow(0, start as i64, length as i64)
    }
}

pub(super) fn item(
    name: String,
    kind: Kind,
    shape: Vec<i64>,
    holders: Holders,
) -> Result<Item, CheckpointError> {
    let dtype = dtype_of(kind).ok_or_else(|| {
        let reason = format!("`{name}` has type {kind:?}, which safetensors does not support");
        CheckpointError::Tensors(reason)
    })?;
    Ok(Item { name, dtype, shape, holders })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::state::{AVERAGE, Group, LayoutOptions, Parameter, Rows};

    #[test]
    fn every_row_of_a_column_is_written_even_if_it_is_empty() {
        let make = |len: i64| Tensor::ones([len], (Kind::Float, Device::Cpu));
        let rows = [("trained", make(40)), ("nothing", make(0)), ("counter", make(3)), ("empty", make(0))];
        let groups = [Group::Trained(0), Group::Trained(0), Group::Statistics, Group::Statistics];
        let parameters: Vec<Parameter<'_>> = std::iter::zip(&rows, groups)
            .map(|((name, tensor), group)| Parameter { name, tensor, group })
            .collect();
        for shards in [1, 2] {
            let options = LayoutOptions { shards, ..LayoutOptions::default() };
            let mut table = Table::new(&parameters, options, 0).unwrap();
            let moment = ColumnSpec { name: "exp_avg", role: Role::Moment(Rows::Elements) };
            for (spec, expected) in [
                (moment, &["exp_avg.trained", "exp_avg.nothing"][..]),
                (AVERAGE, &["trained", "nothing", "counter", "empty"]),
            ] {
                table.add_column(spec).unwrap();
                let (sources, _) = column_sources(&table, spec, table.column(spec.name).unwrap()).unwrap();
                let names: Vec<&str> = sources.iter().map(|source| source.item.name.as_str()).collect();
                assert_eq!(names, expected, "{shards} shards");
            }
        }
    }
}
