#![allow(clippy::unwrap_used)]
use dtrain_recipe::SampleLoss;
use dtrain_recipe::sample_losses::{Binary, CrossEntropy, Focal, Ordinal};
use tch::{Device, Kind};

use super::*;
use crate::parity::OfSamples;

const CLASS_WEIGHTS: [f32; 4] = [0.5, 1.0, 2.0, 0.5];

fn plain(settings: SampleLoss) -> Term {
    Term { settings, class_weights: None, ranks: None }
}

fn weighted(settings: SampleLoss, weights: &[f32]) -> Term {
    Term { settings, class_weights: Some(Tensor::from_slice(weights)), ranks: None }
}

fn no_sums() -> Tensor {
    Loss::no_sums(Device::Cpu).unwrap()
}

fn compare_classes(name: &str, terms: &[Term]) {
    OfSamples::read("logits", "labels", 3).compare(name, |logits, labels, weights| {
        class_loss(terms, &Outputs::only(logits.shallow_clone()), labels, weights, 4, no_sums()).unwrap()
    });
}

#[test]
fn losses_of_classes_are_those_of_pytorch() {
    let smoothed = || SampleLoss::CrossEntropy(CrossEntropy { smoothing: 0.1, ..CrossEntropy::default() });
    let focal = |weight, gamma| SampleLoss::Focal(Focal { weight, gamma, ..Focal::default() });
    let cross_entropy = || SampleLoss::CrossEntropy(CrossEntropy::default());
    compare_classes("cross_entropy", &[plain(cross_entropy())]);
    compare_classes("weighted_cross_entropy", &[weighted(smoothed(), &CLASS_WEIGHTS)]);
    compare_classes("weighted_focal", &[weighted(focal(1.0, 1.5), &CLASS_WEIGHTS)]);
    let both = [weighted(cross_entropy(), &CLASS_WEIGHTS), plain(focal(0.5, 2.0))];
    compare_classes("several_of_classes", &both);
}

/// The ranks of classes are their numbers, or stated.
#[test]
fn the_ordinal_loss_is_that_of_its_paper() {
    let ordinal = |ranks| {
        let settings = SampleLoss::Ordinal(Ordinal::default());
        [Term { settings, class_weights: None, ranks }]
    };
    let of = |terms: &[Term], logits: &Tensor, labels: &Tensor, weights: &Tensor| {
        class_loss(terms, &Outputs::only(logits.shallow_clone()), labels, weights, 5, no_sums()).unwrap()
    };
    let reference = OfSamples::read("logits", "ranks", 3);
    reference.compare("corn", |logits, labels, weights| of(&ordinal(None), logits, labels, weights));
    let falling = ordinal(Some(Tensor::from_slice(&[4i64, 3, 2, 1, 0])));
    reference.compare("corn", |logits, labels, weights| of(&falling, logits, &(4 - labels), weights));
    let several = [1.0, 0.5].map(|weight| plain(SampleLoss::Ordinal(Ordinal { weight, order: None })));
    reference.compare("several_corn", |logits, labels, weights| of(&several, logits, labels, weights));
}

#[test]
fn losses_of_sets_are_those_of_pytorch() {
    let compare = |name: &str, terms: &[Term]| {
        OfSamples::read("logits", "sets", 3).compare(name, |logits, labels, weights| {
            set_loss(terms, &Outputs::only(logits.shallow_clone()), labels, weights, no_sums()).unwrap()
        });
    };
    let binary = |weight, smoothing| SampleLoss::Binary(Binary { weight, smoothing, positive_weights: None });
    let focal = |weight, gamma, alpha| SampleLoss::Focal(Focal { weight, gamma, alpha, class_weights: None });
    compare("binary", &[weighted(binary(1.0, 0.1), &[0.5, 1.0, 3.0, 2.0])]);
    compare("binary_focal", &[plain(focal(1.0, 2.0, Some(0.25)))]);
    compare("several_of_sets", &[plain(binary(2.0, 0.0)), plain(focal(0.5, 1.5, None))]);
}

