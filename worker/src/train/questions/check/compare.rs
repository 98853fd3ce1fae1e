//! Compares values with those of PyTorch.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use dtrain_common::question::CaseAnswer;
use tch::{Kind, Tensor};

use super::case::Found;
use crate::models::{ModelError, TensorFile};
use crate::setup::error::Result;
use crate::tensors::{is_complex, is_floating};

/// The elements that are compared at a time: 8 MiB of float64.
const CHUNK: i64 = 1 << 20;
/// A gradient below this part of the usual size is not told from rounding: a difference of its size is within the tolerance.
const ROUNDING: f64 = 1e-5;

/// PyTorch's results of a case, and how far ours are from them.
pub(super) struct Expected {
    file: TensorFile,
    /// Usual sizes of tensors by kind.
    typical: BTreeMap<String, f64>,
    missing: BTreeSet<String>,
    largest: f64,
    of: String,
    wrong: Option<String>,
}

impl Expected {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = TensorFile::open(path).map_err(ModelError::from)?;
        let missing = file.names().into_iter().collect();
        Ok(Self { file, typical: BTreeMap::new(), missing, largest: 0.0, of: String::new(), wrong: None })
    }

    /// Compares the values of one step.
    pub(super) fn compare(&mut self, step: usize, found: &Found) -> Result<()> {
        for (kind, words, tensors) in [
            ("output", "output", &found.outputs),
            ("grad", "gradient of", &found.gradients),
            ("buffer", "buffer", &found.buffers),
        ] {
            let prefix = format!("{step}.{kind}.");
            for (name, ours) in tensors {
                let (key, of) = (format!("{prefix}{name}"), format!("{words} `{name}`"));
                if self.missing.remove(&key) {
                    let theirs = self.file.read(&key)?;
                    let scale = |own| {
                        let typical = typical_of(&self.file, &mut self.typical, &prefix)?;
                        Ok(scale_of(own, typical, kind == "grad"))
                    };
                    let difference = difference(ours, &theirs, scale)?;
                    self.note(&of, difference);
                } else if kind == "grad" && ours.f_count_nonzero(None)?.f_int64_value(&[])? > 0 {
                    // No gradient is the same as zero.
                    self.wrong.get_or_insert(format!("the {of} is not zero, but PyTorch computes none"));
                }
                // A buffer that Python does not store has nothing to be compared with.
            }
        }
        Ok(())
    }

    fn note(&mut self, of: &str, difference: Difference) {
        match difference {
            Difference::Of(value) if value > self.largest || self.of.is_empty() => {
                (self.largest, self.of) = (value, of.to_owned());
            }
            Difference::Of(_) => {}
            Difference::Kind(words) => drop(self.wrong.get_or_insert(format!("the {of} {words}"))),
        }
    }

    /// Returns the result of the case.
    pub(super) fn answer(self, tolerance: f64) -> CaseAnswer {
        let Self { missing, largest, of, wrong, .. } = self;
        let absent = || {
            let name = missing.first()?;
            let mut parts = name.splitn(3, '.').skip(1);
            let (kind, name) = (parts.next()?, parts.next()?);
            let words = if kind == "grad" { "gradient of" } else { kind };
            Some(format!("dtrain computes no {words} `{name}`"))
        };
        let differs = || {
            // NaN fails too.
            let fits = largest <= tolerance;
            let words = match largest == f64::MAX {
                true => "whole numbers, or by values that are not finite".to_owned(),
                false => format!("{largest:.1e} of its size, more than {tolerance:.0e}"),
            };
            (!fits).then(|| format!("the {of} differs by {words}"))
        };
        let nothing = || of.is_empty().then(|| "nothing was compared".to_owned());
        let error = wrong.or_else(absent).or_else(nothing).or_else(differs);
        CaseAnswer { largest, of, error, ..CaseAnswer::default() }
    }
}

