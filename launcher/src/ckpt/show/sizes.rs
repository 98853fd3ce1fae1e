//! The sizes of a checkpoint's parts, from the headers of its files.

use crate::ckpt::tensors::{TensorFileError, open};
use dtrain_common::manifest::Manifest;
use dtrain_common::safetensors_file::StoredTensor;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Share {
    pub(super) tensors: u64,
    pub(super) elements: u64,
    pub(super) bytes: u64,
}

impl Share {
    fn add(&mut self, tensor: &StoredTensor) {
        self.tensors += 1;
        self.elements += tensor.elements();
        self.bytes += tensor.bytes;
    }
}

/// By owner, and for each owner by kind.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    owners: Vec<(&'static str, Share, BTreeMap<String, Share>)>,
}

impl Sizes {
    /// Reads the headers of the files that the manifest lists.
    pub(super) fn of(folder: &Path, manifest: &Manifest) -> Result<Self, TensorFileError> {
        let read = |wanted: &dyn Fn(&str) -> bool| -> Result<Vec<StoredTensor>, TensorFileError> {
            let mut tensors = Vec::new();
            for entry in manifest.files.iter().filter(|entry| wanted(&entry.name)) {
                tensors.extend(open(&folder.join(&entry.name))?.tensors);
            }
            Ok(tensors)
        };
        let is_optimizer = |name: &str| name.starts_with("optimizer") && name.ends_with(".safetensors");
        let optimizer = read(&is_optimizer)?;
        let trained = optimizer.iter();
        let trained: HashSet<&str> = trained.filter_map(|tensor| tensor.name.strip_prefix("step.")).collect();
        let kind_in_model = |tensor: &StoredTensor| kind_in_model(tensor, &trained).to_owned();
        let model = read(&|name| name == "model.safetensors")?;
        let average = read(&|name| name == "ema.safetensors")?;
        let mut sizes = Self::default();
        sizes.add("model", &model, kind_in_model);
        sizes.add("optimizer", &optimizer, |tensor| {
            let kind = tensor.name.split_once('.').map(|(kind, _)| kind);
            kind.unwrap_or(&tensor.name).to_owned()
        });
        sizes.add("moving average", &average, kind_in_model);
        Ok(sizes)
    }

    fn add(&mut self, owner: &'static str, tensors: &[StoredTensor], kind: impl Fn(&StoredTensor) -> String) {
        if tensors.is_empty() {
            return;
        }
        let mut all = Share::default();
        let mut kinds: BTreeMap<String, Share> = BTreeMap::new();
        for tensor in tensors {
            all.add(tensor);
            kinds.entry(kind(tensor)).or_default().add(tensor);
        }
        self.owners.push((owner, all, kinds));
    }

    /// Returns indentation, name and share of every owner and kind.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, &str, &Share)> {
        self.owners.iter().flat_map(|(owner, all, kinds)| {
            let kinds = kinds.iter().map(|(kind, share)| (2, kind.as_str(), share));
            std::iter::once((0, *owner, all)).chain(kinds)
        })
    }

    pub(super) fn object(&self) -> Value {
        let mut object = Map::new();
        for (owner, all, kinds) in &self.owners {
            let mut value = json!(all);
            value["kinds"] = json!(kinds);
            object.insert(owner.replace(' ', "_"), value);
        }
        object.into()
    }
}

/// Returns a tensor's kind. A trained parameter has optimizer state. Running statistics and counters, known
/// by name or type, are buffers. Any other tensor counts as a parameter not trained in this stage.
fn kind_in_model(tensor: &StoredTensor, trained: &HashSet<&str>) -> &'static str {
    let last = tensor.name.rsplit('.').next().unwrap_or_default();
    if trained.contains(tensor.name.as_str()) {
        "trained"
    } else if !tensor.is_float() || matches!(last, "running_mean" | "running_var" | "num_batches_tracked") {
        "buffers"
    } else {
        "not trained"
    }
}
