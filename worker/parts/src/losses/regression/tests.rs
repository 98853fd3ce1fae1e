#![allow(clippy::unwrap_used)]

use dtrain_recipe::Loss as Kinds;
use tch::{Device, Kind};

use super::*;
use crate::figures::errors::vector_metrics;
use crate::parity::OfSamples;

const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);
const LOSSES: [&str; 3] = ["mse", "l1", "huber"];

fn word(name: &str) -> Kinds {
    Kinds::word(name).unwrap()
}

fn by_hand(loss: &str, difference: f64) -> f64 {
    match loss {
        "l1" => difference.abs(),
        "huber" if difference.abs() < 1.0 => difference * difference / 2.0,
        "huber" => difference.abs() - 0.5,
        _ => difference * difference,
    }
}

fn plain(numbers: usize) -> Units {
    Units::of_targets(numbers)
}

fn zeros(numbers: i64) -> Tensor {
    Tensor::zeros([numbers], (Kind::Double, Device::Cpu))
}

fn only(output: &Tensor) -> Outputs {
    Outputs::only(output.shallow_clone())
}

/// Returns output and targets, 4 x 3.
fn vectors() -> (Tensor, Tensor) {
    tch::manual_seed(7);
    let values = || Tensor::f_randn([4, 3], CPU).unwrap() * 2.0;
    (values(), values())
}

/// Returns output and targets, 3 x 2 x 2, of which one pixel has no number.
fn maps() -> (Tensor, Tensor) {
    tch::manual_seed(8);
    let output = Tensor::f_randn([3, 2, 2], CPU).unwrap() * 2.0;
    let targets = Tensor::f_randn([3, 2, 2], CPU).unwrap();
    let _ = targets.get(0).get(1).get(0).fill_(f64::NAN);
    (output, targets)
}

#[test]
fn a_vector_weighs_as_one_sample() {
    let (output, targets) = vectors();
    let weights = Tensor::from_slice(&[1f32, 0.0, 1.0, 1.0]);
    for loss in LOSSES {
        let found =
            vector_loss(&only(&output), &targets, &weights, &plain(3), &zeros(3), &word(loss)).unwrap();
        let mut expected = 0.0;
        for (sample, number) in
            [0, 2, 3].iter().flat_map(|sample| (0..3).map(move |number| (*sample, number)))
        {
            let at = [sample, number];
            expected += by_hand(loss, output.double_value(&at) - targets.double_value(&at)) / 3.0;
        }
        assert!((found.sum.double_value(&[]) - expected).abs() < 1e-5, "{loss}: {found:?}");
        assert_eq!(found.weight.double_value(&[]), 3.0);
    }
}

#[test]
fn an_auxiliary_output_adds_its_weighted_loss() {
    let (output, targets) = vectors();
    let weights = Tensor::ones([4], CPU);
    let of = |outputs: &Outputs| {
        let loss = vector_loss(outputs, &targets, &weights, &plain(3), &zeros(3), &word("mse")).unwrap();
        loss.sum.double_value(&[])
    };
    let other = &output * 3.0;
    let both = Outputs { main: output.shallow_clone(), auxiliary: vec![(other.shallow_clone(), 0.4)] };
    assert!((of(&both) - of(&only(&output)) - 0.4 * of(&only(&other))).abs() < 1e-4);
}

#[test]
fn one_number_may_come_without_a_dimension() {
    let output = Tensor::from_slice(&[1f32, 2.0]);
    let targets = Tensor::from_slice(&[0f32, 4.0]).view([2, 1]);
    let weights = Tensor::ones([2], CPU);
    let loss = vector_loss(&only(&output), &targets, &weights, &plain(1), &zeros(1), &word("mse")).unwrap();
    assert_eq!(loss.sum.double_value(&[]), 5.0);
}

#[test]
fn figures_are_in_the_unit_of_the_targets() {
    let targets = Tensor::from_slice(&[10f32, 20.0, 40.0, 50.0]).view([4, 1]);
    // Mean and standard deviation of the targets.
    let (mean, deviation) = (30.0, 250f64.sqrt());
    let units = Units::normalised(vec![mean], vec![deviation], Device::Cpu).unwrap();
    // The network predicts 10, 20, 40 and 46; the last target is unreadable in the second call.
    let output = (Tensor::from_slice(&[10f32, 20.0, 40.0, 46.0]) - mean) / deviation;
    let weights = Tensor::ones([4], CPU);
    let loss = vector_loss(&only(&output), &targets, &weights, &units, &zeros(1), &word("mse")).unwrap();
    assert!((loss.sum.double_value(&[]) - 16.0 / deviation.powi(2)).abs() < 1e-5);
    let sums = Vec::<f64>::try_from(&loss.sums).unwrap();
    let [(_, mae), (_, rmse), (_, r2)] = vector_metrics(&sums, 4.0);
    assert!((mae - 1.0).abs() < 1e-5 && (rmse - 2.0).abs() < 1e-5, "{mae} {rmse}");
    // The squared differences to the mean of 30 add up to 1000.
    assert!((r2 - (1.0 - 16.0 / 1000.0)).abs() < 1e-6, "{r2}");
    let center = Tensor::from_slice(&[29.5]);
    let shifted = vector_loss(&only(&output), &targets, &weights, &units, &center, &word("mse")).unwrap();
    let sums = Vec::<f64>::try_from(&shifted.sums).unwrap();
    assert!((vector_metrics(&sums, 4.0)[2].1 - r2).abs() < 1e-9, "whatever the center");
    let readable = Tensor::from_slice(&[1f32, 1.0, 1.0, 0.0]);
    let loss = vector_loss(&only(&output), &targets, &readable, &units, &zeros(1), &word("mse")).unwrap();
    let sums = Vec::<f64>::try_from(&loss.sums).unwrap();
    assert!(sums[0] < 1e-4 && sums[2] == 70.0 && sums[3] == 2100.0, "{sums:?}");
}

