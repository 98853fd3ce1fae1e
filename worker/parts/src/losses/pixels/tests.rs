#![allow(clippy::unwrap_used)]
use tch::Device;

use super::*;

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
