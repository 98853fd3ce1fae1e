//! Prefixes that another program has put before all names, or left out: `module.`, `model.`, `_orig_mod.`.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::{View, view, without_repeated};
use crate::registry::Registry;
use crate::tensor_file::TensorFile;

/// The most changes that are compared with the model in full.
const TRIED: usize = 6;

/// Replaces a prefix of names; either may be empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Change {
    from: String,
    to: String,
}

impl Change {
    /// Returns the new name. A name without the prefix stays.
    pub(super) fn of<'a>(&self, name: &'a str) -> Cow<'a, str> {
        match name.strip_prefix(self.from.as_str()) {
            Some(rest) if self.to.is_empty() => Cow::Borrowed(rest),
            Some(rest) => Cow::Owned(format!("{}{rest}", self.to)),
            None => Cow::Borrowed(name),
        }
    }

    /// Returns the file's tensors by their new names, or `None` if two get the same name.
    pub(super) fn apply<'a>(&self, file: &'a TensorFile) -> Option<View<'a>> {
        let renamed = file.tensors.iter().map(|(name, stored)| (self.of(name), &stored.info));
        let renamed: View<'a> = renamed.collect();
        (renamed.len() == file.tensors.len()).then_some(renamed)
    }

    /// Describes the change in words that follow "122 tensors loaded, ".
    pub(super) fn describe(&self, file: &TensorFile) -> String {
        let all = file.tensors.len();
        let changed = file.tensors.keys().filter(|name| name.starts_with(&self.from)).count();
        let names = match changed == all {
            true => "all names in the file".to_owned(),
            false => format!("{changed} of the {all} names in the file"),
        };
        match (self.from.as_str(), self.to.as_str()) {
            (from, "") => format!("without the prefix `{from}` of {names}"),
            ("", to) => format!("with the prefix `{to}` before {names}"),
            (from, to) => format!("with the prefix `{to}` in the place of `{from}` in {names}"),
        }
    }

    /// Returns the pair of `model.weights_rename` that does the same.
    pub(super) fn pair(&self) -> (String, String) {
        (format!("^{}", regex_lite::escape(&self.from)), self.to.replace('$', "$$"))
    }
}

/// Returns the changes that give most of the file's tensors a name of the model, the best first. Every name is looked at once.
pub(super) fn changes(registry: &Registry, file: &TensorFile) -> Vec<Change> {
    let model: BTreeSet<&str> = registry.state().iter().map(|entry| entry.name()).collect();
    let view = view(file);
    let file: BTreeSet<&str> = without_repeated(registry, &view).into_keys().collect();
    let mut found: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for name in &file {
        for (prefix, _) in splits(name).filter(|(_, rest)| model.contains(rest)) {
            *found.entry((prefix, "")).or_default() += 1;
        }
    }
    for name in &model {
        for (prefix, _) in splits(name).filter(|(_, rest)| file.contains(rest)) {
            *found.entry(("", prefix)).or_default() += 1;
        }
    }
    if let (Some(from), Some(to)) = (common(&file), common(&model)) {
        let hits = file.iter().filter(|name| model.contains(format!("{to}{}", &name[from.len()..]).as_str()));
        found.insert((from, to), hits.count());
    }
    let mut found: Vec<_> = found.into_iter().filter(|(_, hits)| *hits > 0).collect();
    found.sort_by_key(|(_, hits)| std::cmp::Reverse(*hits));
    let change = |((from, to), _): ((&str, &str), usize)| Change { from: from.to_owned(), to: to.to_owned() };
    found.into_iter().take(TRIED).map(change).collect()
}

/// Returns every beginning of a name that ends with a dot, and what follows.
fn splits(name: &str) -> impl Iterator<Item = (&str, &str)> {
    name.match_indices('.').map(|(dot, _)| name.split_at(dot + 1))
}

/// Returns the longest prefix of all names that ends with a dot.
fn common<'a>(names: &BTreeSet<&'a str>) -> Option<&'a str> {
    // The names between the first and the last one of a sorted list begin as both do.
    let (first, last) = (names.first()?, names.last()?);
    let same = first.bytes().zip(last.bytes()).take_while(|(a, b)| a == b).count();
    let dot = first.as_bytes()[..same].iter().rposition(|byte| *byte == b'.')?;
    Some(&first[..=dot])
}
