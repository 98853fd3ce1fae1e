//! `dtrain ckpt export`: a checkpoint's model in one file, for other programs.

mod adapters;
mod outputs;
mod write;

use self::outputs::{Export, Output};
use self::write::Unwritten;
use super::problem::{failed, stopped};
use super::progress::stop_signal;
use super::tensors::torch_name;
use crate::ckpt::find::checkpoint;
use crate::cli::{Dtype, ExportArgs, Names, Weights};
use crate::stdout::print;
use anyhow::bail;
use dtrain_common::exit::ExitStatus;
use dtrain_common::files::write_atomic_with;
use dtrain_common::manifest::{FILE_NAME, Manifest};
use dtrain_common::progress::{Progress, Unit};
use dtrain_common::question::{Floats, MergeQuestion};
use dtrain_common::safetensors_file::header;
use dtrain_common::text::{counted, size};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// The metadata key for the class names, a JSON list in the order of the class numbers.
const CLASS_NAMES: &str = "class_names";

pub(super) fn run(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let manifest = Manifest::read(&checkpoint(&args.checkpoint)?).map_err(failed)?;
    match &manifest.base {
        Some(base) if args.adapters => return adapters::write(args, &manifest, base),
        None if args.adapters => bail!("{} has no adapters; leave --adapters out", args.checkpoint.display()),
        _ => check_out(&args.out, args.force)?,
    }
    let export = Export::new(args)?;
    export.verify()?;
    write(&export, &args.out, args.force)?;
    let bytes = export.outputs.iter().map(|output| output.target.bytes).sum();
    let count = counted(export.outputs.len(), "tensor");
    let mut text = format!("{}: {count}, {}\n", args.out.display(), size(bytes));
    let manifest = &export.manifest;
    let weights = match (export.average, args.weights) {
        (true, _) => "the moving average",
        (false, Weights::Raw) => "as trained",
        (false, _) => "as trained; the run has no moving average",
    };
    let types: Vec<_> = export.types().iter().map(|(name, number)| format!("{name} ({number})")).collect();
    for (name, value) in [
        ("checkpoint", export.folder.display().to_string()),
        ("model", format!("{}, step {}", manifest.model, manifest.step)),
        ("weights", weights.to_owned()),
        ("names", export.names.to_string()),
        ("types", types.join(", ")),
    ] {
        text.push_str(&format!("  {name:<10}  {value}\n"));
    }
    print(&text)?;
    Ok(ExitStatus::Success.into())
}

/// Returns the question to the trainer that writes the whole model of a checkpoint; None if the checkpoint lacks no parameters, or its
/// adapters are written alone.
pub(crate) fn merge(args: &ExportArgs) -> anyhow::Result<Option<MergeQuestion>> {
    // The export says what is wrong with a checkpoint.
    let Ok(checkpoint) = checkpoint(&args.checkpoint) else { return Ok(None) };
    let Some(manifest) = Manifest::read(&checkpoint).ok().filter(|manifest| manifest.base.is_some()) else {
        return Ok(None);
    };
    if args.adapters {
        return Ok(None);
    }
    check_out(&args.out, args.force)?;
    outputs::check_average(args, &checkpoint, manifest.ema_updates.is_some())?;
    if args.names != Names::Pytorch {
        bail!("a checkpoint without its base is written under PyTorch's names; leave --names out");
    }
    let floats = match args.dtype {
        Dtype::Keep => None,
        Dtype::F32 => Some(Floats::F32),
        Dtype::Bf16 => Some(Floats::Bf16),
        Dtype::F16 => Some(Floats::F16),
    };
    let (out, force, average) = (args.out.clone(), args.force, args.weights != Weights::Raw);
    Ok(Some(MergeQuestion { checkpoint, out, force, average, floats }))
}

/// Rejects a wrong output path before reading any file.
pub(crate) fn check_out(out: &Path, force: bool) -> anyhow::Result<()> {
    if out.is_dir() {
        bail!("{} is a folder; name the file to write", out.display());
    }
    if !force && out.symlink_metadata().is_ok() {
        bail!("{} already exists; --force overwrites it", out.display());
    }
    let folder = match out.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => bail!("{} names no file", out.display()),
    };
    if !folder.is_dir() {
        bail!("the folder {} of {} does not exist", folder.display(), out.display());
    }
    if folder.join(FILE_NAME).exists() {
        bail!("{} is a checkpoint, which must not change; choose a file elsewhere", folder.display());
    }
    Ok(())
}

fn write(export: &Export, out: &Path, force: bool) -> anyhow::Result<()> {
    // From here on, a stop must remove the unfinished file.
    let stop = stop_signal()?;
    let total = export.outputs.iter().map(|output| output.target.bytes).sum();
    let progress = Progress::of(format!("writing {}", out.display()), total, Unit::Bytes);
    let targets = export.outputs.iter().map(|output| &output.target);
    let names = &export.manifest.class_names;
    let metadata = (!names.is_empty()).then(|| (CLASS_NAMES, serde_json::json!(names).to_string()));
    let head = header(targets, metadata).map_err(|reason| failed(anyhow::Error::msg(reason)))?;
    let mut overflows = Vec::new();
    let written = write_atomic_with(out, force, |file: &mut File| {
        file.write_all(&head)?;
        for output in &export.outputs {
            let mut put = |bytes: &[u8]| {
                let signal = stop.load(Ordering::Relaxed);
                if signal != 0 {
                    return Err(Unwritten::Stopped(signal));
                }
                file.write_all(bytes)?;
                progress.add(bytes.len() as u64);
                Ok(())
            };
            let number = write::tensor(&export.files[output.file], output, &mut put)?;
            if number > 0 {
                overflows.push((output, number));
            }
        }
        match too_large(&overflows) {
            None => Ok(()),
            Some(message) => Err(Unwritten::Other(anyhow::Error::msg(message))),
        }
    });
    drop(progress);
    written.map_err(|error| unwritten(error, out))
}

fn unwritten(error: Unwritten, out: &Path) -> anyhow::Error {
    let shown = out.display();
    match error {
        Unwritten::Io(error) if error.kind() == ErrorKind::AlreadyExists => {
            failed(anyhow::anyhow!("{shown} was created meanwhile; --force overwrites it"))
        }
        Unwritten::Io(error) => failed(anyhow::Error::new(error).context(format!("cannot write {shown}"))),
        Unwritten::Stopped(signal) => stopped(signal, out),
        Unwritten::Other(error) => failed(error),
    }
}

/// Returns the message about finite numbers that the type cannot hold; `None` without such numbers.
fn too_large(overflows: &[(&Output, u64)]) -> Option<String> {
    let (first, _) = overflows.first()?;
    let number = overflows.iter().map(|(_, number)| number).sum::<u64>();
    Some(format!(
        "{} in {} (the first is {:?}) would become infinite in {}; use --dtype bf16, which has the range of float32, \
         or --dtype keep",
        counted(number as usize, "number"),
        counted(overflows.len(), "tensor"),
        first.source.name,
        torch_name(first.target.dtype)
    ))
}