/// Returns the usual root mean square of PyTorch's floating tensors of a kind: the median of those that are not zero. 0 for
/// outputs, whose sizes are not comparable.
fn typical_of(file: &TensorFile, known: &mut BTreeMap<String, f64>, prefix: &str) -> Result<f64> {
    if prefix.ends_with(".output.") {
        return Ok(0.0);
    }
    if let Some(typical) = known.get(prefix) {
        return Ok(*typical);
    }
    let mut sizes = Vec::new();
    for name in file.names().into_iter().filter(|name| name.starts_with(prefix)) {
        let tensor = file.read(&name)?;
        if is_floating(tensor.f_kind()?) {
            sizes.push(root_mean_square(&tensor)?);
        }
    }
    sizes.retain(|size| size.is_finite() && *size > 0.0);
    sizes.sort_by(f64::total_cmp);
    let typical = sizes.get(sizes.len() / 2).copied().unwrap_or_default();
    known.insert(prefix.to_owned(), typical);
    Ok(typical)
}

/// Returns the root mean square to which a difference is compared, for a tensor with that of `own`. Small sums of large
/// terms have the rounding of the terms. Some gradients are that rounding alone, such as that of a bias before a
/// normalisation, and two such values have nothing in common.
fn scale_of(own: f64, typical: f64, is_gradient: bool) -> f64 {
    let is_rounding = is_gradient && own > 0.0 && own < ROUNDING * typical;
    if is_rounding { 10.0 * typical } else { own.max(typical) }
}

enum Difference {
    /// Relative to the size of the tensor.
    Of(f64),
    /// Another shape or dtype, in words that follow the tensor's name.
    Kind(String),
}

/// Compares two tensors; `scale` returns the root mean square to which a difference is compared, from that of `theirs`.
fn difference(ours: &Tensor, theirs: &Tensor, scale: impl FnOnce(f64) -> Result<f64>) -> Result<Difference> {
    if ours.size() != theirs.size() {
        let (ours, theirs) = (ours.size(), theirs.size());
        return Ok(Difference::Kind(format!("has the shape {ours:?} instead of {theirs:?}")));
    }
    if ours.f_kind()? != theirs.f_kind()? {
        let (ours, theirs) = (ours.f_kind()?, theirs.f_kind()?);
        return Ok(Difference::Kind(format!("is {ours:?} instead of {theirs:?}")));
    }
    if ours.equal(theirs) {
        return Ok(Difference::Of(0.0));
    }
    if !is_floating(theirs.f_kind()?) && !is_complex(theirs.f_kind()?) {
        // Whole numbers are exact.
        return Ok(Difference::Of(f64::MAX));
    }
    let [ours, theirs] = [flat(ours)?, flat(theirs)?];
    let (mut delta, mut highest) = (0.0, 0.0f64);
    for_chunks(&ours, &theirs, |ours, theirs| {
        // Equal infinities, and values that both are not a number, are equal.
        let both = ours.f_isnan()?.f_logical_and(&theirs.f_isnan()?)?;
        let same = ours.f_eq_tensor(theirs)?.f_logical_or(&both)?;
        delta += squares(&ours.f_sub(theirs)?.f_masked_fill(&same, 0.0)?)?;
        let differing = theirs.f_abs()?.f_masked_fill(&same, 0.0)?;
        highest = highest.max(differing.f_max()?.f_double_value(&[])?);
        Ok(())
    })?;
    if delta == 0.0 {
        return Ok(Difference::Of(0.0));
    }
    // Larger equal values, such as the fill of a mask, say nothing about the size of the others.
    let mut size = 0.0;
    for_chunks(&ours, &theirs, |_, theirs| {
        let others = theirs.f_abs()?.f_gt(highest)?.f_logical_or(&theirs.f_isfinite()?.f_logical_not()?)?;
        size += squares(&theirs.f_masked_fill(&others, 0.0)?)?;
        Ok(())
    })?;
    let elements = theirs.numel() as f64;
    let relative = (delta / elements).sqrt() / scale((size / elements).sqrt())?;
    Ok(Difference::Of(if relative.is_finite() { relative } else { f64::MAX }))
}

