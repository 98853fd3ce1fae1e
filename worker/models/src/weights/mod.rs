//! Filling a model from a safetensors file with PyTorch's names, or with names that are changed to them.

mod advice;
mod fit;
mod positions;
mod prefix;

use std::borrow::{Borrow, Cow};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use self::fit::{Asked, Fit};
pub use self::positions::Resampled;
use dtrain_common::safetensors_file::StoredTensor;
pub use dtrain_recipe::WeightsMode;
use regex_lite::Regex;
use tch::{Kind, TchError, Tensor};

use super::dtype::kind_of;
use super::error::{ModelError, WeightsError, WeightsProblem};
use super::mismatch::{
    DtypeDifference, ExpectedTensor, Mismatch, ShapeDifference, is_batch_counter, is_head, list_first,
};
use super::registry::{Entry, Registry, Role};
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

    /// Returns the pairs.
    fn pairs(&self) -> Vec<(String, String)> {
        self.0.iter().map(|(pattern, by)| (pattern.as_str().to_owned(), by.clone())).collect()
    }

    fn apply(&self, name: &str) -> String {
        self.0
            .iter()
            .fold(name.to_owned(), |name, (pattern, by)| pattern.replace_all(&name, by.as_str()).into_owned())
    }

    /// Renames the file's tensors. If two of them get the same name, returns an error.
    fn rename(&self, mut file: TensorFile) -> Result<TensorFile, WeightsError> {
        let mut old = BTreeMap::new();
        for (second, stored) in std::mem::take(&mut file.tensors) {
            let name = self.apply(&second);
            file.tensors.insert(name.clone(), stored);
            if let Some(first) = old.insert(name.clone(), second.clone()) {
                return Err(file.error(WeightsProblem::Renamed(first, second, name)));
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
    /// Whether the file has no head for the model's.
    pub is_headless: bool,
    /// The change of names in the file, in words, that made them fit.
    pub renamed: Option<String>,
    /// Tied tensors that the file has only under their second name: this, and the first one.
    pub tied: Vec<(String, String)>,
    /// Position embeddings of another image size.
    pub resampled: Vec<Resampled>,
    /// The tensors of the model that keep their initial values.
    pub unfilled: Vec<String>,
    /// The differences of a file that was loaded in part; the rest of the model keeps its initial values.
    pub rest: Option<Box<Mismatch>>,
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tensors loaded", self.loaded)?;
        if let Some(renamed) = &self.renamed {
            write!(f, ", {renamed}")?;
        }
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
        if self.is_headless {
            write!(f, "; the classifier keeps its initial values (the file has none)")?;
        }
        for (second, first) in &self.tied {
            write!(f, "; `{second}` of the file is the tied `{first}`")?;
        }
        self.resampled.iter().try_for_each(|resampled| write!(f, "; {resampled}"))?;
        let Some(rest) = &self.rest else { return Ok(()) };
        let name = |(name, _): &(String, Vec<usize>)| format!("`{name}`");
        let both = |d: &ShapeDifference| format!("`{}` {:?}, in the model {:?}", d.name, d.file, d.model);
        let typed = |d: &DtypeDifference| format!("`{}` ({})", d.name, d.file);
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
        rest.remedy.iter().try_for_each(|remedy| write!(f, ". {remedy}"))
    }
}

/// Fills a model from a file, in place: layers and flat buffers that share the tensors see the values.
///
/// It compares all names, shapes and dtypes before it changes anything. It converts floating-point dtypes.
pub fn load_state(registry: &Registry, path: &Path, mode: WeightsMode) -> Result<LoadReport, ModelError> {
    let file = TensorFile::open(path)?;
    let asked = Asked { mode, new: &BTreeSet::new(), values: Values::Any };
    Fit::of(registry, &view(&file), asked)?.load(registry, &file, asked)
}

/// Like [`load_state`] for weights of others, which may be sharded: `renames` change the names in the file. If the names then
/// fit except for one prefix, it is changed too. A tied tensor may have only its second name. Parameters that are not finite, and
/// buffers with NaN, are an error.
///
/// With `strict` and `fine-tune`, the file may lack the tensors of the model that `new` names, or have them in another shape. With
/// `fine-tune` and such names it may have tensors that the model lacks.
pub fn load_renamed(
    registry: &Registry,
    path: &Path,
    mode: WeightsMode,
    renames: &Renames,
    new: &BTreeSet<String>,
) -> Result<LoadReport, ModelError> {
    let asked = Asked { mode, new, values: Values::Finite };
    let mut file = renames.rename(TensorFile::open_weights(path)?)?;
    let mut names = view(&file);
    use_first_names(registry, &mut names);
    let mut fit = Fit::of(registry, &names, asked)?;
    let mut renamed = None;
    if !fit.mismatch.is_empty() {
        let mut tried = Vec::new();
        for change in prefix::changes(registry, &file) {
            if let Some(mut names) = change.apply(&file) {
                use_first_names(registry, &mut names);
                let changed = Fit::of(registry, &names, asked)?;
                tried.push((change, changed));
            }
        }
        if let Some(complete) = tried.iter().position(|(_, changed)| changed.is_better(&fit)) {
            let (change, changed) = tried.swap_remove(complete);
            fit = changed;
            fit.mismatch.remedy = advice::part(&file);
            renamed = Some(change.describe(&file));
            file.tensors = std::mem::take(&mut file.tensors)
                .into_iter()
                .map(|(name, stored)| (change.of(&name).into_owned(), stored))
                .collect();
        } else {
            fit.mismatch.remedy = advice::advice(&file, renames, &fit, &tried, !new.is_empty());
        }
    }
    let tied = use_first_names(registry, &mut file.tensors);
    Ok(LoadReport { renamed, tied, ..fit.load(registry, &file, asked)? })
}

/// Gives tied tensors that have only their second name, as safetensors.torch.save_model writes them, the first one. Returns both
/// names of each.
fn use_first_names<N: Ord + Borrow<str> + From<String>, T>(
    registry: &Registry,
    tensors: &mut BTreeMap<N, T>,
) -> Vec<(String, String)> {
    let mut changed = Vec::new();
    for (second, first) in registry.tied() {
        if !tensors.contains_key(first.as_str())
            && let Some(tensor) = tensors.remove(second.as_str())
        {
            tensors.insert(first.clone().into(), tensor);
            changed.push((second.clone(), first.clone()));
        }
    }
    changed
}

/// What is asked of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Values {
    /// A checkpoint, which has any values, and lacks those of its base.
    Any,
    /// The weights of others, which must be finite.
    Finite,
}