/// The trainings of recipes without `model.loss` keep their bits.
#[test]
fn plain_cross_entropy_has_the_bits_of_its_function() {
    tch::manual_seed(3);
    let logits = Tensor::randn([5, 4], (Kind::Float, Device::Cpu));
    let labels = Tensor::from_slice(&[3i64, 0, 1, 1, 2]);
    let weights = Tensor::from_slice(&[1f32, 1.0, 0.0, 1.0, 1.0]);
    let terms = [plain(SampleLoss::CrossEntropy(CrossEntropy::default()))];
    let of = |logits: &Tensor| {
        class_loss(&terms, &Outputs::only(logits.shallow_clone()), &labels, &weights, 4, no_sums()).unwrap()
    };
    let own = logits.cross_entropy_loss(&labels, None::<Tensor>, tch::Reduction::None, -100, 0.0);
    let found = of(&logits);
    assert!(found.sum.equal(&(own * &weights).sum(Kind::Float)));
    assert_eq!(found.weight.double_value(&[]), 4.0);
    let no_sample = Tensor::zeros([5], (Kind::Float, Device::Cpu));
    let outputs = Outputs::only(logits.full_like(f64::NAN));
    let found = class_loss(&terms, &outputs, &labels, &no_sample, 4, no_sums()).unwrap();
    assert_eq!((found.sum.double_value(&[]), found.weight.double_value(&[])), (0.0, 0.0));
}

#[test]
fn more_logits_than_classes_have_no_weight_of_their_own() {
    tch::manual_seed(4);
    let logits = Tensor::randn([3, 5], (Kind::Float, Device::Cpu));
    let labels = Tensor::from_slice(&[3i64, 0, 1]);
    let ones = Tensor::ones([3], (Kind::Float, Device::Cpu));
    let smoothed = CrossEntropy { smoothing: 0.2, ..CrossEntropy::default() };
    let terms = [weighted(SampleLoss::CrossEntropy(smoothed), &CLASS_WEIGHTS)];
    let found =
        class_loss(&terms, &Outputs::only(logits.shallow_clone()), &labels, &ones, 4, no_sums()).unwrap();
    let all = Tensor::from_slice(&[0.5f32, 1.0, 2.0, 0.5, 1.0]);
    let expected = logits.cross_entropy_loss(&labels, Some(all), tch::Reduction::Mean, -100, 0.2);
    let mean = found.sum.double_value(&[]) / found.weight.double_value(&[]);
    assert!((mean - expected.double_value(&[])).abs() < 1e-6);
}

#[test]
fn an_auxiliary_output_adds_its_weighted_loss() {
    tch::manual_seed(5);
    let logits = || Tensor::randn([3, 4], (Kind::Float, Device::Cpu));
    let (main, other) = (logits(), logits());
    let labels = Tensor::from_slice(&[3i64, 0, 1]);
    let ones = Tensor::ones([3], (Kind::Float, Device::Cpu));
    let terms = [weighted(SampleLoss::Focal(Focal::default()), &CLASS_WEIGHTS)];
    let of = |outputs: &Outputs| {
        let found = class_loss(&terms, outputs, &labels, &ones, 4, no_sums()).unwrap();
        found.sum.double_value(&[]) / found.weight.double_value(&[])
    };
    let expected = of(&Outputs::only(main.shallow_clone())) + 0.4 * of(&Outputs::only(other.shallow_clone()));
    assert!((of(&Outputs { main, auxiliary: vec![(other, 0.4)] }) - expected).abs() < 1e-6);
}

/// Where p rounds to 1, its derivative by a power below 1 would be infinite.
#[test]
fn a_sure_output_has_a_finite_derivative_of_focal() {
    for gamma in [0.0, 0.5, 1.0, 2.0] {
        let logits = Tensor::from_slice(&[200f32, 0.0, -200.0, 0.0]).view([2, 2]).set_requires_grad(true);
        let focal = SampleLoss::Focal(Focal { gamma, ..Focal::default() });
        let ones = Tensor::ones([2], (Kind::Float, Device::Cpu));
        let outputs = Outputs::only(logits.shallow_clone());
        let labels = Tensor::from_slice(&[0i64, 0]);
        class_loss(&[plain(focal)], &outputs, &labels, &ones, 2, no_sums()).unwrap().sum.backward();
        let derivative = Vec::<f32>::try_from(logits.grad().view([4])).unwrap();
        assert!(derivative.iter().all(|value| value.is_finite()), "{gamma}: {derivative:?}");
        assert!((derivative[2] + 1.0).abs() < 1e-6, "{gamma}: {derivative:?}");
    }
}
