//! The size of a difference, and whether rounding explains it.

use super::reading::Kind;

/// Returns the difference as a part of the larger number; infinite if one of them is not finite.
pub(super) fn relative(a: f64, b: f64) -> f64 {
    match (a.is_finite(), b.is_finite()) {
        (true, true) if a == b => 0.0,
        (true, true) => (a - b).abs() / a.abs().max(b.abs()),
        (false, false) => 0.0,
        _ => f64::INFINITY,
    }
}

/// Returns the relative difference up to which two numbers of a kind are equal without a tolerance. A gradient norm is a float64 sum in
/// the order of the parameters in memory, which is another one in the first step after a resume.
pub(super) fn noise(kind: Kind) -> f64 {
    if kind == Kind::Gradient { 1e-13 } else { 0.0 }
}

/// Returns whether a first difference of this size is one of rounding, between runs that compute with these precisions, as plan.json
/// names them. Sums over many elements have errors of some units in the last place; a unit is 6e-8 in float32, 5e-4 in TF32 and
/// float16, and 4e-3 in bfloat16.
pub(super) fn is_rounding(relative: f64, kind: Kind, precisions: [&str; 2]) -> bool {
    let limit = |precision: &str| match precision {
        words if words.contains("bf16") => 2e-2,
        words if words.contains("fp16") || words.contains("TF32") => 3e-3,
        _ => 1e-5,
    };
    match kind {
        Kind::Plan | Kind::Order | Kind::Content | Kind::Update => false,
        // Computed in float64, by the same formula.
        Kind::Rate => relative <= 1e-12,
        Kind::Loss | Kind::Gradient | Kind::Evaluation | Kind::Weights => {
            relative <= precisions.map(limit).into_iter().fold(0.0, f64::max)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_relative_to_the_larger_number() {
        assert_eq!([relative(2.0, 1.0), relative(-1.0, 1.0), relative(0.0, 0.0)], [0.5, 2.0, 0.0]);
        assert_eq!([relative(f64::NAN, f64::NAN), relative(1.0, f64::NAN)], [0.0, f64::INFINITY]);
    }

    #[test]
    fn rounding_depends_on_the_precision() {
        let loss = |size, a, b| is_rounding(size, Kind::Loss, [a, b]);
        assert!(loss(1e-7, "fp32", "") && !loss(1e-4, "fp32", "fp32"));
        assert!(loss(1e-3, "bf16", "fp32") && !loss(0.1, "bf16", "bf16"));
        assert!(loss(1e-3, "fp32 with products in TF32", "fp32"));
        assert!(!is_rounding(1e-7, Kind::Rate, ["bf16"; 2]) && !is_rounding(0.0, Kind::Order, ["bf16"; 2]));
    }
}
