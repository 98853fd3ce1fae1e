#![allow(clippy::unwrap_used)]
use super::*;
use crate::parity::OfFigures;

const VALUES: [&str; 2] = ["objects.logits", "objects.masks"];
const INTERVAL: Option<bool> = Some(true);

#[test]
fn figures_are_those_of_py_sod_metrics_and_medpy_in_every_cut() {
    let known = OfFigures::read();
    let compare = |figure: &dyn Figure, expected: &[&str]| known.compare(figure, VALUES, 2, expected);
    let interval = INTERVAL;
    compare(&SMeasure { interval, ..SMeasure::default() }, &["s_measure", "s_measure.interval"]);
    for (threshold, expected) in [
        (Threshold::Mean, "e_measure"),
        (Threshold::Max, "max_e_measure"),
        (Threshold::Adaptive, "adaptive_e_measure"),
    ] {
        compare(&EMeasure { threshold, ..EMeasure::default() }, &[expected]);
    }
    compare(&WeightedF::default(), &["weighted_f"]);
    compare(&MaskMae::default(), &["mask_mae"]);
    compare(&Hd95 { interval, ..Hd95::default() }, &["hd95", "hd95.interval"]);
}

/// Returns logits of two classes that predict the marked pixels, and a mask, H x W.
fn image(predicted: &[i64], mask: &[i64], width: i64) -> [Tensor; 2] {
    let [predicted, mask] = [predicted, mask].map(|of| Tensor::from_slice(of).view([1, -1, width]));
    let logits = (predicted.to_kind(Kind::Float) - 0.5) * 20.0;
    [Tensor::stack(&[&-&logits, &logits], 1), mask]
}

fn of(figure: &dyn BySums, [logits, mask]: &[Tensor; 2]) -> f64 {
    let sums = figure.add(&[logits, mask], &Tensor::from_slice(&[1f32])).unwrap();
    figure.figure(&Vec::<f64>::try_from(sums).unwrap())
}

#[test]
fn an_image_without_an_object_has_the_diagonal_or_is_left_out() {
    let distance = |predicted: &[i64; 12], mask: &[i64; 12]| of(&Hd95::default(), &image(predicted, mask, 4));
    let one = [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(distance(&one, &one), 0.0);
    assert_eq!(distance(&one, &[0; 12]), 5.0);
    assert_eq!(distance(&[0; 12], &one), 5.0);
    assert!(distance(&[0; 12], &[0; 12]).is_nan(), "no image");
}

#[test]
fn pixels_that_do_not_count_are_background() {
    let mask = [-1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, -1];
    let predicted = [1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1];
    let image = image(&predicted, &mask, 4);
    assert!(of(&MaskMae::default(), &image) < 1e-6);
    assert_eq!(of(&Hd95::default(), &image), 0.0);
    assert!((of(&SMeasure::default(), &image) - 1.0).abs() < 1e-9);
    assert!(
        of(&SMeasure::default(), &super::tests::image(&predicted, &[-1; 12], 4)).is_nan(),
        "nothing counts"
    );
}

#[test]
fn settings_that_do_not_fit_name_the_remedy() {
    let shapes = [vec![None, Some(2), Some(8), Some(8)], vec![None, Some(8), Some(8)]];
    let error = SMeasure { positive: 2, ..SMeasure::default() }.check(&shapes, Some(2)).unwrap_err();
    assert!(error.contains("set positive below 2"), "{error}");
    let max = EMeasure { threshold: Threshold::Max, interval: INTERVAL, ..EMeasure::default() };
    assert!(max.check(&shapes, Some(2)).unwrap_err().contains("remove interval"));
    assert!(Hd95::default().check(&shapes, Some(2)).is_ok());
}