/// The tensors of a file by their names, possibly changed ones.
type View<'a> = BTreeMap<Cow<'a, str>, &'a StoredTensor>;

fn view(file: &TensorFile) -> View<'_> {
    file.tensors.iter().map(|(name, stored)| (Cow::Borrowed(name.as_str()), &stored.info)).collect()
}

/// Returns the file's tensors without repeated tied weights. If the file has only the second name, it stays,
/// so that it is reported as unexpected.
fn without_repeated<'a>(registry: &Registry, file: &'a View<'a>) -> BTreeMap<&'a str, &'a StoredTensor> {
    let repeated = registry.tied().iter().filter(|(_, first)| file.contains_key(first.as_str()));
    let repeated: BTreeSet<&str> = repeated.map(|(second, _)| second.as_str()).collect();
    let tensors = file.iter().map(|(name, info)| (name.as_ref(), *info));
    tensors.filter(|(name, _)| !repeated.contains(name)).collect()
}

fn fill(
    registry: &Registry,
    file: &TensorFile,
    report: &mut LoadReport,
    values: Values,
) -> Result<(), ModelError> {
    let left_out: BTreeSet<String> = report.rest.iter().flat_map(|rest| rest.names()).collect();
    let is_head_kept = report.is_headless || !report.head_kept.is_empty();
    for entry in registry.state() {
        let name = entry.name();
        // A head is loaded whole or not at all.
        if (is_head_kept && is_head(name)) || left_out.contains(name) {
            report.unfilled.push(name.to_owned());
            continue;
        }
        let Some(info) = file.info(name) else {
            report.unfilled.push(name.to_owned());
            report.counters_missing += usize::from(is_batch_counter(name));
            continue;
        };
        if let Some(frozen) = entry.frozen() {
            let value = file.read(name)?;
            if values == Values::Finite {
                check_finite(name, entry.role(), &value, file)?;
            }
            entry.set_frozen(frozen, &value)?;
            report.loaded += 1;
            continue;
        }
        match report.resampled.iter().find(|resampled| resampled.name == name) {
            Some(resampled) => {
                let value = resampled.apply(&file.read(name)?)?;
                tch::no_grad(|| entry.tensor().detach().f_copy_(&value))?;
            }
            None => file.read_into(name, entry.tensor())?,
        }
        if values == Values::Finite {
            check_finite(name, entry.role(), &entry.tensor().f_detach()?, file)?;
        }
        report.converted += usize::from(kind_of(info.dtype) != Some(entry.tensor().f_kind()?));
        report.loaded += 1;
    }
    Ok(())
}

/// Checks that a loaded parameter is finite, and a buffer free of NaN: masks of attention are infinite.
fn check_finite(name: &str, role: Role, tensor: &Tensor, file: &TensorFile) -> Result<(), ModelError> {
    let kind = tensor.f_kind()?;
    if !matches!(kind, Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16) {
        return Ok(());
    }
    // One pass at the speed of memory; only a sum that is not finite needs a closer look.
    let wide = if kind == Kind::Double { Kind::Double } else { Kind::Float };
    if tensor.f_sum(wide)?.f_double_value(&[])?.is_finite() {
        return Ok(());
    }
    let bad = match role {
        Role::Parameter => tensor.f_isfinite()?.f_logical_not()?,
        Role::Buffer => tensor.f_isnan()?,
    };
    let count = bad.f_sum(Kind::Int64)?.f_int64_value(&[])?;
    if count == 0 {
        return Ok(());
    }
    let first = tensor.f_masked_select(&bad)?.f_double_value(&[0])?;
    Err(file.error(WeightsProblem::NotFinite(name.to_owned(), count as u64, first)).into())
}

fn expected_tensor(entry: &Entry) -> Result<ExpectedTensor<'_>, TchError> {
    let shape = entry.tensor().size().into_iter().map(|size| size as usize);
    let kind = if entry.frozen().is_some() { Kind::Float } else { entry.tensor().f_kind()? };
    Ok(ExpectedTensor { name: entry.name(), shape: shape.collect(), kind })
}

/// Checks that a repeated tied weight is equal.
fn check_ties(registry: &Registry, file: &TensorFile, values: Values) -> Result<(), ModelError> {
    for (second, first) in registry.tied() {
        if file.info(second).is_none() || file.info(first).is_none() {
            continue;
        }
        let (repeated, tensor) = (file.read(second)?, file.read(first)?);
        if repeated.f_equal(&tensor)? {
            continue;
        }
        // NaN differs from itself.
        if values == Values::Finite {
            check_finite(first, Role::Parameter, &tensor, file)?;
            check_finite(second, Role::Parameter, &repeated, file)?;
        }
        return Err(file.error(WeightsProblem::Untied(first.clone(), second.clone())).into());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
