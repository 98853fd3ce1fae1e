//! The tensors of checkpoints of the same step.

use super::run::Run;
use anyhow::Context;
use dtrain_common::files::none_if_missing;
use dtrain_common::manifest::Manifest;
use dtrain_common::safetensors_file::{Dtype, SafetensorsFile, StoredTensor};
use half::{bf16, f16};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Bytes that are compared at once.
const PIECE: u64 = 4 << 20;

/// A tensor that differs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tensor {
    /// The file in the checkpoint, and the name in it.
    pub(super) file: String,
    pub(super) name: String,
    /// Elements that differ, and all.
    pub(super) elements: [u64; 2],
    /// The largest difference, and as a part of the largest number of the tensor.
    pub(super) largest: f64,
    pub(super) relative: f64,
}

/// The checkpoints of the first step whose tensors differ.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Checkpoints {
    pub(super) step: u64,
    /// The number of tensors of both.
    pub(super) tensors: usize,
    /// The tensors that differ, the largest relative difference first.
    pub(super) different: Vec<Tensor>,
    /// Files and tensors of one of them, and tensors with other shapes, as sentences.
    pub(super) unmatched: Vec<String>,
    /// Files that changed after they were written: of the first run and of the second.
    pub(super) damaged: [Vec<String>; 2],
}

impl Checkpoints {
    fn is_equal(&self) -> bool {
        self.different.is_empty() && self.unmatched.is_empty()
    }

    pub(super) fn is_damaged(&self) -> bool {
        self.damaged.iter().any(|files| !files.is_empty())
    }
}

/// The result for all common checkpoints.
#[derive(Debug, Default)]
pub(super) struct Compared {
    /// Steps whose checkpoints are equal, before the first that differ.
    pub(super) equal: Vec<u64>,
    pub(super) different: Option<Checkpoints>,
    /// The largest relative difference that the tolerance allowed, if it allowed one.
    pub(super) allowed: Option<f64>,
}

/// Compares the checkpoints of common steps, up to the first that differ.
pub(super) fn compare(a: &Run, b: &Run, tolerance: f64) -> anyhow::Result<Compared> {
    let mut compared = Compared::default();
    for &step in a.checkpoints.iter().filter(|step| b.checkpoints.contains(step)) {
        let folders = [a, b].map(|run| run.dir.checkpoint(step));
        let folders = folders.each_ref().map(|folder| folder.as_path());
        let mut checkpoints = Checkpoints { step, ..Checkpoints::default() };
        let files = [tensor_files(folders[0])?, tensor_files(folders[1])?];
        // A running training removes old checkpoints.
        if files.iter().any(Vec::is_empty) {
            continue;
        }
        for name in files[0].iter().filter(|name| files[1].contains(name)) {
            let allowed = compare_files(folders, name, tolerance, &mut checkpoints)
                .with_context(|| format!("cannot compare {name} of step {step}"))?;
            compared.allowed = [compared.allowed, allowed].into_iter().flatten().reduce(f64::max);
        }
        for (letter, own, others) in [("A", &files[0], &files[1]), ("B", &files[1], &files[0])] {
            let alone = own.iter().filter(|name| !others.contains(name));
            checkpoints.unmatched.extend(alone.map(|name| format!("only {letter} has {name}")));
        }
        if checkpoints.is_equal() {
            compared.equal.push(step);
            continue;
        }
        checkpoints.different.sort_by(|a, b| b.relative.total_cmp(&a.relative));
        checkpoints.damaged = folders.map(|folder| damaged(folder, &checkpoints));
        compared.different = Some(checkpoints);
        break;
    }
    Ok(compared)
}

/// Returns the names of the files with tensors; none if the folder is gone.
fn tensor_files(folder: &Path) -> anyhow::Result<Vec<String>> {
    let entries = none_if_missing(fs::read_dir(folder));
    let entries = entries.with_context(|| format!("cannot list {}", folder.display()))?;
    let names =
        entries.into_iter().flatten().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names.filter(|name| name.ends_with(".safetensors")).collect();
    names.sort_unstable();
    Ok(names)
}

/// Returns the files with differences that do not match their manifest.
fn damaged(folder: &Path, checkpoints: &Checkpoints) -> Vec<String> {
    let Ok(manifest) = Manifest::read(folder) else { return Vec::new() };
    let mut files: Vec<&str> = checkpoints.different.iter().map(|tensor| tensor.file.as_str()).collect();
    files.sort_unstable();
    files.dedup();
    let is_damaged = |file: &&str| !manifest.errors(folder, |name| name == *file, |_| ()).is_empty();
    files.into_iter().filter(is_damaged).map(str::to_owned).collect()
}

