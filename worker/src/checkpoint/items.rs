//! The tensors of a checkpoint, as this rank holds them.

use std::collections::HashSet;

use tch::{Device, Kind, Tensor};

use super::error::CheckpointError;
use super::layout::{FileLayout, Item, layout};
use super::source::Source;
use super::{EMA_FILE, MODEL_FILE, OPTIMIZER_FILE, STEPS, columns};
use crate::collectives::Ranks;
use crate::engine::patiently;
use crate::models::Registry;
use crate::state::{AVERAGE, Role, Table};

/// What a checkpoint is made of.
pub struct Snapshot<'a> {
    /// The model's parameters and buffers.
    pub registry: &'a Registry,
    /// What is kept of its rows.
    pub table: &'a Table,
    /// Whether only the optimizer changes trained parameters: see `Task::keeps_parameters`.
    pub keeps_parameters: bool,
}

/// The files of a checkpoint with their tensors, the same ones in the same order on every rank. Every rank calls it between
/// two steps, as the ranks exchange what none of them could write.
///
/// # Errors
/// Where a peer is lost or memory runs out.
pub(super) fn files(
    snapshot: &Snapshot<'_>,
    ranks: &Ranks,
    device: Device,
) -> Result<Vec<(String, Vec<Source>)>, CheckpointError> {
    let table = snapshot.table;
    let model = patiently(device, || model(snapshot))?;
    let mut state = patiently(device, || updates(table))?;
    let mut average = Vec::new();
    for (spec, held) in table.columns() {
        let (mut sources, scattered) = patiently(device, || columns::sources(table, spec, held))?;
        columns::assemble(&mut sources, &scattered, table, ranks)?;
        match spec.role {
            Role::Moment => state.extend(sources),
            Role::Average => average.extend(sources),
        }
    }
    let mut files = vec![(MODEL_FILE.to_owned(), model), (OPTIMIZER_FILE.to_owned(), state)];
    if table.column(AVERAGE.name).is_some() {
        files.push((EMA_FILE.to_owned(), average));
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

/// Who of so many ranks writes what of the files.
///
/// # Errors
/// What the format has no form for.
pub(super) fn divide(
    files: &[(String, Vec<Source>)],
    ranks: usize,
) -> Result<Vec<FileLayout>, CheckpointError> {
    let items: Vec<(String, Vec<Item>)> = files
        .iter()
        .map(|(name, sources)| {
            let items = sources.iter().map(|source| source.item.clone());
            (name.clone(), items.collect())
        })
        .collect();
    layout(&items, ranks).map_err(CheckpointError::Unwritable)
}

/// Parameters as float32, or as float64 where the model computes in it, and buffers in their own type: what is loaded again is
/// what was saved.
fn model(snapshot: &Snapshot<'_>) -> Result<Vec<Source>, CheckpointError> {
    let registry = snapshot.registry;
    let updated: HashSet<&str> = snapshot.table.names().collect();
    let mut sources = Vec::new();
    for entry in registry.parameters() {
        let tensor = entry.tensor().f_detach()?;
        let tensor = match tensor.f_kind()? {
            Kind::Float | Kind::Double => tensor,
            _ => tensor.f_to_kind(Kind::Float)?,
        };
        let source = Source::whole(entry.name().to_owned(), tensor)?;
        sources.push(
            match snapshot.keeps_parameters && updated.contains(entry.name()) {
                true => source.lasting(),
                false => source,
            },
        );
    }
    for entry in registry.buffers() {
        sources.push(Source::whole(
            entry.name().to_owned(),
            entry.tensor().f_detach()?,
        )?);
    }
    Ok(sources)
}