/// Calls a function with parts of two vectors in float64.
fn for_chunks(
    one: &Tensor,
    other: &Tensor,
    mut each: impl FnMut(&Tensor, &Tensor) -> Result<()>,
) -> Result<()> {
    let elements = one.size()[0];
    for begin in (0..elements).step_by(CHUNK as usize) {
        let length = CHUNK.min(elements - begin);
        let part = |tensor: &Tensor| tensor.f_narrow(0, begin, length)?.f_to_kind(Kind::Double);
        each(&part(one)?, &part(other)?)?;
    }
    Ok(())
}

/// Returns the numbers of a tensor as a vector.
fn flat(tensor: &Tensor) -> Result<Tensor> {
    let real = if is_complex(tensor.f_kind()?) { tensor.f_view_as_real()? } else { tensor.shallow_clone() };
    Ok(real.f_reshape([-1])?)
}

/// Returns the sum of the squares of float64 values.
fn squares(values: &Tensor) -> Result<f64> {
    Ok(values.f_dot(values)?.f_double_value(&[])?)
}

/// Returns the root mean square of a tensor.
fn root_mean_square(tensor: &Tensor) -> Result<f64> {
    let (flat, mut sum) = (flat(tensor)?, 0.0);
    let elements = flat.size()[0];
    for begin in (0..elements).step_by(CHUNK as usize) {
        let part = flat.f_narrow(0, begin, CHUNK.min(elements - begin))?;
        sum += squares(&part.f_to_kind(Kind::Double)?)?;
    }
    Ok((sum / elements.max(1) as f64).sqrt())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Returns the relative difference of float32 values, among tensors with values of about 1.
    fn relative(ours: &[f32], theirs: &[f32]) -> f64 {
        let scale = |own| Ok(scale_of(own, 1.0, true));
        match difference(&Tensor::from_slice(ours), &Tensor::from_slice(theirs), scale).unwrap() {
            Difference::Of(value) => value,
            Difference::Kind(words) => panic!("{words}"),
        }
    }

    #[test]
    fn tensors_are_compared_by_their_size() {
        assert_eq!(relative(&[1.0, 2.0], &[1.0, 2.0]), 0.0);
        assert!((relative(&[3.0, 4.5], &[3.0, 4.0]) - 0.1).abs() < 1e-6);
        // Of a smaller tensor by the usual size.
        assert!((relative(&[2e-3], &[1e-3]) - 1e-3).abs() < 1e-9);
        assert_eq!(relative(&[], &[]), 0.0);
        // Rounding of a sum that cancels, but not beside a true zero.
        assert!((relative(&[5e-5], &[1e-6]) - 4.9e-6).abs() < 1e-9);
        assert!((relative(&[5e-5], &[0.0]) - 5e-5).abs() < 1e-9);
        for larger in [2e-5f32, 2e-4] {
            assert!((relative(&[5e-5], &[larger]) - f64::from((larger - 5e-5).abs())).abs() < 1e-9);
        }
        // The fill of a mask does not hide the rest.
        assert!((relative(&[20.0, -1e9], &[10.0, -1e9]) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn what_is_no_number_is_equal_only_to_itself() {
        let (nan, infinity) = (f32::NAN, f32::INFINITY);
        assert_eq!(relative(&[nan, infinity, 1.0], &[nan, infinity, 1.0]), 0.0);
        for (ours, theirs) in
            [(nan, 1.0), (1.0, nan), (infinity, -infinity), (1.0, infinity), (infinity, 1.0)]
        {
            assert_eq!(relative(&[ours], &[theirs]), f64::MAX, "{ours} {theirs}");
        }
    }

    #[test]
    fn other_shapes_and_dtypes_are_named() {
        let kind = |ours: &Tensor, theirs: &Tensor| match difference(ours, theirs, Ok).unwrap() {
            Difference::Kind(words) => words,
            Difference::Of(value) => panic!("{value}"),
        };
        let (one, whole) = (Tensor::from_slice(&[1f32, 2.0]), Tensor::from_slice(&[1i64, 2]));
        assert_eq!(kind(&one, &whole), "is Float instead of Int64");
        let next = difference(&whole, &(&whole + 1), Ok).unwrap();
        assert!(matches!(next, Difference::Of(f64::MAX)), "whole numbers are exact");
        assert_eq!(kind(&one.reshape([2, 1]), &one), "has the shape [2, 1] instead of [2]");
    }
}
