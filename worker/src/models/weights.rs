//! Moving a model's state from and to a safetensors file with torchvision's names.

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
    /// The same, but a classifier head (`fc`) for another number of classes is left as it was initialised: to start
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
    let names = file.names();
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

/// Writes a model's state under its plain names: floating-point tensors of parameters as float32, buffers in their own
/// type. torchvision's `load_state_dict(strict=True)` takes the result. `path` is replaced in one step.
///
/// # Errors
/// [`WeightsError::Write`] and those of libtorch.
pub fn save_state(registry: &Registry, path: &Path) -> Result<(), ModelError> {
    let mut tensors: Vec<(&str, Tensor)> = Vec::with_capacity(registry.state().len());
    for entry in registry.parameters() {
        tensors.push((entry.name(), entry.tensor().f_detach()?.f_to_kind(Kind::Float)?));
    }
    for entry in registry.buffers() {
        tensors.push((entry.name(), entry.tensor().shallow_clone()));
    }
    write_tensors(path, &tensors)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tch::Device;

    use super::super::{Architecture, build};
    use super::*;

    fn model(arch: Architecture, classes: usize) -> Registry {
        let mut registry = Registry::new(Device::Cpu);
        build(arch, classes, &mut registry).unwrap();
        registry
    }

    fn same(a: &Registry, b: &Registry, name: &str) -> bool {
        a.get(name)
            .unwrap()
            .tensor()
            .f_equal(b.get(name).unwrap().tensor())
            .unwrap()
    }

    /// A model's tensors, with some replaced or left out, as a file.
    fn write_changed(registry: &Registry, path: &Path, change: impl Fn(&str, Tensor) -> Option<Tensor>) {
        let tensors: Vec<(&str, Tensor)> = registry
            .state()
            .iter()
            .filter_map(|entry| change(entry.name(), entry.tensor().detach()).map(|t| (entry.name(), t)))
            .collect();
        write_tensors(path, &tensors).unwrap();
    }

    fn mismatch_text(registry: &Registry, path: &Path, mode: LoadMode) -> String {
        let error = load_state(registry, path, mode).unwrap_err();
        assert!(
            matches!(error, ModelError::Weights(WeightsError::Mismatch { .. })),
            "{error}"
        );
        error.to_string()
    }

    #[test]
    fn a_saved_model_loads_into_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let (a, b) = (
            model(Architecture::ResNet18, 10),
            model(Architecture::ResNet18, 10),
        );
        let mut counter = a.get("bn1.num_batches_tracked").unwrap().tensor().shallow_clone();
        let _ = counter.f_fill_(12).unwrap();
        assert!(!same(&a, &b, "conv1.weight"));
        // The parameter of `b` is a view into a flat buffer, as the trainer has it: loading must fill that buffer.
        let flat = Tensor::zeros([9408], (Kind::Float, Device::Cpu));
        b.get("conv1.weight")
            .unwrap()
            .tensor()
            .shallow_clone()
            .set_data(&flat.view([64, 3, 7, 7]));

        save_state(&a, &path).unwrap();
        let report = load_state(&b, &path, LoadMode::Strict).unwrap();
        assert_eq!(
            report,
            LoadReport {
                loaded: 122,
                ..LoadReport::default()
            }
        );
        assert!(a.state().iter().all(|entry| same(&a, &b, entry.name())));
        assert!(flat.equal(&a.get("conv1.weight").unwrap().tensor().view([-1])));
        assert!(
            b.parameters()
                .all(|entry| entry.tensor().requires_grad() && entry.tensor().is_leaf())
        );
    }

    #[test]
    fn other_float_types_are_converted_and_counters_may_be_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("half.safetensors");
        let (a, b) = (
            model(Architecture::ResNet18, 10),
            model(Architecture::ResNet18, 10),
        );
        write_changed(&a, &path, |name, tensor| match name {
            "conv1.weight" => Some(tensor.to_kind(Kind::Half)),
            "fc.weight" => Some(tensor.to_kind(Kind::BFloat16)),
            "fc.bias" => Some(tensor.to_kind(Kind::Double)),
            _ => (!is_batch_counter(name)).then_some(tensor),
        });
        let report = load_state(&b, &path, LoadMode::Strict).unwrap();
        assert_eq!(
            (report.loaded, report.converted, report.counters_missing),
            (102, 3, 20)
        );
        assert!(same(&a, &b, "fc.bias") && same(&a, &b, "layer1.0.conv1.weight"));
        let rounded = a
            .get("conv1.weight")
            .unwrap()
            .tensor()
            .to_kind(Kind::Half)
            .to_kind(Kind::Float);
        assert!(b.get("conv1.weight").unwrap().tensor().equal(&rounded));
        assert_eq!(b.get("fc.weight").unwrap().tensor().kind(), Kind::Float);
    }

    #[test]
    fn fine_tuning_keeps_a_head_of_other_classes_and_strict_refuses_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pretrained.safetensors");
        let (a, b) = (
            model(Architecture::ResNet18, 1000),
            model(Architecture::ResNet18, 10),
        );
        save_state(&a, &path).unwrap();

        let text = mismatch_text(&b, &path, LoadMode::Strict);
        assert!(
            text.contains("`fc.weight` is [1000, 512], in the model [10, 512]"),
            "{text}"
        );
        assert!(text.contains("Only the number of classes differs"), "{text}");
        assert!(
            !same(&a, &b, "conv1.weight"),
            "nothing is loaded by a refused file"
        );

        let head = b.get("fc.weight").unwrap().tensor().copy();
        let report = load_state(&b, &path, LoadMode::FineTune).unwrap();
        assert_eq!((report.loaded, report.head_kept.len()), (120, 2));
        assert!(same(&a, &b, "layer4.1.bn2.weight"));
        assert!(b.get("fc.weight").unwrap().tensor().equal(&head));
        let text = report.to_string();
        assert!(
            text.ends_with("the classifier starts afresh (1000 classes in the file, 10 in the model)"),
            "{text}"
        );

        let c = model(Architecture::ResNet18, 1000);
        assert_eq!(load_state(&c, &path, LoadMode::FineTune).unwrap().loaded, 122);
        assert!(same(&a, &c, "fc.bias"));
    }

    #[test]
    fn another_network_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("other.safetensors");
        let (small, large) = (
            model(Architecture::ResNet18, 10),
            model(Architecture::ResNet34, 10),
        );
        for mode in [LoadMode::Strict, LoadMode::FineTune] {
            save_state(&large, &path).unwrap();
            let text = mismatch_text(&small, &path, mode);
            assert!(
                text.contains("the model, a resnet18: it holds `layer1.2."),
                "{text}"
            );
            assert!(text.ends_with("The file looks like a resnet34."), "{text}");
            save_state(&small, &path).unwrap();
            let text = mismatch_text(&large, &path, mode);
            assert!(
                text.contains("it lacks `layer1.2.conv1.weight` [64, 64, 3, 3]"),
                "{text}"
            );
            assert!(text.ends_with("The file looks like a resnet18."), "{text}");
        }
    }

    #[test]
    fn fine_tuning_forgives_nothing_but_the_head() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("odd.safetensors");
        let registry = model(Architecture::ResNet18, 10);
        write_changed(&registry, &path, |name, tensor| match name {
            "conv1.weight" => Some(Tensor::zeros([64, 1, 7, 7], (Kind::Float, Device::Cpu))),
            "bn1.bias" => Some(tensor.to_kind(Kind::Int)),
            _ => (name != "fc.bias").then_some(tensor),
        });
        let text = mismatch_text(&registry, &path, LoadMode::FineTune);
        for part in [
            "lacks `fc.bias` [10]",
            "`conv1.weight` is [64, 1, 7, 7]",
            "`bn1.bias` is I32, not Float",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
