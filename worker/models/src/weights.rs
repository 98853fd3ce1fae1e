//! Filling a model from a safetensors file with PyTorch's names, or with names that are changed to them.

mod positions;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

pub use self::positions::Resampled;
pub use dtrain_common::recipe::WeightsMode;
use regex_lite::Regex;
use safetensors::tensor::TensorInfo;
use tch::TchError;

use super::dtype::kind_of;
use super::error::{ModelError, WeightsError, WeightsProblem};
use super::mismatch::{
    ExpectedTensor, Mismatch, ShapeDifference, compare, is_batch_counter, is_head, list_first,
};
use super::registry::{Entry, Registry};
use super::tensor_file::TensorFile;

/// Regular expressions with replacements, applied in order: `^module\\.` with an empty replacement removes
/// the prefix of DistributedDataParallel.
#[derive(Debug, Clone, Default)]
pub struct Renames(Vec<(Regex, String)>);

impl Renames {
    /// Compiles pairs of a regular expression and a replacement, in which `$1` is the first group.
    pub fn new(pairs: &[(String, String)]) -> Result<Self, regex_lite::Error> {
        let pair = |(pattern, by): &(String, String)| Ok((Regex::new(pattern)?, by.clone()));
        Ok(Self(pairs.iter().map(pair).collect::<Result<_, _>>()?))
    }

    fn apply(&self, name: &str) -> String {
        self.0
            .iter()
            .fold(name.to_owned(), |name, (pattern, by)| pattern.replace_all(&name, by.as_str()).into_owned())
    }

    /// Renames the file's tensors. If two of them get the same name, returns an error.
    fn rename(&self, mut file: TensorFile) -> Result<TensorFile, WeightsError> {
        let mut old = BTreeMap::new();
        for (second, info) in std::mem::take(&mut file.tensors) {
            let name = self.apply(&second);
            file.tensors.insert(name.clone(), info);
            if let Some(first) = old.insert(name.clone(), second.clone()) {
                let problem = WeightsProblem::Renamed(first, second, name);
                return Err(WeightsError::new(file.path(), problem));
            }
        }
        Ok(file)
    }
}

/// The result of [`load_state`]. `Display` is one sentence for the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Tensors filled from the file.
    pub loaded: usize,
    /// Loaded tensors that were converted from another dtype.
    pub converted: usize,
    /// Batch counters that the file lacks. They keep their values.
    pub counters_missing: usize,
    /// The tensors of a head with another number of classes, not loaded. Empty if the head was loaded.
    pub head_kept: Vec<ShapeDifference>,
    /// Position embeddings of another image size.
    pub resampled: Vec<Resampled>,
    /// The differences of a file that was loaded in part; the rest of the model keeps its initial values.
    pub rest: Option<Box<Mismatch>>,
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tensors loaded", self.loaded)?;
        if self.converted > 0 {
            write!(f, ", {} of them converted", self.converted)?;
        }
        if self.counters_missing > 0 {
            write!(f, ", {} batch counters missing in the file", self.counters_missing)?;
        }
        if let Some(first) = self.head_kept.first() {
            let classes = |shape: &[usize]| shape.first().copied().unwrap_or(0);
            let (file, model) = (classes(&first.file), classes(&first.model));
            write!(
                f,
                "; the classifier keeps its initial values ({file} classes in the file, {model} in the model)"
            )?;
        }
        self.resampled.iter().try_for_each(|resampled| write!(f, "; {resampled}"))?;
        let Some(rest) = &self.rest else { return Ok(()) };
        let name = |(name, _): &(String, Vec<usize>)| format!("`{name}`");
        let both = |d: &ShapeDifference| format!("`{}` {:?}, in the model {:?}", d.name, d.file, d.model);
        let typed = |(name, file, _): &(String, String, String)| format!("`{name}` ({file})");
        for (kind, count, shown) in [
            ("missing in the file, initial values kept", rest.missing.len(), list_first(&rest.missing, name)),
            ("only in the file", rest.unexpected.len(), list_first(&rest.unexpected, name)),
            ("with another shape", rest.shapes.len(), list_first(&rest.shapes, both)),
            ("with another dtype", rest.types.len(), list_first(&rest.types, typed)),
        ] {
            if count > 0 {
                write!(f, "; {count} {kind}: {shown}")?;
            }
        }
        Ok(())
    }
}

