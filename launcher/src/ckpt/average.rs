//! `dtrain ckpt average`: the mean of the weights of several checkpoints of a run, as a checkpoint (Izmailov et al. 2018, arXiv
//! 1803.05407).

use super::find::{Found, find};
use super::problem::{failed, stopped};
use super::progress::{check_files, stop_signal};
use super::round::convert;
use super::tensors::{open, read};
use crate::cli::AverageArgs;
use crate::stdout::print;
use anyhow::{Context, bail};
use dtrain_common::exit::ExitStatus;
use dtrain_common::files::sync_folder;
use dtrain_common::manifest::{FileEntry, Manifest, step_of};
use dtrain_common::progress::{Progress, Unit};
use dtrain_common::safetensors_file::{Dtype, SafetensorsFile, StoredTensor, header};
use dtrain_common::text::counted;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicI32, Ordering};

const MODEL: &str = "model.safetensors";
/// Files of the state of a training, which the mean does not continue.
const STATE: [&str; 2] = ["optimizer-", "ema."];
/// Checkpoints of a run that are averaged, unless the user states their number.
const LAST: usize = 5;
/// Values that are averaged at once.
const PIECE: u64 = 1 << 20;

/// A checkpoint with its manifest.
type Checkpoint = (PathBuf, Manifest);

pub(super) fn run(args: &AverageArgs) -> anyhow::Result<ExitCode> {
    let out = args.out.display();
    let Some(name) = args.out.file_name() else { bail!("{out} names no folder") };
    if args.out.symlink_metadata().is_ok() {
        bail!("{out} exists; name another folder with -o, or remove it");
    }
    let all = checkpoints(args)?;
    check_different(&all)?;
    let step = all[0].1.step;
    if name.to_str().and_then(step_of).is_some_and(|named| named != step) {
        bail!("{out} is the name of another step than the newest, {step}; name another folder");
    }
    let files = all.iter().map(|(folder, _)| open(&folder.join(MODEL)).map_err(failed));
    let files = files.collect::<anyhow::Result<Vec<_>>>()?;
    for other in &files[1..] {
        check_equal(&files[0], other)?;
    }
    for (number, (folder, manifest)) in all.iter().enumerate() {
        // Those of the newest are copied.
        check_files(
            folder,
            manifest,
            |name| name == MODEL || number == 0 && is_copied(name),
            "leave it out",
        )?;
    }
    let mut partial = name.to_owned();
    partial.push(".partial");
    let partial = args.out.with_file_name(partial);
    fs::create_dir(&partial)
        .with_context(|| {
            format!("cannot create {}; if an earlier call left it, remove it", partial.display())
        })
        .map_err(failed)?;
    let stop = stop_signal()?;
    let written = write(&files, &all[0], &partial, &stop).and_then(|()| {
        fs::rename(&partial, args.out.with_file_name(name))?;
        let folder = partial.parent().filter(|parent| !parent.as_os_str().is_empty());
        Ok(sync_folder(folder.unwrap_or(Path::new(".")))?)
    });
    if let Err(error) = written {
        // The rest has no manifest, so it is no checkpoint.
        let _ = fs::remove_dir_all(&partial);
        return Err(match stop.load(Ordering::Relaxed) {
            0 => failed(error.context(format!("cannot write {out}"))),
            signal => stopped(signal, &args.out),
        });
    }
    let steps: Vec<_> = all.iter().rev().map(|(_, manifest)| manifest.step.to_string()).collect();
    let count = counted(all.len(), "checkpoint");
    print(&format!("{out}: the mean weights of {count}, of the steps {}\n", steps.join(", ")))?;
    Ok(ExitStatus::Success.into())
}

