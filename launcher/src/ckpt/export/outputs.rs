//! What an exported file will contain, decided before writing.

use crate::ckpt::find::checkpoint;
use crate::ckpt::names::{Form, rename};
use crate::ckpt::problem::failed;
use crate::ckpt::progress::check_files;
use crate::ckpt::tensors::{open, torch_name};
use crate::cli::{Dtype, ExportArgs, Names, Weights};
use anyhow::bail;
use dtrain_common::manifest::Manifest;
use dtrain_common::safetensors_file::{Dtype as Type, SafetensorsFile, StoredTensor, widest_first};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const MODEL: &str = "model.safetensors";
const EMA: &str = "ema.safetensors";

/// One tensor of the file to be written.
#[derive(Debug)]
pub(super) struct Output {
    /// The index in [`Export::files`] of the values' source.
    pub(super) file: usize,
    pub(super) source: StoredTensor,
    pub(super) form: Form,
    /// The new type of floating-point values; `None` if they keep their type.
    pub(super) floats: Option<Type>,
    pub(super) target: StoredTensor,
}

#[derive(Debug)]
pub(super) struct Export {
    pub(super) folder: PathBuf,
    pub(super) manifest: Manifest,
    pub(super) names: Names,
    /// Whether tensors of the moving average replace the trained ones.
    pub(super) average: bool,
    pub(super) files: Vec<SafetensorsFile>,
    /// In the order of writing: wider elements first, so that each is aligned to its type.
    pub(super) outputs: Vec<Output>,
}

impl Export {
    /// Reads manifest and headers. A damaged checkpoint is [`failed`].
    pub(super) fn new(args: &ExportArgs) -> anyhow::Result<Self> {
        let folder = checkpoint(&args.checkpoint)?;
        let manifest = Manifest::read(&folder).map_err(failed)?;
        let has = |name: &str| manifest.files.iter().any(|entry| entry.name == name);
        if !has(MODEL) {
            bail!("{} lists no {MODEL}; there is nothing to export", folder.display());
        }
        check_average(args, &folder, has(EMA))?;
        let average = args.weights != Weights::Raw && has(EMA);
        let mut files = Vec::new();
        for name in [Some(MODEL), average.then_some(EMA)].into_iter().flatten() {
            files.push(open(&folder.join(name)).map_err(failed)?);
        }
        let names = args.names;
        let floats = match args.dtype {
            Dtype::Keep => None,
            Dtype::F32 => Some(Type::F32),
            Dtype::Bf16 => Some(Type::BF16),
            Dtype::F16 => Some(Type::F16),
        };
        let outputs = outputs(&files, names, &manifest.model, floats)?;
        Ok(Self { folder, manifest, names, average, files, outputs })
    }

    /// Reads every byte of the files once, to compare their checksums.
    pub(super) fn verify(&self) -> anyhow::Result<()> {
        let wanted = |name: &str| name == MODEL || self.average && name == EMA;
        check_files(&self.folder, &self.manifest, wanted, "use another one")
    }

    /// Returns the number of tensors of each type, by PyTorch's names.
    pub(super) fn types(&self) -> BTreeMap<&'static str, usize> {
        let mut types = BTreeMap::new();
        for output in &self.outputs {
            *types.entry(torch_name(output.target.dtype)).or_default() += 1;
        }
        types
    }
}

/// Checks that the checkpoint in `folder` has a moving average if that is to be written.
pub(super) fn check_average(args: &ExportArgs, folder: &Path, has_average: bool) -> anyhow::Result<()> {
    if args.weights == Weights::Ema && !has_average {
        bail!("{} has no {EMA}: the run keeps no moving average; use --weights raw", folder.display());
    }
    Ok(())
}

/// Returns every tensor of the model, from the last file that has it, under its new names.
fn outputs(
    files: &[SafetensorsFile],
    names: Names,
    model: &str,
    floats: Option<Type>,
) -> anyhow::Result<Vec<Output>> {
    let Some((first, others)) = files.split_first() else {
        return Ok(Vec::new());
    };
    let mut newer: BTreeMap<&str, (usize, &StoredTensor)> = BTreeMap::new();
    for (number, file) in (1..).zip(others) {
        for tensor in &file.tensors {
            newer.insert(&tensor.name, (number, tensor));
        }
    }
    let mut outputs = Vec::new();
    for own in &first.tensors {
        let (file, source) = newer.remove(own.name.as_str()).unwrap_or((0, own));
        if source.shape != own.shape {
            let (path, other) = (first.path.display(), files[file].path.display());
            bail!(
                "{path} has {:?} in the shape {:?} and {other} in {:?}; the files are of different models",
                own.name,
                own.shape,
                source.shape
            );
        }
        let floats = floats.filter(|_| source.is_float());
        for piece in rename(names, model, &own.name)? {
            let shape = shape(piece.form, &own.shape);
            let dtype = floats.unwrap_or(source.dtype);
            let Some(target) = shape.and_then(|shape| StoredTensor::new(piece.name, dtype, shape)) else {
                bail!(
                    "{:?} has the shape {:?}, which does not fit {names}'s {model}; --names pytorch keeps it as it is",
                    own.name,
                    own.shape
                );
            };
            outputs.push(Output { file, source: source.clone(), form: piece.form, floats, target });
        }
    }
    if let Some((name, (file, _))) = newer.first_key_value() {
        let (has, has_not) = (files[*file].path.display(), first.path.display());
        bail!("{has} has {name:?} and {has_not} has not; the files are of different models");
    }
    // A stable sort keeps the model's order otherwise.
    outputs.sort_by_key(|output| widest_first(output.target.dtype));
    Ok(outputs)
}

/// Returns the shape of a tensor in another form; `None` if the form does not fit.
fn shape(form: Form, own: &[usize]) -> Option<Vec<usize>> {
    match (form, own) {
        (Form::Same, _) => Some(own.to_vec()),
        (Form::Transposed, [rows, columns]) => Some(vec![*columns, *rows]),
        (Form::Third(_), [rows, rest @ ..]) if rows.is_multiple_of(3) => {
            Some(std::iter::once(rows / 3).chain(rest.iter().copied()).collect())
        }
        _ => None,
    }
}
