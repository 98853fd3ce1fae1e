//! The tensors of a checkpoint, as this rank holds them.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::ops::Range;

use tch::{Device, Kind, TchError, Tensor};

use super::error::CheckpointError;
use super::layout::{Held, Item};
use super::{EMA_FILE, MODEL_FILE, OPTIMIZER_FILE, STEPS, columns};
use crate::collectives::Ranks;
use crate::models::dtype_of;
use crate::out_of_memory::patiently;
use crate::state::{AVERAGE, Model, Role, Table};

/// A tensor of a file, and what this rank has of it.
pub(super) struct Source {
    pub(super) item: Item,
    /// Elements in the order of the file, and a tensor of them: one that lies in this order, or all of them in any.
    pub(super) held: Vec<(Range<u64>, Tensor)>,
    /// Whether nothing changes it before the next update: it can be copied while the next step is computed. True of what the
    /// optimizer and the average keep. Buffers change in forward, and what is frozen a task may change.
    pub(super) lasts: bool,
}

impl Borrow<Item> for Source {
    fn borrow(&self) -> &Item {
        &self.item
    }
}

impl Source {
    /// A tensor that every rank has; it is copied at once unless the caller says that it lasts.
    pub(super) fn whole(name: String, tensor: Tensor) -> Result<Self, CheckpointError> {
        let held = Held::All {
            divisible: tensor.is_contiguous(),
        };
        Ok(Self {
            item: item(name, tensor.f_kind()?, tensor.size(), held)?,
            held: vec![(0..tensor.numel() as u64, tensor)],
            lasts: false,
        })
    }

    /// A tensor with these elements, which this rank has according to the layout.
    pub(super) fn elements(&self, range: &Range<u64>) -> Result<Tensor, TchError> {
        let covers = |(held, _): &&(Range<u64>, Tensor)| held.start <= range.start && range.end <= held.end;
        let missing = || TchError::Convert(format!("{} is not held here", self.item.name));
        let (held, tensor) = self.held.iter().find(covers).ok_or_else(missing)?;
        if held == range {
            return Ok(tensor.shallow_clone());
        }
        let (start, length) = (range.start - held.start, range.end - range.start);
        tensor.f_view([-1])?.f_narrow(0, start as i64, length as i64)
    }
}

pub(super) fn item(name: String, kind: Kind, shape: Vec<i64>, held: Held) -> Result<Item, CheckpointError> {
    let dtype = dtype_of(kind).ok_or_else(|| {
        let reason = format!("`{name}` has the type {kind:?}, which safetensors files lack");
        CheckpointError::Tensors(reason)
    })?;
    Ok(Item {
        name,
        dtype,
        shape,
        held,
    })
}

/// The files of a checkpoint with their tensors, the same ones in the same order on every rank. Every rank calls it between
/// two steps, as the ranks exchange what none of them could write.
pub(super) fn files(
    model: &Model,
    ranks: &Ranks,
    device: Device,
) -> Result<Vec<(&'static str, Vec<Source>)>, CheckpointError> {
    let table = &model.table;
    let tensors = patiently(device, || tensors(model))?;
    let mut state = patiently(device, || updates(table))?;
    let mut average = Vec::new();
    for (spec, held) in table.columns() {
        let (mut sources, scattered) = patiently(device, || columns::sources(table, spec, held))?;
        columns::assemble(&mut sources, &scattered, ranks, device)?;
        match spec.role {
            Role::Moment => state.extend(sources),
            _ => average.extend(sources),
        }
    }
    let mut files = vec![(MODEL_FILE, tensors), (OPTIMIZER_FILE, state)];
    if table.column(AVERAGE.name).is_some() {
        files.push((EMA_FILE, average));
    }
    Ok(files)
}

/// `step.NAME`: how many updates each trained row has had.
fn updates(table: &Table) -> Result<Vec<Source>, CheckpointError> {
    let of_row = |(name, updates): (&str, &u64)| {
        Source::whole(format!("{STEPS}.{name}"), Tensor::from(*updates as i64))
    };
    table.names().zip(table.updates()).map(of_row).collect()
}

/// Parameters as float32, or as float64 where the model computes in it, and buffers in their own type: what is loaded again is
/// what was saved.
fn tensors(model: &Model) -> Result<Vec<Source>, CheckpointError> {
    let (registry, keeps_parameters) = (&model.registry, model.task.keeps_parameters());
    let updated: HashSet<&str> = model.table.names().collect();
    let mut sources = Vec::new();
    for entry in registry.parameters() {
        let tensor = entry.tensor().f_detach()?;
        let tensor = match tensor.f_kind()? {
            Kind::Float | Kind::Double => tensor,
            _ => tensor.f_to_kind(Kind::Float)?,
        };
        let mut source = Source::whole(entry.name().to_owned(), tensor)?;
        source.lasts = keeps_parameters && updated.contains(entry.name());
        sources.push(source);
    }
    for entry in registry.buffers() {
        let tensor = entry.tensor().f_detach()?;
        sources.push(Source::whole(entry.name().to_owned(), tensor)?);
    }
    Ok(sources)
}
