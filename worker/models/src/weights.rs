//! Moving a model's state from and to a safetensors file with PyTorch's names.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use dtrain_common::recipe::WeightsMode;
use safetensors::tensor::TensorInfo;
use tch::{Kind, TchError};

use super::error::{ModelError, WeightsError, WeightsProblem};
use super::mismatch::{Mismatch, ShapeDifference, Wanted, compare, few, is_batch_counter, is_head};
use super::registry::{Entry, Registry};
use super::rename::Renames;
use super::tensor_file::TensorFile;
use super::tensor_write::write_tensors;

/// How closely a file must fit the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadMode {
    /// Every tensor, with the same name and shape, and none besides: to continue or to evaluate.
    Strict,
    /// The same, but a head for another number of classes (`fc`, `head`, `outc.conv`) is left as it was initialised: to start
    /// from weights learnt on another data set.
    FineTune,
    /// Whatever has the name and shape of one of the model's tensors, at least one: to start from a part of another model.
    Partial,
}

impl From<WeightsMode> for LoadMode {
    fn from(mode: WeightsMode) -> Self {
        match mode {
            WeightsMode::FineTune => Self::FineTune,
            WeightsMode::Strict => Self::Strict,
            WeightsMode::Partial => Self::Partial,
        }
    }
}

/// What [`load_state`] has done. Its `Display` is one sentence for the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Tensors filled from the file.
    pub loaded: usize,
    /// Of these, how many were converted from another type.
    pub converted: usize,
    /// Batch counters that the file lacks and that stay as they were.
    pub counters_missing: usize,
    /// The tensors of a head for another number of classes, left as initialised. Empty when the head was loaded.
    pub head_kept: Vec<ShapeDifference>,
    /// What of a file that is loaded in part was not used, and what of the model stays as initialised.
    pub rest: Option<Box<Mismatch>>,
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tensors loaded", self.loaded)?;
        if self.converted > 0 {
            write!(f, ", {} of them converted", self.converted)?;
        }
        if self.counters_missing > 0 {
            write!(f, ", {} batch counters not in the file", self.counters_missing)?;
        }
        if let Some(first) = self.head_kept.first() {
            let classes = |shape: &[usize]| shape.first().copied().unwrap_or(0);
            let (file, model) = (classes(&first.file), classes(&first.model));
            write!(f, "; the classifier starts afresh ({file} classes in the file, {model} in the model)")?;
        }
        let Some(rest) = &self.rest else { return Ok(()) };
        let name = |(name, _): &(String, Vec<usize>)| format!("`{name}`");
        let both = |d: &ShapeDifference| format!("`{}` {:?}, in the model {:?}", d.name, d.file, d.model);
        let typed = |(name, file, _): &(String, String, String)| format!("`{name}` ({file})");
        for (what, count, shown) in [
            ("not in the file and left as initialised", rest.missing.len(), few(&rest.missing, name)),
            ("in the file alone", rest.unexpected.len(), few(&rest.unexpected, name)),
            ("of another shape", rest.shapes.len(), few(&rest.shapes, both)),
            ("of another type", rest.types.len(), few(&rest.types, typed)),
        ] {
            if count > 0 {
                write!(f, "; {count} {what}: {shown}")?;
            }
        }
        Ok(())
    }
}

/// Fills a model from a file, in place, so that layers and flat buffers that share the tensors see the values.
///
/// Names, shapes and types are all compared before anything is changed; floating-point types are converted.
pub fn load_state(registry: &Registry, path: &Path, mode: LoadMode) -> Result<LoadReport, ModelError> {
    load_renamed(registry, path, mode, &Renames::default())
}

