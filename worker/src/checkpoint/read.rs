//! Which checkpoint a run goes on from, and reading it back into a model and its optimizer.

use std::ops::Range;
use std::path::{Path, PathBuf};

use dtrain_common::manifest::{Manifest, ManifestError};
use dtrain_common::run_dir::{Resume, RunDir, RunDirError};
use tch::Tensor;

use super::error::CheckpointError;
use super::items::name;
use super::{EMA_FILE, MODEL_FILE, OPTIMIZER_FILE, STEPS};
use crate::models::{ModelError, Registry, TensorFile, WeightsMode, load_state};
use crate::state::{AVERAGE, Model, Role, Slot, Table, narrow, pieces};

/// The checkpoint to go on from, every byte of which is as it was written; none for a run that begins. With
/// [`Resume::Auto`] the newest whole one of the run. Rank 0 calls it, before any rank reads one.
pub fn choose(run_dir: &RunDir, resume: &Resume) -> Result<Option<PathBuf>, RunDirError> {
    match resume {
        Resume::Never => return Ok(None),
        Resume::From(folder) => {
            verify(folder)?;
            // A link such as `best` moves on during the run, perhaps before every rank has read through it.
            return Ok(Some(folder.canonicalize().unwrap_or_else(|_| folder.clone())));
        }
        Resume::Auto => {}
    }
    if run_dir.latest().is_symlink() && !run_dir.latest().exists() {
        tracing::warn!("{} points nowhere", run_dir.latest().display());
    }
    for folder in run_dir.candidates()? {
        match verify(&folder) {
            Ok(()) => return Ok(Some(folder)),
            Err(error @ ManifestError::NewerFormat { .. }) => return Err(error.into()),
            Err(error) => tracing::warn!("{} is passed over: {error}", folder.display()),
        }
    }
    run_dir.none_to_begin_with().map(|()| None)
}

/// Whether every byte of the checkpoint is as it was written.
pub fn verify(folder: &Path) -> Result<(), ManifestError> {
    Manifest::read(folder)?.verify(folder)
}

/// Puts the weights alone of a checkpoint with this manifest into a model, by `average` those of its moving average where it has one.
/// Returns whether they are the average.
pub(crate) fn restore_weights(
    folder: &Path,
    manifest: &Manifest,
    registry: &Registry,
    average: bool,
) -> Result<bool, CheckpointError> {
    manifest.check_sizes(folder)?;
    load_state(registry, &folder.join(MODEL_FILE), WeightsMode::Strict)?;
    let average = average && manifest.ema_updates.is_some();
    if average {
        // Of what was never trained there is none.
        load_state(registry, &folder.join(EMA_FILE), WeightsMode::Partial)?;
    }
    Ok(average)
}

/// Puts the checkpoint in `folder` into a model, which is laid out for the phase that the checkpoint ends in, and returns its manifest.
/// Every rank calls it, after rank 0 has verified the checkpoint ([`choose`]); nothing is changed where it does not fit.
pub(crate) fn restore(folder: &Path, model: &mut Model) -> Result<Manifest, CheckpointError> {
    let manifest = Manifest::read(folder)?;
    manifest.check_sizes(folder)?;
    let table = &model.table;
    let open = |name: &str| TensorFile::open(&folder.join(name)).map_err(ModelError::from);
    let moments = open(OPTIMIZER_FILE)?;
    let average = table.column(AVERAGE.name).map(|_| open(EMA_FILE)).transpose()?;
    let file = |role: Role| match role {
        Role::Moment => Some(&moments),
        _ => average.as_ref(),
    };
    let columns = || table.columns().filter_map(|(spec, held)| Some((spec, held, file(spec.role)?)));
    // Whether it fits is seen before anything is changed.
    let updates = updates(table, &moments)?;
    for (spec, _, file) in columns() {
        for (_, slot) in table.slots_of(spec.role) {
            same_shape(file, &name(spec, slot), slot)?;
        }
    }
    load_state(&model.registry, &folder.join(MODEL_FILE), WeightsMode::Strict)?;
    for (spec, held, file) in columns() {
        let parts = table.parts(spec.role);
        for (block, slot) in table.slots_of(spec.role) {
            for (range, own) in pieces(&parts, held, (block, slot))? {
                read(file, &name(spec, slot), (slot, range), own)?;
            }
        }
    }
    model.table.updates = updates;
    if let (Some(average), Some(updates)) = (&mut model.average, manifest.ema_updates) {
        average.restore(updates);
    }
    Ok(manifest)
}

/// How many updates each trained row has had.
fn updates(table: &Table, file: &TensorFile) -> Result<Vec<u64>, CheckpointError> {
    let of_row = |row: &str| {
        let name = format!("{STEPS}.{row}");
        let count = i64::try_from(file.read(&name)?)?;
        u64::try_from(count).map_err(|_| wrong(file, format!("{name} is negative")))
    };
    table.names().map(of_row).collect()
}

fn same_shape(file: &TensorFile, name: &str, slot: &Slot) -> Result<(), CheckpointError> {
    let (shape, wanted) = (file.shape(name)?, &slot.shape);
    let reason = || format!("{name} has the shape {shape:?}, the model's is {wanted:?}");
    (shape == *wanted).then_some(()).ok_or_else(|| wrong(file, reason()))
}

fn wrong(file: &TensorFile, reason: String) -> CheckpointError {
    CheckpointError::Tensors(format!("{}: {reason}", file.path().display()))
}

/// Reads elements of a row, in the order of memory, into `own`.
fn read(
    file: &TensorFile,
    name: &str,
    (slot, range): (&Slot, Range<i64>),
    mut own: Tensor,
) -> Result<(), CheckpointError> {
    if range == (0..slot.len()) {
        return Ok(file.read_into(name, &slot.shaped(&own)?)?);
    }
    let whole = slot.flat(&file.read(name)?)?;
    tch::no_grad(|| own.f_copy_(&narrow(&whole, &range)?))?;
    Ok(())
}
