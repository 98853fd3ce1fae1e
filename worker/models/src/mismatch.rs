//! Comparison of a model's tensors with a file's, and messages about the differences.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use dtrain_common::safetensors_file::{Dtype, StoredTensor};
use tch::Kind;

use super::dtype::kind_of;
use super::recognise::{UNKNOWN, describe_network};

/// A tensor of the model, for comparison.
#[derive(Clone, Debug)]
pub(super) struct ExpectedTensor<'a> {
    pub(super) name: &'a str,
    pub(super) shape: Vec<usize>,
    pub(super) kind: Kind,
}

/// A tensor whose shapes in file and model differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeDifference {
    /// Its name in both.
    pub name: String,
    /// Its shape in the file.
    pub file: Vec<usize>,
    /// Its shape in the model.
    pub model: Vec<usize>,
}

/// A tensor whose dtypes in file and model differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DtypeDifference {
    /// Its name in both.
    pub name: String,
    /// Its dtype in the file.
    pub file: String,
    /// Its dtype in the model.
    pub model: String,
}

/// The differences between a file's and a model's tensors. `Display` is the message for users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mismatch {
    /// The kind of the model's network, such as "a resnet18".
    pub model: String,
    /// The kind of network that the file seems to hold.
    pub file: String,
    /// Only in the model, with its shapes.
    pub missing: Vec<(String, Vec<usize>)>,
    /// Only in the file, with its shapes.
    pub unexpected: Vec<(String, Vec<usize>)>,
    /// In both, with different shapes.
    pub shapes: Vec<ShapeDifference>,
    /// In both, with dtypes that cannot be converted.
    pub types: Vec<DtypeDifference>,
    /// What loads more of the file, in a sentence.
    pub remedy: Option<String>,
}

/// Compares by name. `num_batches_tracked` may be missing, as in files from before PyTorch 0.4.1.
pub(super) fn compare(model: &[ExpectedTensor<'_>], file: &BTreeMap<&str, &StoredTensor>) -> Mismatch {
    let mut mismatch = Mismatch {
        model: describe_network(&model.iter().map(|wanted| wanted.name).collect::<Vec<_>>()),
        file: describe_network(&file.keys().copied().collect::<Vec<_>>()),
        ..Mismatch::default()
    };
    for wanted in model {
        let name = wanted.name.to_owned();
        match file.get(wanted.name) {
            None if is_batch_counter(wanted.name) => {}
            None => mismatch.missing.push((name, wanted.shape.clone())),
            Some(found) if found.shape != wanted.shape => mismatch.shapes.push(ShapeDifference {
                name,
                file: found.shape.to_vec(),
                model: wanted.shape.clone(),
            }),
            Some(found) if !is_convertible(found.dtype, wanted.kind) => {
                mismatch.types.push(DtypeDifference {
                    name,
                    file: found.dtype.to_string(),
                    model: format!("{:?}", wanted.kind),
                });
            }
            Some(_) => {}
        }
    }
    let known: BTreeSet<&str> = model.iter().map(|wanted| wanted.name).collect();
    for (name, found) in file.iter().filter(|(name, _)| !known.contains(*name)) {
        mismatch.unexpected.push(((*name).to_owned(), found.shape.clone()));
    }
    // Only the first few are shown, and counters tell least about the network.
    mismatch.unexpected.sort_by_key(|(name, _)| is_batch_counter(name));
    mismatch
}

impl Mismatch {
    /// Returns whether there is no difference.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty()
            && self.unexpected.is_empty()
            && self.shapes.is_empty()
            && self.types.is_empty()
    }

    /// Removes and returns the differences of the model's tensors of these names.
    pub(super) fn take_new(&mut self, names: &BTreeSet<String>) -> Self {
        Self {
            missing: self.missing.extract_if(.., |(name, _)| names.contains(name)).collect(),
            shapes: self.shapes.extract_if(.., |shape| names.contains(&shape.name)).collect(),
            types: self.types.extract_if(.., |dtype| names.contains(&dtype.name)).collect(),
            ..Self::default()
        }
    }

    /// Returns the names of the model's tensors that the file cannot fill.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        let missing = self.missing.iter().map(|(name, _)| name);
        let types = self.types.iter().map(|dtype| &dtype.name);
        missing.chain(self.shapes.iter().map(|shape| &shape.name)).chain(types).cloned()
    }

    /// Returns whether nothing but the number of classes differs.
    pub(super) fn is_class_count(&self) -> bool {
        self.missing.is_empty()
            && self.unexpected.is_empty()
            && self.types.is_empty()
            && self.shapes.iter().all(is_other_class_count)
    }

    /// Removes the differences of a head that the file lacks, if nothing else differs. Heads under other names are left out.
    /// Returns whether it did.
    pub(super) fn take_missing_head(&mut self, model: &[ExpectedTensor<'_>]) -> bool {
        let heads = model.iter().filter(|wanted| is_head(wanted.name)).count();
        let are_heads =
            |differences: &[(String, Vec<usize>)]| differences.iter().all(|(name, _)| is_head(name));
        // A head is loaded whole or not at all.
        let lacks_head = heads > 0 && self.missing.len() == heads && are_heads(&self.missing);
        if lacks_head && are_heads(&self.unexpected) {
            self.missing.clear();
            self.unexpected.clear();
            return true;
        }
        false
    }

    /// Removes and returns the differences of the classifier's head, if only its number of classes differs.
    pub(super) fn take_head(&mut self) -> Vec<ShapeDifference> {
        self.shapes.extract_if(.., |difference| is_other_class_count(difference)).collect()
    }
}

