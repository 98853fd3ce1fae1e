//! The index of sharded weights, as Hugging Face writes it: `{"metadata": {}, "weight_map": {"TENSOR": "FILE"}}`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use dtrain_common::content::{Content, MAX_INDEX_BYTES};
use serde::{Deserialize, Deserializer};

use super::error::{WeightsError, WeightsProblem};
use super::foreign::{NAMED, foreign, shards_of_pickles};
use super::pairs::pairs;

/// The files of sharded weights.
#[derive(Debug)]
pub(super) struct Index {
    /// The tensors of each file, which is beside the index.
    pub(super) shards: BTreeMap<String, Vec<String>>,
    /// The tensors of all files.
    pub(super) names: BTreeSet<String>,
}

impl Index {
    /// Reads an index and checks the names of its files, and that they exist.
    pub(super) fn read(path: &Path) -> Result<Self, WeightsError> {
        let wrong = |problem| WeightsError::new(path, problem);
        let invalid = |reason: String| wrong(WeightsProblem::Index(reason));
        let read = |error| wrong(WeightsProblem::Read(error));
        if fs::metadata(path).map_err(read)?.len() > MAX_INDEX_BYTES {
            return Err(invalid(format!("it has more than {MAX_INDEX_BYTES} bytes; {NAMED}")));
        }
        let text = fs::read(path).map_err(read)?;
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
        let IndexFile { weight_map: entries } = serde_json::from_slice(text)
            .map_err(|error| invalid(format!("{error}; download it again, and do not edit it")))?;
        if entries.is_empty() {
            return Err(invalid(format!("its weight_map is empty; {NAMED}")));
        }
        let mut index = Self { shards: BTreeMap::new(), names: BTreeSet::new() };
        for (tensor, file) in entries {
            let mut parts = Path::new(&file).components();
            if !(matches!(parts.next(), Some(Component::Normal(_))) && parts.next().is_none()) {
                return Err(invalid(format!(
                    "it lists the file {file:?}, which is not in its own folder; use an index from a source that you trust"
                )));
            }
            if !index.names.insert(tensor.clone()) {
                return Err(invalid(format!(
                    "it lists the tensor `{tensor}` twice; download it again, and do not edit it"
                )));
            }
            index.shards.entry(file).or_default().push(tensor);
        }
        let beside = |name: &String| path.with_file_name(name);
        let missing: Vec<_> = index.shards.keys().filter(|name| !beside(name).exists()).cloned().collect();
        if !missing.is_empty() {
            return Err(wrong(WeightsProblem::NoShards(missing, index.shards.len())));
        }
        let files: Vec<_> = index.shards.keys().map(beside).collect();
        match files.first().and_then(|first| Content::of_file(first)) {
            Some(Content::TorchZip | Content::TorchPickle) => Err(wrong(shards_of_pickles(path, &files))),
            // The error names the shard.
            Some(content) if content != Content::Safetensors => {
                Err(WeightsError::new(&files[0], foreign(content, &files[0])))
            }
            _ => Ok(index),
        }
    }
}

/// Returns the files that an index of sharded weights lists; none for other files.
pub fn shards(path: &Path) -> Vec<PathBuf> {
    let index = Content::of_file(path).filter(|content| *content == Content::WeightIndex);
    let index = index.and_then(|_| Index::read(path).ok());
    let names = index.into_iter().flat_map(|index| index.shards.into_keys());
    names.map(|name| path.with_file_name(name)).collect()
}

#[derive(Deserialize)]
struct IndexFile {
    #[serde(deserialize_with = "entries")]
    weight_map: Vec<(String, String)>,
}

fn entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, String)>, D::Error> {
    pairs(deserializer, "a table of a file for each tensor")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tch::Tensor;

    use super::*;
    use crate::TensorFile;
    use crate::tensor_file::tests::write_tensors;

    fn error(folder: &Path, index: &str) -> String {
        let path = folder.join("model.safetensors.index.json");
        fs::write(&path, index).unwrap();
        TensorFile::open_weights(&path).unwrap_err().to_string()
    }

    #[test]
    fn the_files_of_an_index_are_one() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let value = |value: f32| Tensor::from_slice(&[value, 2.0]);
        write_tensors(&folder.join("1.safetensors"), &[("a", value(1.0)), ("b", value(5.0))]);
        write_tensors(&folder.join("2.safetensors"), &[("b", value(7.0))]);
        let path = folder.join("model.safetensors.index.json");
        let map =
            r#"{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}, "metadata": {"total_size": 16}}"#;
        fs::write(&path, map).unwrap();
        let file = TensorFile::open_weights(&path).unwrap();
        assert_eq!(file.names(), ["a", "b"]);
        assert!(file.read("a").unwrap().equal(&value(1.0)));
        assert!(file.read("b").unwrap().equal(&value(7.0)), "the index decides");

        for (index, words) in [
            (
                r#"{"weight_map": {"b": "2.safetensors", "a": "1.safetensors", "b": "1.safetensors"}}"#,
                "`b` twice",
            ),
            (
                r#"{"weight_map": {"a": "../1.safetensors"}}"#,
                "\"../1.safetensors\", which is not in its own folder",
            ),
            (r#"{"weight_map": {"a": "/etc/passwd"}}"#, "not in its own folder"),
            (r#"{"weight_map": {"a": ""}}"#, "not in its own folder"),
            (r#"{"weight_map": {"a": "sub/1.safetensors"}}"#, "not in its own folder"),
            (r#"{"weight_map": {"a": 1}}"#, "expected a string"),
            (r#"{"weight_map": {}}"#, "is empty"),
            (r#"{"weight_map": {"a": "1.safetensors""#, "EOF while parsing"),
            (
                r#"{"weight_map": {"a": "1.safetensors"}}"#,
                "1.safetensors has the tensor `b`, which the index does not list",
            ),
            (r#"{"weight_map": {"c": "2.safetensors"}}"#, "lists `c` in 2.safetensors, which lacks it"),
            (
                r#"{"weight_map": {"a": "1.safetensors", "x": "3.safetensors", "y": "4.safetensors"}}"#,
                "2 of the 3 files of this index are missing in its folder: `3.safetensors`, `4.safetensors`; download",
            ),
        ] {
            let text = error(folder, index);
            assert!(text.contains(words), "{words} in {text}");
        }
        fs::write(folder.join("2.safetensors"), "version https://git-lfs.github.com/spec/v1\n").unwrap();
        let text = error(folder, map);
        assert!(text.contains("2.safetensors: the file is a Git LFS pointer"), "{text}");
    }
}