/// Fills a model from a file, in place: layers and flat buffers that share the tensors see the values.
///
/// It compares all names, shapes and dtypes before it changes anything. It converts floating-point dtypes.
pub fn load_state(registry: &Registry, path: &Path, mode: WeightsMode) -> Result<LoadReport, ModelError> {
    load_renamed(registry, path, mode, &Renames::default())
}

/// Like [`load_state`], after `renames` have changed the names in the file.
pub fn load_renamed(
    registry: &Registry,
    path: &Path,
    mode: WeightsMode,
    renames: &Renames,
) -> Result<LoadReport, ModelError> {
    let file = renames.rename(TensorFile::open(path)?)?;
    // Files of PyTorch lack buffers that are not persistent.
    let is_expected = |entry: &&Entry| !entry.is_held() || file.info(entry.name()).is_some();
    let wanted =
        registry.state().iter().filter(is_expected).map(expected_tensor).collect::<Result<Vec<_>, _>>()?;
    let mut mismatch = compare(&wanted, &file_tensors(registry, &file));
    let mut report = LoadReport::default();
    if mode == WeightsMode::FineTune {
        report.head_kept = mismatch.take_head();
    }
    // Positions of texts have no grid; models of images have convolutions.
    let is_of_images = registry.parameters().any(|entry| entry.tensor().dim() == 4);
    if mode != WeightsMode::Strict && is_of_images {
        report.resampled = positions::take(&mut mismatch);
    }
    let fits = |entry: &ExpectedTensor<'_>| mismatch.fits(entry.name) && file.info(entry.name).is_some();
    if mode == WeightsMode::Partial && wanted.iter().any(fits) {
        report.rest = (!mismatch.is_empty()).then(|| Box::new(std::mem::take(&mut mismatch)));
    }
    if !mismatch.is_empty() {
        return Err(WeightsError::new(path, WeightsProblem::Mismatch(Box::new(mismatch))).into());
    }
    check_ties(registry, &file, path)?;
    fill(registry, &file, &wanted, &mut report)?;
    Ok(report)
}

/// Returns the file's tensors without repeated tied weights. If the file has only the second name, it stays,
/// so that it is reported as unexpected.
fn file_tensors<'a>(registry: &Registry, file: &'a TensorFile) -> BTreeMap<&'a str, &'a TensorInfo> {
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
    wanted: &[ExpectedTensor<'_>],
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
        if kept || report.rest.as_ref().is_some_and(|rest| !rest.fits(name)) {
            continue;
        }
        match report.resampled.iter().find(|resampled| resampled.name == name) {
            Some(resampled) => {
                let value = resampled.apply(&file.read(name)?)?;
                tch::no_grad(|| entry.tensor().detach().f_copy_(&value))?;
            }
            None => file.read_into(name, entry.tensor())?,
        }
        let kind = file.info(name).and_then(|info| kind_of(info.dtype));
        report.converted += usize::from(kind != Some(wanted.kind));
        report.loaded += 1;
    }
    Ok(())
}

fn expected_tensor(entry: &Entry) -> Result<ExpectedTensor<'_>, TchError> {
    let shape = entry.tensor().size().into_iter().map(|size| size as usize);
    Ok(ExpectedTensor { name: entry.name(), shape: shape.collect(), kind: entry.tensor().f_kind()? })
}

/// Checks that a repeated tied weight is equal.
fn check_ties(registry: &Registry, file: &TensorFile, path: &Path) -> Result<(), ModelError> {
    for (second, first) in registry.tied() {
        if file.info(second).is_some() && !file.read(second)?.f_equal(&file.read(first)?)? {
            let problem = WeightsProblem::Untied(first.clone(), second.clone());
            return Err(WeightsError::new(path, problem).into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