/// Returns whether the tensor counts the batches of a batch norm.
pub(super) fn is_batch_counter(name: &str) -> bool {
    name.ends_with(".num_batches_tracked")
}

/// Returns whether the tensor belongs to the head of a built-in network, or of a usual one of timm, torchvision or
/// transformers.
pub(super) fn is_head(name: &str) -> bool {
    ["fc.", "head.", "heads.", "classifier.", "aux_classifier.", "outc.conv."]
        .iter()
        .any(|head| name.starts_with(head))
}

fn is_other_class_count(difference: &ShapeDifference) -> bool {
    is_head(&difference.name)
        && !difference.file.is_empty()
        && difference.file.len() == difference.model.len()
        && difference.file[1..] == difference.model[1..]
}

/// Returns whether a file's dtype converts to a model's: between floats, and integers to counters.
fn is_convertible(from: Dtype, to: Kind) -> bool {
    match to {
        Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16 => {
            matches!(from, Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64)
        }
        Kind::Int64 => matches!(from, Dtype::I32 | Dtype::I64),
        _ => kind_of(from) == Some(to),
    }
}

/// Lists the first few items and the number of the others.
pub(super) fn list_first<T>(items: &[T], show: impl Fn(&T) -> String) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<String> = items.iter().take(SHOWN).map(show).collect();
    match items.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with_shape = |(name, shape): &(String, Vec<usize>)| format!("`{name}` {shape:?}");
        let shapes =
            |d: &ShapeDifference| format!("`{}` is {:?}, in the model {:?}", d.name, d.file, d.model);
        let types = |d: &DtypeDifference| format!("`{}` is {}, in the model {}", d.name, d.file, d.model);
        let parts = [
            ("unexpected tensors", list_first(&self.unexpected, with_shape)),
            ("missing tensors", list_first(&self.missing, with_shape)),
            ("different shapes", list_first(&self.shapes, shapes)),
            ("different dtypes", list_first(&self.types, types)),
        ];
        let parts = parts.iter().filter(|(_, shown)| !shown.is_empty());
        let parts: Vec<String> = parts.map(|(kind, shown)| format!("{kind}: {shown}")).collect();
        let known = |network: &str| !network.contains(UNKNOWN);
        match known(&self.model) {
            true => write!(f, "the file does not fit the model ({}): {}.", self.model, parts.join("; "))?,
            false => write!(f, "the file does not fit the model: {}.", parts.join("; "))?,
        }
        let (is_classes, file) = (self.is_class_count(), &self.file);
        f.write_str(&match known(file) {
            _ if is_classes => " Only the number of classes differs: the file can start a new training, but not continue one.".to_owned(),
            false => String::new(),
            true if *file == self.model => format!(" The file holds a variant of {file}."),
            true => format!(" The file looks like {file}."),
        })?;
        self.remedy.iter().try_for_each(|remedy| write!(f, " {remedy}"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn wanted<'a>(name: &'a str, shape: &[usize], kind: Kind) -> ExpectedTensor<'a> {
        ExpectedTensor { name, shape: shape.to_vec(), kind }
    }

    #[test]
    fn every_kind_of_difference_is_found() {
        let model = [
            wanted("a", &[2, 3], Kind::Float),
            wanted("b", &[4], Kind::Float),
            wanted("c", &[4], Kind::Float),
            wanted("bn.num_batches_tracked", &[], Kind::Int64),
            wanted("d", &[1], Kind::Float),
        ];
        let info = |shape: &[usize], dtype| StoredTensor::new("", dtype, shape.to_vec()).unwrap();
        let file = [
            ("a", info(&[3, 2], Dtype::F32)),
            ("b", info(&[4], Dtype::I32)),
            ("x.num_batches_tracked", info(&[], Dtype::I64)),
            ("e", info(&[5], Dtype::F32)),
            ("d", info(&[1], Dtype::BF16)),
        ];
        let file = file.iter().map(|(name, info)| (*name, info)).collect();
        let mismatch = compare(&model, &file);
        assert_eq!(mismatch.missing, [("c".to_owned(), vec![4])]);
        assert_eq!(
            mismatch.unexpected,
            [("e".to_owned(), vec![5]), ("x.num_batches_tracked".to_owned(), vec![])]
        );
        let shapes = ShapeDifference { name: "a".to_owned(), file: vec![3, 2], model: vec![2, 3] };
        assert_eq!(mismatch.shapes, [shapes]);
        let dtypes =
            DtypeDifference { name: "b".to_owned(), file: "I32".to_owned(), model: "Float".to_owned() };
        assert_eq!(mismatch.types, [dtypes]);
        let text = mismatch.to_string();
        for part in [
            "`e` [5]",
            "missing tensors: `c` [4]",
            "`a` is [3, 2], in the model [2, 3]",
            "`b` is I32, in the model Float",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn the_head_is_taken_only_if_its_classes_differ() {
        let difference = |name: &str, file: &[usize], model: &[usize]| ShapeDifference {
            name: name.to_owned(),
            file: file.to_vec(),
            model: model.to_vec(),
        };
        let head = [difference("fc.weight", &[1000, 512], &[10, 512]), difference("fc.bias", &[1000], &[10])];
        let wider = difference("fc.weight", &[10, 2048], &[10, 512]);
        let other = difference("conv1.weight", &[32, 3, 7, 7], &[64, 3, 7, 7]);
        let shapes = vec![head[0].clone(), other.clone(), head[1].clone(), wider.clone()];
        let mut mismatch = Mismatch { shapes, ..Mismatch::default() };
        assert_eq!(mismatch.take_head(), head);
        assert_eq!(mismatch.shapes, [other, wider]);

        let only_head = Mismatch { shapes: head.to_vec(), ..Mismatch::default() };
        assert!(only_head.to_string().contains("Only the number of classes differs"));
    }

    #[test]
    fn long_lists_are_shortened() {
        assert_eq!(list_first(&[1, 2, 3], |n| n.to_string()), "1, 2, 3");
        assert_eq!(list_first(&[1, 2, 3, 4, 5], |n| n.to_string()), "1, 2, 3 and 2 more");
    }
}
