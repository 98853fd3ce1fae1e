//! Comparison with timm: `tests/parity/make_mix.py` makes the reference.
#![allow(clippy::unwrap_used)]

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use dtrain_parts::Outputs;
use dtrain_parts::losses::classes::{class_loss, set_loss};
use dtrain_parts::losses::of_samples::Term;
use dtrain_parts::losses::regression::{Units, vector_loss};
use dtrain_recipe::SampleLoss;
use dtrain_recipe::sample_losses::{Binary, CrossEntropy};
use tch::Device;

use super::*;

fn known() -> HashMap<String, Tensor> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/parity/reference");
    Tensor::read_safetensors(folder.join("mix.safetensors")).unwrap().into_iter().collect()
}

/// Compares loss and derivative of mixed samples with those of timm for soft targets, whole and in several micro-batches.
fn compare(field: &str, kind: &str, of: impl Fn(&Tensor, &Tensor, &Tensor) -> Loss) {
    let known = known();
    let (targets, samples) = (&known[field], known["share"].size()[0]);
    let logits = known["logits"].copy().set_requires_grad(true);
    let far = |a: &Tensor, b: &Tensor| f64::try_from((a - b).abs().max()).unwrap();
    for cut in [&[samples][..], &[3, 5], &[1, 1, 6]] {
        let (mut sum, mut weight, mut first) = (Tensor::from(0f32), Tensor::from(0f64), 0);
        for length in cut {
            let part = |of: &Tensor| of.narrow(0, first, *length);
            let fields = [("label", targets.shallow_clone()), ("mix_label", targets.flip([0]))]
                .into_iter()
                .chain([("mix_share", known["share"].shallow_clone())]);
            let fields = fields.map(|(name, values)| (Cow::Borrowed(name), part(&values))).collect();
            let batch = Batch::of_fields(fields, *length as usize, Device::Cpu).unwrap();
            let logits = part(&logits);
            let found =
                loss(&batch, Mode::Train, "label", |targets, weights| Ok(of(&logits, targets, weights)));
            let found = found.unwrap();
            (sum, weight, first) = (sum + found.sum, weight + found.weight, first + length);
        }
        assert!((weight.double_value(&[]) - samples as f64).abs() < 1e-6, "{weight:?}");
        let mean = sum / weight;
        let derivative = Tensor::run_backward(&[&mean], &[&logits], false, false).remove(0);
        assert!(far(&mean, &known[&format!("{kind}.loss")]) < 1e-5, "{kind} {cut:?}: {mean:?}");
        assert!(far(&derivative, &known[&format!("{kind}.logits")]) < 1e-6, "{kind} {cut:?}: {derivative}");
    }
}

fn term(settings: SampleLoss) -> [Term; 1] {
    [Term { settings, class_weights: None, ranks: None }]
}

fn no_sums() -> Tensor {
    Loss::no_sums(Device::Cpu).unwrap()
}

#[test]
fn losses_of_mixed_classes_are_those_of_timm() {
    let terms = term(SampleLoss::CrossEntropy(CrossEntropy { smoothing: 0.1, ..CrossEntropy::default() }));
    compare("labels", "classes", |logits, labels, weights| {
        class_loss(&terms, &Outputs::only(logits.shallow_clone()), labels, weights, 5, no_sums()).unwrap()
    });
}

#[test]
fn losses_of_mixed_sets_are_those_of_timm() {
    let terms = term(SampleLoss::Binary(Binary { smoothing: 0.1, ..Binary::default() }));
    compare("sets", "sets", |logits, labels, weights| {
        set_loss(&terms, &Outputs::only(logits.shallow_clone()), labels, weights, no_sums()).unwrap()
    });
}

#[test]
fn evaluations_and_batches_without_shares_have_whole_targets() {
    let targets = Tensor::from_slice(&[3i64, 5]);
    let given = |mode, share: bool| {
        let fields = [("label", targets.shallow_clone()), ("mix_label", &targets + 1)]
            .into_iter()
            .chain(share.then(|| ("mix_share", Tensor::from_slice(&[0.25f32, 1.0]))));
        let fields = fields.map(|(name, values)| (Cow::Borrowed(name), values)).collect();
        let batch = Batch::of_fields(fields, 2, Device::Cpu).unwrap();
        let found = loss(&batch, mode, "label", |targets, weights| {
            Ok(Loss::of_samples(&targets.to_kind(tch::Kind::Float), weights, no_sums())?)
        });
        let found = found.unwrap();
        (found.sum.double_value(&[]), found.weight.double_value(&[]))
    };
    assert_eq!(given(Mode::Evaluate, true), (8.0, 2.0));
    assert_eq!(given(Mode::Train, false), (8.0, 2.0));
    assert_eq!(given(Mode::Train, true), (0.25 * 3.0 + 0.75 * 4.0 + 5.0, 2.0));
}

/// The loss of numbers that are mixed is that of both targets by their shares, also if no loss of mixed targets equals it.
#[test]
fn losses_of_mixed_numbers_are_the_mean_of_both() {
    let (output, targets) =
        (Tensor::from_slice(&[0f32, 2.0]).view([2, 1]), Tensor::from_slice(&[1f32, 5.0]).view([2, 1]));
    let partners = targets.flip([0]);
    let fields = [
        ("targets", &targets),
        ("mix_targets", &partners),
        ("mix_share", &Tensor::from_slice(&[0.75f32, 0.5])),
    ];
    let fields = Vec::from(fields.map(|(name, values)| (Cow::Borrowed(name), values.shallow_clone())));
    let batch = Batch::of_fields(fields, 2, Device::Cpu).unwrap();
    let (units, center) = (Units::of_targets(1), Tensor::from_slice(&[0f64]));
    let of = |name: &str| {
        let losses = dtrain_recipe::Loss::word(name).unwrap();
        let found = loss(&batch, Mode::Train, "targets", |targets, weights| {
            Ok(vector_loss(
                &Outputs::only(output.shallow_clone()),
                targets,
                weights,
                &units,
                &center,
                &losses,
            )?)
        });
        let found = found.unwrap();
        (found.sum.double_value(&[]), found.weight.double_value(&[]))
    };
    assert_eq!(of("mse"), (0.75 * 1.0 + 0.25 * 25.0 + 0.5 * 9.0 + 0.5 * 1.0, 2.0));
    assert_eq!(of("l1"), (0.75 * 1.0 + 0.25 * 5.0 + 0.5 * 3.0 + 0.5 * 1.0, 2.0));
}