/// Returns the checkpoints to average, at least two, the newest first.
fn checkpoints(args: &AverageArgs) -> anyhow::Result<Vec<Checkpoint>> {
    let found = args.paths.iter().map(|path| find(path)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut all: Vec<Checkpoint> = Vec::new();
    match found.as_slice() {
        [Found::Run(run)] => {
            let last = args.last.map(|last| last as usize);
            for folder in run.candidates()? {
                let manifest = Manifest::read(&folder).ok().filter(|read| read.check_sizes(&folder).is_ok());
                let Some(manifest) = manifest else { continue };
                // A copy of a run may have a step twice, by its name and as its `latest`.
                if all.iter().all(|(_, other)| other.step != manifest.step) {
                    all.push((folder, manifest));
                }
                if all.len() == last.unwrap_or(LAST) {
                    break;
                }
            }
            if all.len() < last.unwrap_or(2) {
                let (shown, kept) = (run.checkpoints(), counted(all.len(), "whole checkpoint"));
                let shown = shown.display();
                bail!("{shown} has {kept}; keep more of them with checkpoint.keep, or lower --last");
            }
        }
        several => {
            if args.last.is_some() {
                bail!(
                    "--last counts the checkpoints of one run directory; leave it out, or name the run alone"
                );
            }
            for one in several {
                let folder = match one {
                    Found::Checkpoint(folder) => fs::canonicalize(folder)?,
                    Found::Run(run) => {
                        let run = run.root().display();
                        bail!(
                            "{run} is a run directory; name it alone, or name checkpoints, such as {run}@120"
                        )
                    }
                };
                if all.iter().any(|(other, _)| *other == folder) {
                    bail!("{} is named twice; name it once", folder.display());
                }
                let manifest = Manifest::read(&folder).map_err(failed)?;
                all.push((folder, manifest));
            }
            all.sort_by_key(|(_, manifest)| std::cmp::Reverse(manifest.step));
        }
    }
    if all.len() < 2 {
        bail!("a mean needs two checkpoints at least; name several, or a run directory with --last N");
    }
    Ok(all)
}

/// Checks that no two checkpoints have the same weights.
fn check_different(all: &[Checkpoint]) -> anyhow::Result<()> {
    let model = |at: usize| all[at].1.files.iter().find(|entry| entry.name == MODEL);
    for at in 1..all.len() {
        if let Some(same) = (0..at).find(|&other| model(other) == model(at)) {
            let (one, other) = (all[same].0.display(), all[at].0.display());
            bail!("{one} and {other} have the same weights; leave one out");
        }
        let base = |at: usize| all[at].1.base.as_ref().map(|base| &base.blake3);
        if base(0) != base(at) {
            let (one, other) = (all[0].0.display(), all[at].0.display());
            bail!("{one} and {other} have adapters of different weights; name checkpoints of one run");
        }
    }
    Ok(())
}

/// Returns whether the mean has a file of the newest checkpoint.
fn is_copied(name: &str) -> bool {
    name != MODEL && !STATE.iter().any(|state| name.starts_with(state))
}

/// Checks that two files have the same tensors.
fn check_equal(one: &SafetensorsFile, other: &SafetensorsFile) -> anyhow::Result<()> {
    let kind = |tensor: &StoredTensor| (tensor.name.clone(), tensor.dtype, tensor.shape.clone());
    let sorted = |file: &SafetensorsFile| {
        let mut kinds: Vec<_> = file.tensors.iter().map(kind).collect();
        kinds.sort_by(|a, b| a.0.cmp(&b.0));
        kinds
    };
    let (of_one, of_other) = (sorted(one), sorted(other));
    let difference = of_one.iter().zip(&of_other).find(|(a, b)| a != b).map(|(a, _)| &a.0);
    match (difference, of_one.len() == of_other.len()) {
        (None, true) => Ok(()),
        (name, _) => bail!(
            "{} and {} are of different models{}; name checkpoints of one model",
            one.path.display(),
            other.path.display(),
            name.map_or_else(String::new, |name| format!(": they differ at {name:?}"))
        ),
    }
}

/// Writes the checkpoint, its manifest last.
fn write(
    files: &[SafetensorsFile],
    (newest, manifest): &Checkpoint,
    to: &Path,
    stop: &AtomicI32,
) -> anyhow::Result<()> {
    let cannot = || format!("cannot write {}", to.display());
    write_means(files, &to.join(MODEL), stop).with_context(cannot)?;
    let mut entries = vec![FileEntry::of(&to.join(MODEL), MODEL).with_context(cannot)?];
    for entry in &manifest.files {
        if is_copied(&entry.name) {
            let copy = to.join(&entry.name);
            fs::copy(newest.join(&entry.name), &copy).with_context(cannot)?;
            File::open(&copy).and_then(|file| file.sync_all()).with_context(cannot)?;
            entries.push(entry.clone());
        }
    }
    let manifest = Manifest {
        files: entries,
        metrics: Default::default(),
        best: None,
        stopping: None,
        ema_updates: None,
        loss_scale: None,
        evaluation_missing: false,
        ..manifest.clone()
    };
    manifest.write(to)?;
    Ok(sync_folder(to)?)
}

/// Writes the mean of floating-point values, computed in float64. Other values are those of the first file.
fn write_means(files: &[SafetensorsFile], path: &Path, stop: &AtomicI32) -> anyhow::Result<()> {
    let newest = &files[0];
    let head = header(&newest.tensors, None).map_err(anyhow::Error::msg)?;
    let mut out = BufWriter::new(File::create(path)?);
    out.write_all(&head)?;
    let total = newest.tensors.iter().map(|tensor| tensor.bytes * files.len() as u64).sum();
    let progress = Progress::of(format!("writing {}", path.display()), total, Unit::Bytes);
    for tensor in &newest.tensors {
        let width = tensor.width();
        let sources = files.iter().map(|file| {
            let same = file.tensors.iter().find(|other| other.name == tensor.name);
            Ok((file, same.with_context(|| format!("{} lacks {:?}", file.path.display(), tensor.name))?))
        });
        let sources = sources.collect::<anyhow::Result<Vec<_>>>()?;
        let mut offset = 0;
        while offset < tensor.bytes {
            if stop.load(Ordering::Relaxed) != 0 {
                bail!("stopped");
            }
            let length = (PIECE * width).min(tensor.bytes - offset);
            let mut bytes = vec![0; length as usize];
            let mut sums = vec![0.0; (length / width.max(1)) as usize];
            // Backwards, so that the bytes are those of the newest in the end.
            for (file, source) in sources.iter().rev() {
                read(file, source, offset, &mut bytes)?;
                progress.add(length);
                if tensor.is_float() {
                    add(tensor.dtype, &bytes, &mut sums);
                }
            }
            if tensor.is_float() {
                sums.iter_mut().for_each(|sum| *sum /= sources.len() as f64);
                bytes = numbers(tensor.dtype, &sums);
            }
            out.write_all(&bytes)?;
            offset += length;
        }
    }
    let file = out.into_inner().map_err(|error| error.into_error())?;
    Ok(file.sync_all()?)
}

/// Adds floating-point numbers to sums.
fn add(dtype: Dtype, bytes: &[u8], sums: &mut [f64]) {
    if dtype == Dtype::F64 {
        let values = bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        return;
    }
    let mut single = Vec::with_capacity(4 * sums.len());
    convert(dtype, Dtype::F32, bytes, &mut single);
    let values = single.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += f64::from(value));
}

