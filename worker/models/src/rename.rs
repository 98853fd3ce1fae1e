//! The names of a file's tensors, changed to those of the model.

use std::collections::BTreeMap;

use regex_lite::Regex;
use safetensors::tensor::TensorInfo;
use tch::Tensor;

use super::error::{ModelError, WeightsError, WeightsProblem};
use super::tensor_file::TensorFile;

/// Regular expressions with what takes the place of their matches, one after the other: `^module\\.` and nothing takes away what
/// DistributedDataParallel puts before every name.
#[derive(Debug, Clone, Default)]
pub struct Renames(Vec<(Regex, String)>);

impl Renames {
    /// From pairs of a regular expression and a replacement, in which `$1` is the first group.
    pub fn new(pairs: &[(String, String)]) -> Result<Self, regex_lite::Error> {
        let pair = |(pattern, by): &(String, String)| Ok((Regex::new(pattern)?, by.clone()));
        Ok(Self(pairs.iter().map(pair).collect::<Result<_, _>>()?))
    }

    fn apply(&self, name: &str) -> String {
        self.0.iter().fold(name.to_owned(), |name, (pattern, by)| {
            pattern.replace_all(&name, by.as_str()).into_owned()
        })
    }

    /// The file under its new names.
    pub(super) fn of(&self, file: TensorFile) -> Result<RenamedFile, WeightsError> {
        let mut names = BTreeMap::new();
        for old in file.names() {
            let new = self.apply(&old);
            if let Some(first) = names.insert(new.clone(), old.clone()) {
                let (second, name) = (old, new);
                let problem = WeightsProblem::Renamed { first, second, name };
                return Err(WeightsError::new(file.path(), problem));
            }
        }
        Ok(RenamedFile { file, names })
    }
}

/// A file whose tensors are asked for by new names.
pub(super) struct RenamedFile {
    file: TensorFile,
    /// Those in the file, by the new ones.
    names: BTreeMap<String, String>,
}

impl RenamedFile {
    pub(super) fn tensors(&self) -> impl Iterator<Item = (&str, &TensorInfo)> {
        let names = self.names.iter();
        names.filter_map(|(new, old)| Some((new.as_str(), self.file.info(old)?)))
    }

    pub(super) fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.file.info(self.names.get(name)?)
    }

    pub(super) fn read(&self, name: &str) -> Result<Tensor, ModelError> {
        self.file.read(self.names.get(name).map_or(name, String::as_str))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_change_one_rule_after_the_other() {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let renames = Renames::new(&[pair(r"^module\.", ""), pair(r"^blocks\.(\d+)\.", "h.$1.")]).unwrap();
        assert_eq!(renames.apply("module.blocks.12.norm.weight"), "h.12.norm.weight");
        assert_eq!(renames.apply("fc.weight"), "fc.weight");
        assert!(Renames::new(&[pair("(", "")]).is_err());
    }
}
