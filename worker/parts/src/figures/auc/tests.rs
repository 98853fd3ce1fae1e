#![allow(clippy::unwrap_used)]
use proptest::prelude::*;

use super::super::rows::{MOST, Share};
use super::*;

/// The definition: the part of all pairs that the positive sample wins.
fn by_pairs(samples: &[(f32, bool, bool)]) -> f64 {
    let scores = |wanted: bool| {
        let all = samples.iter().filter(move |(_, is_positive, counts)| *counts && *is_positive == wanted);
        all.map(|(score, ..)| *score)
    };
    let (mut won, mut pairs) = (0.0, 0.0);
    for (positive, negative) in scores(true).flat_map(|positive| scores(false).map(move |it| (positive, it)))
    {
        pairs += 1.0;
        won += if positive > negative {
            1.0
        } else if positive == negative {
            0.5
        } else {
            0.0
        };
    }
    won / pairs
}

/// Returns the figure of samples that are cut into batches at `cuts`, of which each of `ranks` ranks has its own.
fn in_batches(samples: &[(f32, bool, bool)], cuts: &[usize], ranks: usize, most: usize) -> f64 {
    let figure = Auc::default();
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % samples.len()).chain([samples.len()]).collect();
    ends.sort_unstable();
    let mut shares: Vec<_> = (0..ranks).map(|_| Share::new(&figure, samples.len(), most).unwrap()).collect();
    let mut first = 0;
    for (number, end) in ends.into_iter().enumerate() {
        let batch = &samples[first..end];
        let scores: Vec<f32> = batch.iter().map(|(score, ..)| *score).collect();
        let classes: Vec<i64> = batch.iter().map(|(_, is_positive, _)| i64::from(*is_positive)).collect();
        let weights: Vec<f32> = batch.iter().map(|(.., counts)| f32::from(u8::from(*counts))).collect();
        let [scores, weights] = [scores, weights].map(|values| Tensor::from_slice(&values));
        let rows = figure.rows(&[&scores, &Tensor::from_slice(&classes)], &weights).unwrap();
        shares[number % ranks].add(&figure, first, &rows).unwrap();
        first = end;
    }
    let whole = shares.pop().unwrap();
    for share in &shares {
        let _ = whole.values().shallow_clone().f_add_(share.values()).unwrap();
    }
    whole.figure(&figure).unwrap()
}

fn equal(a: f64, b: f64) -> bool {
    a == b || (a.is_nan() && b.is_nan())
}

proptest! {
    /// Few different scores, so that many are equal, and each has another bin.
    #[test]
    fn the_area_is_that_of_all_pairs_in_every_cut(
        samples in prop::collection::vec(((-6i8..6).prop_map(|it| f32::from(it) / 2.0), any::<bool>(), prop::bool::weighted(0.9)), 1..60),
        cuts in prop::collection::vec(0usize..60, 0..8),
        ranks in 1usize..4,
    ) {
        let expected = by_pairs(&samples);
        for most in [MOST, 0] {
            let found = in_batches(&samples, &cuts, ranks, most);
            prop_assert!(equal(found, expected), "{found} {expected}");
        }
    }

    #[test]
    fn bins_are_near_for_any_scores(
        samples in prop::collection::vec((-8f32..8.0, any::<bool>(), Just(true)), 20..200), factor in 1e-3f32..1e4,
    ) {
        let far = |&(score, positive, counts): &(f32, bool, bool)| (score * factor, positive, counts);
        let samples: Vec<_> = samples.iter().map(far).collect();
        let (exact, binned) = (by_pairs(&samples), in_batches(&samples, &[7], 2, 0));
        // A bin is 1/128 of its scores wide: a pair in one bin counts one half.
        prop_assert!(equal(exact, binned) || (exact - binned).abs() < 0.02, "{exact} {binned}");
    }
}

/// Scores beyond those whose probabilities differ.
#[test]
fn bins_tell_large_scores_apart() {
    let samples: Vec<_> = (1..=48).map(|at| (at as f32 * 10.0, at > 24, true)).collect();
    assert_eq!(in_batches(&samples, &[5], 2, 0), 1.0);
}

#[test]
fn the_score_of_logits_is_the_log_of_the_odds() {
    let logits = Tensor::from_slice(&[1f32, 2.0, 3.0, -1.0, 0.0, 0.5]).view([2, 3]);
    let figure = Auc { positive: 1, ..Auc::default() };
    let classes = Tensor::from_slice(&[1i64, 2]);
    let rows = figure.rows(&[&logits, &classes], &Tensor::from_slice(&[1f32, 1.0])).unwrap();
    let odds = logits.softmax(1, Kind::Double);
    for (row, mark) in [(0, 2.0), (1, 1.0)] {
        let part = odds.double_value(&[row, 1]);
        assert!((rows.double_value(&[row, 0]) - (part / (1.0 - part)).ln()).abs() < 1e-6);
        assert_eq!(rows.double_value(&[row, 1]), mark);
    }
}

#[test]
fn a_nan_or_a_missing_class_has_no_area() {
    let of = |samples: &[(f32, bool, bool)]| [MOST, 0].map(|most| in_batches(samples, &[], 1, most));
    assert_eq!(of(&[(1.0, true, true), (0.0, false, true)]), [1.0, 1.0]);
    assert_eq!(of(&[(-0.0, true, true), (0.0, false, true)]), [0.5, 0.5]);
    for nothing in [
        [(f32::NAN, true, true), (0.0, false, true)],
        [(1.0, true, true), (0.0, true, true)],
        [(1.0, false, true), (0.0, false, true)],
        [(1.0, true, true), (0.0, false, false)],
    ] {
        assert!(of(&nothing).iter().all(|area| area.is_nan()), "{nothing:?}");
    }
    // A sample that does not count may have any score.
    assert_eq!(of(&[(1.0, true, true), (0.0, false, true), (f32::NAN, true, false)]), [1.0, 1.0]);
}

#[test]
fn the_positive_class_must_be_one() {
    let check = |output: &[Option<i64>], field: &[Option<i64>], positive, classes| {
        Auc { positive, ..Auc::default() }.check(&[output.to_vec(), field.to_vec()], classes)
    };
    let n = [None];
    assert!(check(&[None, Some(2)], &n, 1, Some(2)).is_ok() && check(&n, &n, 1, None).is_ok());
    assert!(check(&[None, None], &n, 4, Some(5)).is_ok());
    for (output, classes) in [(&[None, Some(2)][..], None), (&n, Some(2)), (&[None, None], Some(2))] {
        let error = check(output, &n, 2, classes).unwrap_err();
        assert!(
            error.contains("counts class 2 as positive") && error.ends_with("set positive below 2"),
            "{error}"
        );
    }
    assert!(check(&[None, Some(3), Some(4)], &n, 1, None).unwrap_err().contains("N x K"));
    assert!(check(&[None, Some(4)], &[None, Some(2)], 1, None).unwrap_err().contains("has several"));
}
