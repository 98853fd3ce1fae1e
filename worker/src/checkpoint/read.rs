//! Chooses the checkpoint that a run resumes from, and restores a model and its optimizer from it.

use std::ops::Range;
use std::path::{Path, PathBuf};

use dtrain_common::manifest::{Manifest, ManifestError};
use dtrain_common::progress::{Progress, Unit};
use dtrain_common::run_dir::{Resume, RunDir, RunDirError, passed_over, target};
use tch::Tensor;

use super::error::CheckpointError;
use super::items::name;
use super::{EMA_FILE, MODEL_FILE, OPTIMIZER_FILE, STEPS};
use crate::models::{ModelError, Registry, TensorFile, WeightsMode, load_state};
use crate::optim::Model;
use crate::state::{AVERAGE, ColumnSpec, Role, Slot, Table, narrow, pieces};

/// Returns the verified checkpoint to resume from; None for a run that begins. [`Resume::Auto`] takes the
/// newest intact checkpoint of the run. Rank 0 calls this before any rank reads a checkpoint.
pub fn choose(run_dir: &RunDir, resume: &Resume) -> Result<Option<PathBuf>, RunDirError> {
    match resume {
        Resume::Never => return Ok(None),
        Resume::From(folder) => {
            verify(folder)?;
            // A link such as `best` may change during the run, even before every rank has read through it.
            return Ok(Some(folder.canonicalize().unwrap_or_else(|_| folder.clone())));
        }
        Resume::Auto => {}
    }
    if target(&run_dir.latest()).is_some() && run_dir.linked(&run_dir.latest()).is_none() {
        tracing::warn!("{} is a broken link", run_dir.latest().display());
    }
    for folder in run_dir.candidates()? {
        match verify(&folder) {
            Ok(()) => return Ok(Some(folder)),
            Err(error) => {
                let error = passed_over(&folder, error)?;
                tracing::warn!("skipping checkpoint {}: {error}", folder.display());
            }
        }
    }
    run_dir.check_fresh_start().map(|()| None)
}

/// Verifies the size and checksum of every file of the checkpoint.
pub fn verify(folder: &Path) -> Result<(), ManifestError> {
    let manifest = Manifest::read(folder)?;
    let bytes = manifest.files.iter().map(|entry| entry.bytes).sum();
    let progress = Progress::of(format!("verifying {}", folder.display()), bytes, Unit::Bytes);
    manifest.verify_with(folder, |bytes| progress.add(bytes))
}

/// Restores only the weights into a model: with `average`, those of the moving average if the checkpoint has
/// one. Returns whether the average was used.
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
        // The file lacks tensors that were never trained.
        load_state(registry, &folder.join(EMA_FILE), WeightsMode::Partial)?;
    }
    Ok(average)
}

/// Restores `folder` into a model laid out for the checkpoint's phase, and returns the manifest. Every rank
/// calls this after rank 0 has called [`choose`]. If the checkpoint does not fit, nothing changes.
pub(crate) fn restore(folder: &Path, model: &mut Model) -> Result<Manifest, CheckpointError> {
    let manifest = Manifest::read(folder)?;
    manifest.check_sizes(folder)?;
    let table = &model.table;
    let open = |name: &str| TensorFile::open(&folder.join(name)).map_err(ModelError::from);
    let moments = open(OPTIMIZER_FILE)?;
    let average = table.column(AVERAGE.name).map(|_| open(EMA_FILE)).transpose()?;
    let file = |role: Role| match role {
        Role::Moment(_) => Some(&moments),
        _ => average.as_ref(),
    };
    let columns = || table.columns().filter_map(|(spec, held)| Some((spec, held, file(spec.role)?)));
    // Checks everything before the first change.
    let updates = read_updates(table, &moments)?;
    for (spec, _, file) in columns() {
        for (_, slot) in table.slots_of(spec.role) {
            check_shape(file, &name(spec, slot), slot)?;
        }
    }
    load_state(&model.registry, &folder.join(MODEL_FILE), WeightsMode::Strict)?;
    for (spec, held, file) in columns() {
        let parts = table.parts(spec.role);
        for (block, slot) in table.slots_of(spec.role) {
            for (range, own) in pieces(&parts, held, block, slot)? {
                read(file, &name(spec, slot), slot, range, own)?;
            }
        }
    }
    model.table.updates = updates;
    if let (Some(average), Some(updates)) = (&mut model.average, manifest.ema_updates) {
        average.restore(updates);
    }
    Ok(manifest)
}

/// Writes a row's tensor into the parts of a column that this rank holds.
pub(super) fn write_row(
    table: &Table,
    spec: ColumnSpec,
    held: &[Tensor],
    block: usize,
    slot: &Slot,
    whole: &Tensor,
) -> Result<(), CheckpointError> {
    let whole = slot.flatten(whole)?;
    for (range, mut own) in pieces(&table.parts(spec.role), held, block, slot)? {
        tch::no_grad(|| own.f_copy_(&narrow(&whole, &range)?))?;
    }
    Ok(())
}

/// Returns the number of updates of each trained row.
fn read_updates(table: &Table, file: &TensorFile) -> Result<Vec<u64>, CheckpointError> {
    let of_row = |row: &str| {
        let name = format!("{STEPS}.{row}");
        let count = i64::try_from(file.read(&name)?)?;
        u64::try_from(count).map_err(|_| tensor_error(file, format!("{name} is negative")))
    };
    table.names().map(of_row).collect()
}

fn check_shape(file: &TensorFile, name: &str, slot: &Slot) -> Result<(), CheckpointError> {
    let (shape, wanted) = (file.shape(name)?, &slot.shape);
    let reason = || format!("{name} has shape {shape:?}, but shape {wanted:?} in the model");
    (shape == *wanted).then_some(()).ok_or_else(|| tensor_error(file, reason()))
}

fn tensor_error(file: &TensorFile, reason: String) -> CheckpointError {
    CheckpointError::Tensors(format!("{}: {reason}", file.path().display()))
}

/// Reads a range of a row's elements, in the order of memory, into `own`.
fn read(
    file: &TensorFile,
    name: &str,
    slot: &Slot,
    range: Range<i64>,
    mut own: Tensor,
) -> Result<(), CheckpointError> {
    if range == (0..slot.len()) {
        return Ok(file.read_into(name, &slot.reshape(&own)?)?);
    }
    let whole = slot.flatten(&file.read(name)?)?;
    tch::no_grad(|| own.f_copy_(&narrow(&whole, &range)?))?;
    Ok(())
}
