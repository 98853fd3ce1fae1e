#![allow(clippy::unwrap_used)]
use dtrain_recipe::SampleLoss;
use dtrain_recipe::sample_losses::{Boundary, CrossEntropy, Dice, Focal, Jaccard, Tversky};
use tch::Device;

use super::*;
use crate::parity::OfSamples;

const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);

/// Returns logits, N x 3 x 2 x 2, and a mask with ignored pixels (9).
fn pixels() -> (Tensor, Tensor) {
    tch::manual_seed(5);
    let logits = Tensor::f_randn([3, 3, 2, 2], CPU).unwrap().set_requires_grad(true);
    let mask = Tensor::from_slice(&[0i64, 1, 2, 9, 1, 1, 9, 0, 2, 2, 0, 1]).view([3, 2, 2]);
    (logits, mask)
}

fn only(logits: &Tensor) -> Outputs {
    Outputs::only(logits.shallow_clone())
}

#[test]
fn only_counted_pixels_have_weight() {
    let (logits, mask) = pixels();
    // The second sample is unreadable: 4 pixels fewer. One of the other 8 is ignored.
    let weights = Tensor::from_slice(&[1f32, 0.0, 1.0]);
    let loss = pixel_loss(&only(&logits), &mask, &weights, 9, 3).unwrap();
    assert_eq!(loss.weight.double_value(&[]), 7.0);
    let mut by_hand = 0.0;
    let log_probabilities = logits.log_softmax(1, Kind::Double);
    for (sample, row, column) in (0..3).flat_map(|n| (0..4).map(move |at| (n, at / 2, at % 2))) {
        let class = mask.int64_value(&[sample, row, column]);
        if class != 9 && sample != 1 {
            by_hand -= log_probabilities.double_value(&[sample, class, row, column]);
        }
    }
    assert!((loss.sum.double_value(&[]) - by_hand).abs() < 1e-5, "{loss:?}");
    loss.sum.backward();
    let gradient = logits.grad();
    let at = |sample, row, column| {
        let all = gradient.select(0, sample).select(1, row).select(1, column);
        all.abs().sum(Kind::Float).double_value(&[])
    };
    assert!(at(0, 0, 0) > 0.0 && at(2, 1, 1) > 0.0);
    assert_eq!((at(0, 1, 1), at(1, 0, 0)), (0.0, 0.0));

    // Without counted pixels the loss is 0, not NaN.
    let loss = pixel_loss(&only(&logits), &mask.full_like(9), &weights, 9, 3).unwrap();
    assert_eq!((loss.sum.double_value(&[]), loss.weight.double_value(&[])), (0.0, 0.0));
}

#[test]
fn sums_are_equal_for_every_partition() {
    let (logits, mask) = pixels();
    let whole = pixel_loss(&only(&logits), &mask, &Tensor::ones([3], CPU), 9, 3).unwrap();
    let (mut sum, mut weight, mut sums) = (0.0, 0.0, Tensor::zeros([6], (Kind::Double, Device::Cpu)));
    for (first, samples) in [(0, 1), (1, 2)] {
        let part = pixel_loss(
            &only(&logits.narrow(0, first, samples)),
            &mask.narrow(0, first, samples),
            &Tensor::ones([samples], CPU),
            9,
            3,
        )
        .unwrap();
        sum += part.sum.double_value(&[]);
        weight += part.weight.double_value(&[]);
        sums += part.sums;
    }
    assert!((whole.sum.double_value(&[]) - sum).abs() < 1e-6);
    assert_eq!(whole.weight.double_value(&[]), weight);
    assert!(whole.sums.equal(&sums), "{sums:?}");
}

#[test]
fn auxiliary_and_smaller_logits_have_the_loss_of_enlarged_ones() {
    let (_, mask) = pixels();
    let weights = Tensor::ones([3], CPU);
    let main = Tensor::f_randn([3, 3, 1, 1], CPU).unwrap();
    let other = Tensor::f_randn([3, 3, 2, 2], CPU).unwrap();
    let whole = |logits: &Tensor| pixel_loss(&only(logits), &mask, &weights, 9, 3).unwrap();
    let enlarged = main.expand([3, 3, 2, 2], false);
    let expected = whole(&enlarged).sum.double_value(&[]) + 0.4 * whole(&other).sum.double_value(&[]);
    let outputs = Outputs { main, auxiliary: vec![(other, 0.4)] };
    let loss = pixel_loss(&outputs, &mask, &weights, 9, 3).unwrap();
    assert!((loss.sum.double_value(&[]) - expected).abs() < 1e-4, "{loss:?}");
    assert!(loss.sums.equal(&whole(&enlarged).sums), "figures are of the main output");
}

#[test]
fn logits_may_have_more_classes_than_the_masks() {
    let mask = Tensor::from_slice(&[0i64, 1, 1, 9]).view([1, 2, 2]);
    // Predicts class 4, which the masks lack, for the first pixel, and class 1 for the others.
    let logits = Tensor::from_slice(&[4i64, 1, 1, 1]).one_hot(5).view([1, 2, 2, 5]).permute([0, 3, 1, 2]);
    let logits = only(&logits.to_kind(Kind::Float));
    let loss = pixel_loss(&logits, &mask, &Tensor::ones([1], CPU), 9, 2).unwrap();
    assert_eq!(Vec::<f64>::try_from(loss.sums).unwrap(), [0.0, 2.0, 1.0, 2.0]);
}

