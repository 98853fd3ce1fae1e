//! Moving a model's state from and to a safetensors file with PyTorch's names.

use std::fmt;
use std::path::Path;

use tch::{Kind, Tensor};

use super::error::{ModelError, WeightsError};
use super::mismatch::{Found, ShapeDifference, Wanted, compare, is_batch_counter, is_head};
use super::registry::Registry;
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
            write!(
                f,
                "; the classifier starts afresh ({file} classes in the file, {model} in the model)"
            )?;
        }
        Ok(())
    }
}

/// Fills a model from a file, in place, so that layers and flat buffers that share the tensors see the values.
///
/// Names, shapes and types are all compared before anything is changed; floating-point types are converted.
///
/// # Errors
/// [`WeightsError`] for a file that cannot be read, is broken, or does not fit, and those of libtorch.
pub fn load_state(registry: &Registry, path: &Path, mode: LoadMode) -> Result<LoadReport, ModelError> {
    let file = TensorFile::open(path)?;
    let mut names = file.names();
    // A tied weight may be there a second time. Alone it is reported, by the name that the model lacks.
    names.retain(|name| {
        let tied = registry.tied().iter().find(|(second, _)| second == name);
        tied.is_none_or(|(_, first)| file.info(first).is_none())
    });
    let found: Vec<Found<'_>> = names
        .iter()
        .filter_map(|name| {
            file.info(name).map(|info| Found {
                name,
                shape: &info.shape,
                dtype: info.dtype,
            })
        })
        .collect();
    let mut wanted = Vec::with_capacity(registry.state().len());
    for entry in registry.state() {
        let shape = entry
            .tensor()
            .size()
            .into_iter()
            .map(|size| size as usize)
            .collect();
        wanted.push(Wanted {
            name: entry.name(),
            shape,
            kind: entry.tensor().f_kind()?,
        });
    }

    let mut mismatch = compare(&wanted, &found);
    let mut report = LoadReport::default();
    if mode == LoadMode::FineTune {
        report.head_kept = mismatch.take_head();
    }
    if !mismatch.is_empty() {
        return Err(WeightsError::Mismatch {
            path: path.to_owned(),
            mismatch: Box::new(mismatch),
        }
        .into());
    }

    for (second, first) in registry.tied() {
        if file.info(second).is_some() && !file.read(second)?.f_equal(&file.read(first)?)? {
            return Err(WeightsError::Untied {
                path: path.to_owned(),
                first: first.clone(),
                second: second.clone(),
            }
            .into());
        }
    }

    for (entry, wanted) in registry.state().iter().zip(&wanted) {
        if file.info(entry.name()).is_none() && is_batch_counter(entry.name()) {
            report.counters_missing += 1;
            continue;
        }
        // A head is loaded whole or not at all.
        if is_head(entry.name()) && !report.head_kept.is_empty() {
            continue;
        }
        let value = file.read(entry.name())?;
        report.converted += usize::from(value.f_kind()? != wanted.kind);
        let mut target = entry.tensor().shallow_clone();
        tch::no_grad(|| target.f_copy_(&value))?;
        report.loaded += 1;
    }
    Ok(report)
}

/// Writes a model's state under its plain names: parameters as float32, or as float64 where the model computes in it, and
/// buffers in their own type: what is loaded again is what was saved. PyTorch's `load_state_dict(strict=True)` takes the result, where no weight is tied. `path` is replaced in one step.
///
/// # Errors
/// [`WeightsError::Write`] and those of libtorch.
pub fn save_state(registry: &Registry, path: &Path) -> Result<(), ModelError> {
    let mut tensors: Vec<(&str, Tensor)> = Vec::with_capacity(registry.state().len());
    for entry in registry.parameters() {
        let tensor = entry.tensor().f_detach()?;
        let tensor = match tensor.f_kind()? {
            Kind::Double => tensor,
            _ => tensor.f_to_kind(Kind::Float)?,
        };
        tensors.push((entry.name(), tensor));
    }
    for entry in registry.buffers() {
        tensors.push((entry.name(), entry.tensor().shallow_clone()));
    }
    write_tensors(path, &tensors)
}

#[cfg(test)]
mod tests;