/// As [`load_state`], with the names in the file changed by `renames` first.
pub fn load_renamed(
    registry: &Registry,
    path: &Path,
    mode: LoadMode,
    renames: &Renames,
) -> Result<LoadReport, ModelError> {
    let file = renames.of(TensorFile::open(path)?)?;
    let wanted = registry.state().iter().map(wanted).collect::<Result<Vec<_>, _>>()?;
    let mut mismatch = compare(&wanted, &found(registry, &file));
    let mut report = LoadReport::default();
    if mode == LoadMode::FineTune {
        report.head_kept = mismatch.take_head();
    }
    let fits = |entry: &Wanted<'_>| mismatch.leaves(entry.name) && file.info(entry.name).is_some();
    if mode == LoadMode::Partial && wanted.iter().any(fits) {
        report.rest = (!mismatch.is_empty()).then(|| Box::new(std::mem::take(&mut mismatch)));
    }
    if !mismatch.is_empty() {
        return Err(WeightsError::new(path, WeightsProblem::Mismatch(Box::new(mismatch))).into());
    }
    check_ties(registry, &file, path)?;
    fill(registry, &file, &wanted, &mut report)?;
    Ok(report)
}

/// The file's tensors, but a tied weight that is there a second time. Alone it is reported, by the name that the model lacks.
fn found<'a>(registry: &Registry, file: &'a TensorFile) -> BTreeMap<&'a str, &'a TensorInfo> {
    let is_second = |name: &str| {
        let tied = registry.tied().iter().find(|(second, _)| second == name);
        tied.is_some_and(|(_, first)| file.info(first).is_some())
    };
    let tensors = file.tensors.iter().map(|(name, info)| (name.as_str(), info));
    tensors.filter(|(name, _)| !is_second(name)).collect()
}

fn fill(
    registry: &Registry,
    file: &TensorFile,
    wanted: &[Wanted<'_>],
    report: &mut LoadReport,
) -> Result<(), ModelError> {
    for (entry, wanted) in registry.state().iter().zip(wanted) {
        let name = entry.name();
        if file.info(name).is_none() && is_batch_counter(name) {
            report.counters_missing += 1;
            continue;
        }
        // A head is loaded whole or not at all.
        let kept = is_head(name) && !report.head_kept.is_empty();
        if kept || report.rest.as_ref().is_some_and(|rest| !rest.leaves(name)) {
            continue;
        }
        let value = file.read(name)?;
        report.converted += usize::from(value.f_kind()? != wanted.kind);
        tch::no_grad(|| entry.tensor().shallow_clone().f_copy_(&value))?;
        report.loaded += 1;
    }
    Ok(())
}

fn wanted(entry: &Entry) -> Result<Wanted<'_>, TchError> {
    let shape = entry.tensor().size().into_iter().map(|size| size as usize);
    Ok(Wanted { name: entry.name(), shape: shape.collect(), kind: entry.tensor().f_kind()? })
}

/// A tensor that is there a second time must be the same.
fn check_ties(registry: &Registry, file: &TensorFile, path: &Path) -> Result<(), ModelError> {
    for (second, first) in registry.tied() {
        if file.info(second).is_some() && !file.read(second)?.f_equal(&file.read(first)?)? {
            let (first, second) = (first.clone(), second.clone());
            return Err(WeightsError::new(path, WeightsProblem::Untied { first, second }).into());
        }
    }
    Ok(())
}

/// Writes a model's state under its plain names: parameters as float32, or as float64 where the model computes in it, and
/// buffers in their own type: what is loaded again is what was saved. PyTorch's `load_state_dict(strict=True)` takes the result, where no weight is tied. `path` is replaced in one step.
pub fn save_state(registry: &Registry, path: &Path) -> Result<(), ModelError> {
    let mut tensors = Vec::with_capacity(registry.state().len());
    for entry in registry.parameters() {
        let tensor = entry.tensor().f_detach()?;
        let wide = tensor.f_kind()? == Kind::Double;
        tensors.push((entry.name(), if wide { tensor } else { tensor.f_to_kind(Kind::Float)? }));
    }
    tensors.extend(registry.buffers().map(|entry| (entry.name(), entry.tensor().shallow_clone())));
    write_tensors(path, &tensors)
}

#[cfg(test)]
mod tests;