/// Compares two files of a name. Returns the largest relative difference that the tolerance allowed, if it allowed one.
fn compare_files(
    folders: [&Path; 2],
    name: &str,
    tolerance: f64,
    found: &mut Checkpoints,
) -> anyhow::Result<Option<f64>> {
    let mut allowed: Option<f64> = None;
    let open = |folder: &Path| {
        let path = folder.join(name);
        SafetensorsFile::open(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let (a, b) = (open(folders[0])?, open(folders[1])?);
    let theirs: BTreeMap<&str, &StoredTensor> =
        b.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    for mine in &a.tensors {
        found.tensors += 1;
        let Some(other) = theirs.get(mine.name.as_str()) else {
            found.unmatched.push(format!("only A has {} in {name}", mine.name));
            continue;
        };
        if (mine.dtype, &mine.shape) != (other.dtype, &other.shape) {
            let shapes = [mine, other].map(|tensor| format!("{:?} {:?}", tensor.dtype, tensor.shape));
            found.unmatched.push(format!("{} is {} in A and {} in B", mine.name, shapes[0], shapes[1]));
            continue;
        }
        let Some(tensor) = compare_tensors((&a, mine), (&b, other), name)? else { continue };
        // Without a tolerance the sign of a zero counts, too.
        match tolerance > 0.0 && tensor.relative <= tolerance {
            true => allowed = Some(allowed.unwrap_or(0.0).max(tensor.relative)),
            false => found.different.push(tensor),
        }
    }
    let only_b = b.tensors.iter().filter(|tensor| a.tensors.iter().all(|mine| mine.name != tensor.name));
    found.unmatched.extend(only_b.map(|tensor| format!("only B has {} in {name}", tensor.name)));
    Ok(allowed)
}

/// Compares two tensors of a shape; `None` if each bit is equal.
fn compare_tensors(
    (a, mine): (&SafetensorsFile, &StoredTensor),
    (b, theirs): (&SafetensorsFile, &StoredTensor),
    file: &str,
) -> anyhow::Result<Option<Tensor>> {
    let (mut differing, mut largest, mut most) = (0, 0.0f64, 0.0f64);
    let width = mine.width().max(1) as usize;
    let mut buffers = [Vec::new(), Vec::new()];
    let mut offset = 0;
    while offset < mine.bytes {
        let length = PIECE.min(mine.bytes - offset) as usize;
        let [own, other] = &mut buffers;
        own.resize(length, 0);
        other.resize(length, 0);
        a.read(mine, offset, own)?;
        b.read(theirs, offset, other)?;
        offset += length as u64;
        for (own, other) in own.chunks_exact(width).zip(other.chunks_exact(width)) {
            let values = [own, other].map(|bytes| Element::of(mine.dtype, bytes));
            most = values.iter().fold(most, |most, value| most.max(value.size()));
            if own != other {
                differing += 1;
                largest = largest.max(values[0].distance(&values[1]));
            }
        }
    }
    if differing == 0 {
        return Ok(None);
    }
    let part = if most > 0.0 { largest / most } else { largest };
    let (file, name) = (file.to_owned(), mine.name.clone());
    Ok(Some(Tensor { file, name, elements: [differing, mine.elements()], largest, relative: part }))
}

/// A number of a tensor.
enum Element {
    Float(f64),
    Whole(i128),
    /// Of a type that is not compared by value: any difference is a large one.
    Unknown,
}

impl Element {
    fn of(dtype: Dtype, bytes: &[u8]) -> Self {
        let of = || {
            Some(match dtype {
                Dtype::F32 => Self::Float(f32::from_le_bytes(bytes.try_into().ok()?).into()),
                Dtype::F64 => Self::Float(f64::from_le_bytes(bytes.try_into().ok()?)),
                Dtype::F16 => Self::Float(f16::from_le_bytes(bytes.try_into().ok()?).to_f64()),
                Dtype::BF16 => Self::Float(bf16::from_le_bytes(bytes.try_into().ok()?).to_f64()),
                Dtype::I64 => Self::Whole(i64::from_le_bytes(bytes.try_into().ok()?).into()),
                Dtype::I32 => Self::Whole(i32::from_le_bytes(bytes.try_into().ok()?).into()),
                Dtype::I16 => Self::Whole(i16::from_le_bytes(bytes.try_into().ok()?).into()),
                Dtype::I8 => Self::Whole(i8::from_le_bytes(bytes.try_into().ok()?).into()),
                Dtype::U64 => Self::Whole(u64::from_le_bytes(bytes.try_into().ok()?).into()),
                Dtype::U32 => Self::Whole(u32::from_le_bytes(bytes.try_into().ok()?).into()),
                Dtype::U16 => Self::Whole(u16::from_le_bytes(bytes.try_into().ok()?).into()),
                Dtype::U8 | Dtype::BOOL => Self::Whole((*bytes.first()?).into()),
                _ => return None,
            })
        };
        of().unwrap_or(Self::Unknown)
    }

    /// Returns the absolute value; 0 of one that is not finite.
    fn size(&self) -> f64 {
        match self {
            Self::Float(value) if value.is_finite() => value.abs(),
            Self::Whole(value) => value.unsigned_abs() as f64,
            _ => 0.0,
        }
    }

    /// Returns the distance of two that have other bits; infinite if one is not finite, or is another one that is not.
    fn distance(&self, other: &Self) -> f64 {
        match (self, other) {
            (Self::Float(a), Self::Float(b)) if a.is_finite() && b.is_finite() => (a - b).abs(),
            (Self::Whole(a), Self::Whole(b)) => a.abs_diff(*b) as f64,
            _ => f64::INFINITY,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use safetensors::tensor::TensorView;

    fn write(folder: &Path, tensors: &[(&str, &[f32])]) {
        let bytes: Vec<_> = tensors
            .iter()
            .map(|(name, values)| {
                (
                    *name,
                    values.len(),
                    values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>(),
                )
            })
            .collect();
        let views = bytes.iter().map(|(name, length, bytes)| {
            (*name, TensorView::new(safetensors::Dtype::F32, vec![*length], bytes).unwrap())
        });
        fs::write(folder.join("m.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    }

    #[test]
    fn whole_numbers_are_compared_exactly() {
        let distance = |dtype, a: &[u8], b: &[u8]| Element::of(dtype, a).distance(&Element::of(dtype, b));
        let [a, b] = [256u32, 512].map(u32::to_le_bytes);
        assert_eq!(distance(Dtype::U32, &a, &b), 256.0);
        let [a, b] = [1i64 << 60, (1 << 60) + 1].map(i64::to_le_bytes);
        assert_eq!(distance(Dtype::I64, &a, &b), 1.0);
        assert_eq!(distance(Dtype::F8_E4M3, &[1], &[2]), f64::INFINITY);
    }

    #[test]
    fn tensors_are_compared_by_name() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let folders = folders.each_ref().map(|folder| folder.path());
        let compared = |a: &[(&str, &[f32])], b: &[(&str, &[f32])], tolerance| {
            write(folders[0], a);
            write(folders[1], b);
            let mut found = Checkpoints::default();
            let allowed = compare_files(folders, "m.safetensors", tolerance, &mut found).unwrap();
            (found, allowed)
        };
        let whole: (&str, &[f32]) = ("w", &[1.0, -4.0, 2.0]);
        assert_eq!(
            compared(&[whole], &[whole], 0.0),
            (Checkpoints { tensors: 1, ..Checkpoints::default() }, None)
        );
        let (found, _) = compared(&[whole, ("a", &[1.0])], &[("w", &[1.0, -4.0, 2.5]), ("b", &[1.0])], 0.0);
        let tensor = Tensor {
            file: "m.safetensors".into(),
            name: "w".into(),
            elements: [1, 3],
            largest: 0.5,
            relative: 0.125,
        };
        assert_eq!(found.different, [tensor]);
        assert_eq!(found.unmatched, ["only A has a in m.safetensors", "only B has b in m.safetensors"]);
        assert_eq!(compared(&[whole], &[("w", &[1.0, -4.0, 2.5])], 0.2).1, Some(0.125));
        assert!(compared(&[("z", &[0.0])], &[("z", &[-0.0])], 0.0).0.different.len() == 1);
        assert!(
            compared(&[whole], &[("w", &[1.0])], 0.5).0.unmatched[0]
                .starts_with("w is F32 [3] in A and F32 [1] in B")
        );
    }
}