#[test]
fn pixels_without_a_number_do_not_count() {
    let (output, targets) = maps();
    let output = output.set_requires_grad(true);
    let weights = Tensor::from_slice(&[1f32, 0.0, 1.0]);
    for loss in LOSSES {
        let found = map_loss(&only(&output), &targets, &weights, &plain(1), &word(loss)).unwrap();
        assert_eq!(found.weight.double_value(&[]), 7.0);
        let (mut expected, mut absolute) = (0.0, 0.0);
        for (sample, row, column) in [0, 2].iter().flat_map(|n| (0..4).map(move |at| (*n, at / 2, at % 2))) {
            let at = [sample, row, column];
            let difference = output.double_value(&at) - targets.double_value(&at);
            if !difference.is_nan() {
                expected += by_hand(loss, difference);
                absolute += difference.abs();
            }
        }
        assert!((found.sum.double_value(&[]) - expected).abs() < 1e-4, "{loss}: {found:?}");
        assert!((found.sums.double_value(&[0]) - absolute).abs() < 1e-4, "{loss}: {found:?}");
        found.sum.backward();
        let gradient = output.grad();
        assert!(gradient.isfinite().all().int64_value(&[]) == 1);
        assert_eq!(gradient.get(1).abs().sum(Kind::Float).double_value(&[]), 0.0);
    }
    let nothing =
        map_loss(&only(&output), &targets.full_like(f64::NAN), &weights, &plain(1), &word("mse")).unwrap();
    assert_eq!((nothing.sum.double_value(&[]), nothing.weight.double_value(&[])), (0.0, 0.0));
}

#[test]
fn smaller_maps_are_enlarged() {
    let targets = Tensor::zeros([1, 4, 4], CPU);
    for shape in [vec![1, 2, 2], vec![1, 1, 2, 2]] {
        let output = Tensor::from_slice(&[0f32, 4.0, 0.0, 4.0]).view(shape.as_slice());
        let found =
            map_loss(&only(&output), &targets, &Tensor::ones([1], CPU), &plain(1), &word("l1")).unwrap();
        // Each row is 0, 1, 3, 4, as of PyTorch's interpolate with align_corners=False.
        assert_eq!((found.sum.double_value(&[]), found.weight.double_value(&[])), (32.0, 16.0));
    }
}

#[test]
fn sums_are_equal_for_every_partition() {
    for loss in LOSSES {
        let (mean, deviation) = (vec![0.05, 0.1, 0.2], vec![0.9, 1.2, 1.6]);
        let units = Units::normalised(mean, deviation, Device::Cpu).unwrap();
        assert_parts_add_up(vectors(), |output, targets, weights| {
            vector_loss(output, targets, weights, &units, &zeros(3), &word(loss))
        });
        let units = Units::normalised(vec![0.1], vec![1.5], Device::Cpu).unwrap();
        assert_parts_add_up(maps(), |output, targets, weights| {
            map_loss(output, targets, weights, &units, &word(loss))
        });
    }
}

/// Checks that sum, weight and figures of all samples are those of the first sample and of all others.
fn assert_parts_add_up(
    (output, targets): (Tensor, Tensor),
    loss: impl Fn(&Outputs, &Tensor, &Tensor) -> Result<Loss, TchError>,
) {
    let values = |first: i64, samples: i64| {
        let part = |of: &Tensor| of.narrow(0, first, samples);
        let loss = loss(&only(&part(&output)), &part(&targets), &Tensor::ones([samples], CPU)).unwrap();
        let mut values = vec![loss.sum.double_value(&[]), loss.weight.double_value(&[])];
        values.extend(Vec::<f64>::try_from(loss.sums).unwrap());
        values
    };
    let samples = output.size()[0];
    let (whole, first, others) = (values(0, samples), values(0, 1), values(1, samples - 1));
    let added = first.iter().zip(&others).map(|(a, b)| a + b);
    assert!(whole.iter().zip(added).all(|(a, b)| (a - b).abs() < 1e-5), "{whole:?} {first:?} {others:?}");
}

fn of(text: &str) -> Kinds {
    let recipe = format!(
        "task = \"regress\"\ndata.root = \"/r\"\nmodel.file = \"/m.pt2\"\ntrain.steps = 1\nmodel.loss = {text}\n"
    );
    recipe::Recipe::parse("test", &recipe, &[]).unwrap().model.loss
}

#[test]
fn losses_are_those_of_pytorch_however_a_step_is_cut() {
    for (name, loss) in [
        ("mse", "\"mse\""),
        ("l1", "\"l1\""),
        ("huber", "{ huber = { delta = 0.5 } }"),
        ("smooth_l1", "{ smooth-l1 = { beta = 0.5 } }"),
        ("quantile", "{ quantile = { quantile = 0.9 } }"),
        ("several_of_numbers", "{ huber = { weight = 2, delta = 0.5 }, mse = 0.5 }"),
    ] {
        let loss = of(loss);
        let inputs = OfSamples::read("output", "targets", 3);
        inputs.compare(name, |output, targets, weights| {
            vector_loss(&only(output), targets, weights, &plain(3), &zeros(3), &loss).unwrap()
        });
        // The same numbers as pixels of one row each.
        inputs.compare(name, |output, targets, weights| {
            map_loss(&only(&output.unsqueeze(1)), &targets.unsqueeze(1), weights, &plain(1), &loss).unwrap()
        });
    }
}