const WEIGHTS: [f32; 3] = [0.5, 1.5, 1.0];

fn plain(settings: SampleLoss) -> Term {
    Term { settings, class_weights: None, ranks: None }
}

fn weighted(settings: SampleLoss) -> Term {
    Term { settings, class_weights: Some(Tensor::from_slice(&WEIGHTS)), ranks: None }
}

fn smoothed() -> SampleLoss {
    SampleLoss::CrossEntropy(CrossEntropy { smoothing: 0.1, ..CrossEntropy::default() })
}

fn dice(weight: f64) -> SampleLoss {
    SampleLoss::Dice(Dice { weight, smooth: 1.0 })
}

fn boundary(weight: f64) -> SampleLoss {
    SampleLoss::Boundary(Boundary { weight, factor: 5.0, width: 1 })
}

#[test]
fn losses_are_those_of_pytorch_however_a_step_is_cut() {
    let focal = || SampleLoss::Focal(Focal::default());
    let jaccard = SampleLoss::Jaccard(Jaccard { weight: 1.0, smooth: 0.5 });
    for (name, terms) in [
        ("pixel_cross_entropy", vec![weighted(smoothed())]),
        ("pixel_focal", vec![plain(focal())]),
        ("dice", vec![plain(dice(1.0))]),
        ("jaccard", vec![plain(jaccard)]),
        ("tversky", vec![plain(SampleLoss::Tversky(Tversky::default()))]),
        ("boundary", vec![plain(boundary(1.0))]),
        ("several_of_pixels", vec![weighted(smoothed()), plain(dice(0.5)), plain(boundary(0.25))]),
    ] {
        OfSamples::read("pixels", "mask", 1).compare(name, |logits, mask, weights| {
            pixel_losses(&terms, &only(logits), mask, weights, 255, 3).unwrap()
        });
    }
}

#[test]
fn the_sum_of_losses_has_the_figures_and_the_number_of_pixels() {
    let (logits, mask) = pixels();
    let weights = Tensor::from_slice(&[1f32, 0.0, 1.0]);
    let alone = pixel_loss(&only(&logits), &mask, &weights, 9, 3).unwrap();
    for terms in [vec![plain(dice(1.0))], vec![weighted(smoothed())]] {
        let found = pixel_losses(&terms, &only(&logits), &mask, &weights, 9, 3).unwrap();
        let sums = Vec::<f64>::try_from(&found.sums).unwrap();
        assert_eq!(sums[..6], Vec::<f64>::try_from(&alone.sums).unwrap());
        assert_eq!(sums[6], 7.0);
    }
    let found = pixel_losses(&[plain(dice(1.0))], &only(&logits), &mask, &weights, 9, 3).unwrap();
    assert_eq!(found.weight.double_value(&[]), 8.0, "two samples of 4 pixels");
    let terms = [plain(dice(1.0)), weighted(smoothed())];
    let nothing = pixel_losses(&terms, &only(&logits), &mask.full_like(9), &weights, 9, 3).unwrap();
    assert_eq!((nothing.sum.double_value(&[]), nothing.weight.double_value(&[])), (0.0, 0.0));
}

#[test]
fn a_plain_cross_entropy_is_the_same_by_both_functions() {
    let (logits, mask) = pixels();
    let weights = Tensor::from_slice(&[1f32, 0.0, 1.0]);
    let term = [plain(SampleLoss::CrossEntropy(CrossEntropy::default()))];
    let found = pixel_losses(&term, &only(&logits), &mask, &weights, 9, 3).unwrap();
    let alone = pixel_loss(&only(&logits), &mask, &weights, 9, 3).unwrap();
    assert!((found.sum.double_value(&[]) - alone.sum.double_value(&[])).abs() < 1e-6);
    assert_eq!(found.weight.double_value(&[]), alone.weight.double_value(&[]));
}

#[test]
fn classes_of_weight_zero_add_nothing_to_an_image() {
    let (logits, _) = pixels();
    let mask = Tensor::zeros([3, 2, 2], (Kind::Int64, Device::Cpu));
    let none = Term {
        settings: smoothed(),
        class_weights: Some(Tensor::from_slice(&[0f32, 1.5, 1.5])),
        ranks: None,
    };
    let weights = Tensor::ones([3], CPU);
    let both = pixel_losses(&[none, plain(dice(1.0))], &only(&logits), &mask, &weights, 9, 3).unwrap();
    let alone = pixel_losses(&[plain(dice(1.0))], &only(&logits), &mask, &weights, 9, 3).unwrap();
    assert_eq!(both.sum.double_value(&[]), alone.sum.double_value(&[]));
    both.sum.backward();
    assert!(logits.grad().isfinite().all().int64_value(&[]) == 1);
}
