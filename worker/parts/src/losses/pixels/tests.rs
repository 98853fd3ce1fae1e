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

fn masks<'a>(mask: &'a Tensor, weights: &'a Tensor) -> Masks<'a> {
    Masks { mask, weights, ignore: 9, classes: 3 }
}

fn only(logits: &Tensor) -> Outputs {
    Outputs::only(logits.shallow_clone())
}

#[test]
fn only_counted_pixels_have_weight() {
    let (logits, mask) = pixels();
    // The second sample is unreadable: 4 pixels fewer. One of the other 8 is ignored.
    let weights = Tensor::from_slice(&[1f32, 0.0, 1.0]);
    let loss = pixel_loss(&only(&logits), &masks(&mask, &weights)).unwrap();
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
    let loss = pixel_loss(&only(&logits), &masks(&mask.full_like(9), &weights)).unwrap();
    assert_eq!((loss.sum.double_value(&[]), loss.weight.double_value(&[])), (0.0, 0.0));
}

#[test]
fn sums_are_equal_for_every_partition() {
    let (logits, mask) = pixels();
    let of = |first: i64, samples: i64| {
        let (logits, mask) = (logits.narrow(0, first, samples), mask.narrow(0, first, samples));
        let weights = Tensor::ones([samples], CPU);
        let masks = masks(&mask, &weights);
        (pixel_loss(&only(&logits), &masks).unwrap(), pixel_sums(&logits, &masks).unwrap())
    };
    let (whole, areas) = of(0, 3);
    let parts = [of(0, 1), of(1, 2)];
    let [sum, weight] = [0, 1]
        .map(|at| parts.iter().map(|(loss, _)| [&loss.sum, &loss.weight][at].double_value(&[])).sum::<f64>());
    assert!((whole.sum.double_value(&[]) - sum).abs() < 1e-6);
    assert_eq!(whole.weight.double_value(&[]), weight);
    let of_parts = &parts[0].1 + &parts[1].1;
    assert!(areas.equal(&of_parts), "{of_parts:?}");
    assert_eq!(areas.double_value(&[6]), 10.0, "counted pixels");
}

#[test]
fn auxiliary_and_smaller_logits_have_the_loss_of_enlarged_ones() {
    let (_, mask) = pixels();
    let weights = Tensor::ones([3], CPU);
    let main = Tensor::f_randn([3, 3, 1, 1], CPU).unwrap();
    let other = Tensor::f_randn([3, 3, 2, 2], CPU).unwrap();
    let whole = |logits: &Tensor| pixel_loss(&only(logits), &masks(&mask, &weights)).unwrap();
    let enlarged = main.expand([3, 3, 2, 2], false);
    let expected = whole(&enlarged).sum.double_value(&[]) + 0.4 * whole(&other).sum.double_value(&[]);
    let outputs = Outputs { main, auxiliary: vec![(other, 0.4)] };
    let loss = pixel_loss(&outputs, &masks(&mask, &weights)).unwrap();
    assert!((loss.sum.double_value(&[]) - expected).abs() < 1e-4, "{loss:?}");
    let areas = |logits: &Tensor| pixel_sums(logits, &masks(&mask, &weights)).unwrap();
    assert!(areas(&outputs.main).equal(&areas(&enlarged)));
}

#[test]
fn logits_may_have_more_classes_than_the_masks() {
    let mask = Tensor::from_slice(&[0i64, 1, 1, 9]).view([1, 2, 2]);
    // Predicts class 4, which the masks lack, for the first pixel, and class 1 for the others.
    let logits = Tensor::from_slice(&[4i64, 1, 1, 1]).one_hot(5).view([1, 2, 2, 5]).permute([0, 3, 1, 2]);
    let weights = Tensor::ones([1], CPU);
    let sums = pixel_sums(&logits, &Masks { classes: 2, ..masks(&mask, &weights) }).unwrap();
    assert_eq!(Vec::<f64>::try_from(sums).unwrap(), [0.0, 2.0, 1.0, 2.0, 3.0]);
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
            pixel_losses(&terms, &only(logits), &Masks { ignore: 255, ..masks(mask, weights) }).unwrap()
        });
    }
}

#[test]
fn losses_of_images_weigh_their_pixels() {
    let (logits, mask) = pixels();
    let weights = Tensor::from_slice(&[1f32, 0.0, 1.0]);
    let sums = pixel_sums(&logits, &masks(&mask, &weights)).unwrap();
    assert_eq!(sums.double_value(&[6]), 7.0, "counted pixels");
    let found = pixel_losses(&[plain(dice(1.0))], &only(&logits), &masks(&mask, &weights)).unwrap();
    assert_eq!(found.weight.double_value(&[]), 8.0, "two samples of 4 pixels");
    let terms = [plain(dice(1.0)), weighted(smoothed())];
    let nothing = pixel_losses(&terms, &only(&logits), &masks(&mask.full_like(9), &weights)).unwrap();
    assert_eq!((nothing.sum.double_value(&[]), nothing.weight.double_value(&[])), (0.0, 0.0));
}

#[test]
fn a_plain_cross_entropy_is_the_same_by_both_functions() {
    let (logits, mask) = pixels();
    let weights = Tensor::from_slice(&[1f32, 0.0, 1.0]);
    let term = [plain(SampleLoss::CrossEntropy(CrossEntropy::default()))];
    let found = pixel_losses(&term, &only(&logits), &masks(&mask, &weights)).unwrap();
    let alone = pixel_loss(&only(&logits), &masks(&mask, &weights)).unwrap();
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
    let both = pixel_losses(&[none, plain(dice(1.0))], &only(&logits), &masks(&mask, &weights)).unwrap();
    let alone = pixel_losses(&[plain(dice(1.0))], &only(&logits), &masks(&mask, &weights)).unwrap();
    assert_eq!(both.sum.double_value(&[]), alone.sum.double_value(&[]));
    both.sum.backward();
    assert!(logits.grad().isfinite().all().int64_value(&[]) == 1);
}