/// Returns the bytes of numbers in a type.
fn numbers(dtype: Dtype, values: &[f64]) -> Vec<u8> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    if dtype == Dtype::F64 {
        return bytes;
    }
    let mut out = Vec::new();
    convert(Dtype::F64, dtype, &bytes, &mut out);
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    fn file(folder: &Path, name: &str, values: &[f32], count: i64) -> SafetensorsFile {
        let weights = StoredTensor::new("w", Dtype::F32, vec![values.len()]).unwrap();
        let half = StoredTensor::new("h", Dtype::BF16, vec![1]).unwrap();
        let batches = StoredTensor::new("n", Dtype::I64, vec![]).unwrap();
        let mut bytes = header([&batches, &weights, &half], None).unwrap();
        bytes.extend(count.to_le_bytes());
        values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        bytes.extend(half::bf16::from_f32(values[0]).to_le_bytes());
        let path = folder.join(name);
        fs::write(&path, bytes).unwrap();
        SafetensorsFile::open(&path).unwrap()
    }

    proptest! {
        #[test]
        fn floats_are_means_and_whole_numbers_the_newest(
            all in prop::collection::vec(prop::collection::vec(-8i8..8, 3), 2..5)
        ) {
            let folder = tempfile::tempdir().unwrap();
            let values: Vec<Vec<f32>> =
                all.iter().map(|row| row.iter().map(|&value| f32::from(value)).collect()).collect();
            let files: Vec<_> = values
                .iter()
                .enumerate()
                .map(|(at, values)| file(folder.path(), &format!("{at}"), values, 100 - at as i64))
                .collect();
            let path = folder.path().join("mean");
            write_means(&files, &path, &AtomicI32::new(0)).unwrap();
            let mean = SafetensorsFile::open(&path).unwrap();
            prop_assert!(check_equal(&files[0], &mean).is_ok());
            let bytes = |name: &str| {
                let tensor = mean.tensors.iter().find(|tensor| tensor.name == name).unwrap();
                let mut bytes = vec![0; tensor.bytes as usize];
                read(&mean, tensor, 0, &mut bytes).unwrap();
                bytes
            };
            prop_assert_eq!(bytes("n"), 100i64.to_le_bytes());
            for at in 0..3 {
                let expected = values.iter().map(|row| f64::from(row[at])).sum::<f64>() / values.len() as f64;
                let found = bytes("w")[4 * at..4 * at + 4].try_into().map(f32::from_le_bytes).unwrap();
                prop_assert_eq!(found, expected as f32);
            }
            let first = values.iter().map(|row| row[0]).sum::<f32>() / values.len() as f32;
            prop_assert_eq!(bytes("h"), half::bf16::from_f32(first).to_le_bytes());
        }
    }

    #[test]
    fn other_models_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let [one, two] =
            [("a", 3), ("b", 4)].map(|(name, length)| file(folder.path(), name, &vec![0.0; length], 0));
        let error = check_equal(&one, &two).unwrap_err().to_string();
        assert!(error.contains("they differ at \"w\""), "{error}");
    }
}
