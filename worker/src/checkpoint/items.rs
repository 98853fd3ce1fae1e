//! The tensors of a checkpoint, as this rank holds them.

use std::collections::HashSet;

use tch::{Device, Kind, Tensor};

use super::error::CheckpointError;
use super::source::Source;
use super::{EMA_FILE, MODEL_FILE, OPTIMIZER_FILE, STEPS, columns};
use crate::collectives::Ranks;
use crate::out_of_memory::patiently;
use crate::state::{AVERAGE, Model, Role, Table};

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
