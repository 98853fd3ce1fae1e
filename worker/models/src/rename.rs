//! The names of a file's tensors, changed to those of the model.

use std::collections::BTreeMap;

use super::error::{WeightsError, WeightsProblem};
use super::tensor_file::TensorFile;
use regex_lite::Regex;

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
        self.0
            .iter()
            .fold(name.to_owned(), |name, (pattern, by)| pattern.replace_all(&name, by.as_str()).into_owned())
    }

    /// The file under its new names; an error where two of its tensors come to have one.
    pub(super) fn of(&self, mut file: TensorFile) -> Result<TensorFile, WeightsError> {
        let mut old = BTreeMap::new();
        for (second, info) in std::mem::take(&mut file.tensors) {
            let name = self.apply(&second);
            file.tensors.insert(name.clone(), info);
            if let Some(first) = old.insert(name.clone(), second.clone()) {
                let problem = WeightsProblem::Renamed { first, second, name };
                return Err(WeightsError::new(file.path(), problem));
            }
        }
        Ok(file)
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
