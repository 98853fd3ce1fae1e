#![allow(clippy::unwrap_used)]
use dtrain_recipe::figures::{BalancedAccuracy, F1, Precision, Recall};
use tch::Device;

use super::super::ByClasses;
use super::*;

const TARGETS: [i64; 10] = [0, 1, 0, 2, 1, 2, 0, 1, 0, 2];

/// Returns logits, N x 5, of which the predicted class is the largest.
fn logits(predicted: &[i64]) -> Tensor {
    Tensor::from_slice(predicted).one_hot(5).to_kind(Kind::Float)
}

fn of(figure: &dyn ByClasses, logits: &Tensor, targets: &Tensor, classes: usize) -> f64 {
    let samples = logits.size()[0];
    // As two batches, each with an unreadable sample at its end.
    let (mut all, first) = (vec![0.0; figure.sums(classes)], samples / 2);
    for (first, count) in [(0, first), (first, samples - first)] {
        let with_absent = |of: &Tensor, value: f64| {
            let part = of.narrow(0, first, count);
            Tensor::cat(&[&part, &part.narrow(0, 0, 1).full_like(value)], 0)
        };
        let (logits, targets) = (with_absent(logits, f64::NAN), with_absent(targets, 0.0));
        let weights = Tensor::ones([count + 1], (Kind::Float, Device::Cpu));
        let _ = weights.get(count).fill_(0.0);
        let sums = figure.add(&[&logits, &targets], &weights, classes).unwrap();
        let sums = Vec::<f64>::try_from(sums).unwrap();
        assert_eq!(sums.len(), all.len());
        all.iter_mut().zip(sums).for_each(|(all, sum)| *all += sum);
    }
    figure.figure(&all)
}

/// Values of scikit-learn 1.9.1 with average="macro" and zero_division=0, and balanced_accuracy_score.
#[test]
fn figures_are_those_of_scikit_learn() {
    let targets = Tensor::from_slice(&TARGETS);
    let (precision, recall, f1) = (Precision::default(), Recall::default(), F1::default());
    let balanced = BalancedAccuracy::default();
    let all: [&dyn ByClasses; 4] = [&precision, &recall, &f1, &balanced];
    for (predicted, expected) in [
        (
            [0, 1, 1, 2, 0, 2, 2, 1, 0, 2],
            [
                0.694_444_444_444_444_3,
                0.722_222_222_222_222_2,
                0.698_412_698_412_698_5,
                0.722_222_222_222_222_2,
            ],
        ),
        // Class 3 is in no target.
        (
            [0, 1, 1, 3, 0, 2, 2, 1, 0, 2],
            [0.5, 0.458_333_333_333_333_26, 0.476_190_476_190_476_16, 0.611_111_111_111_111],
        ),
    ] {
        for (figure, expected) in all.iter().zip(expected) {
            let found = of(*figure, &logits(&predicted), &targets, 5);
            assert!((found - expected).abs() < 1e-12, "{found} {expected}");
        }
    }
    let predicted = logits(&[0, 1, 1, 2, 0, 2, 2, 1, 0, 2]);
    let positive = Some(2);
    assert_eq!(of(&Precision { positive, ..precision }, &predicted, &targets, 5), 0.75);
    assert_eq!(of(&Recall { positive, ..recall }, &predicted, &targets, 5), 1.0);
    let found = of(&F1 { positive: Some(0), ..f1 }, &predicted, &targets, 5);
    assert!((found - 0.571_428_571_428_571_4).abs() < 1e-12);
    // Logits of classes that the data lacks are wrong predictions.
    assert!((of(&Recall::default(), &logits(&[4; 10]), &targets, 3)).abs() < 1e-12);
}

#[test]
fn figures_of_sets_are_those_of_scikit_learn() {
    let targets = [1, 0, 1, 0, 1, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0].map(|mark| mark as f32);
    let predicted = [1, 1, 0, 0, 1, 0, 0, 1, 1, 1, 0, 0, 1, 0, 0].map(|mark| mark as f32 - 0.5);
    let [targets, logits] = [targets, predicted].map(|values| Tensor::from_slice(&values).view([5, 3]));
    for (figure, expected) in [
        (&Precision::default() as &dyn ByClasses, 0.444_444_444_444_444_4),
        (&Recall::default(), 0.555_555_555_555_555_6),
        (&F1::default(), 0.488_888_888_888_888_93),
    ] {
        let found = of(figure, &logits, &targets, 3);
        assert!((found - expected).abs() < 1e-12, "{found} {expected}");
    }
}

#[test]
fn shapes_must_fit_the_classes() {
    let check = |logits: &[Option<i64>], classes: &[Option<i64>], known, positive| {
        check("recall", &[logits.to_vec(), classes.to_vec()], known, positive)
    };
    assert!(check(&[None, Some(5)], &[None], Some(3), Some(2)).is_ok());
    assert!(check(&[None, Some(5)], &[None], None, Some(4)).is_ok());
    assert!(check(&[None, None], &[None], Some(3), None).is_ok());
    assert!(check(&[None, Some(5), Some(3)], &[None, Some(5)], Some(3), None).is_ok(), "several of a sample");
    for (logits, classes, known, positive, part) in [
        (&[None, Some(2)][..], &[None][..], Some(3), None, "takes a logit for each class, N x K"),
        (&[None, None], &[None], None, None, "takes a logit for each class"),
        (&[None], &[None], Some(3), None, "takes a logit for each class"),
        (&[None, Some(5)], &[None], Some(3), Some(3), "set positive below 3"),
        (&[None, Some(4), Some(3)], &[None, Some(5)], Some(3), None, "takes a logit for each class"),
    ] {
        let error = check(logits, classes, known, positive).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
    let sets = |positive| check_sets("f1", &[vec![None, Some(3)], vec![None, Some(3)]], positive);
    assert!(sets(Some(2)).is_ok() && sets(Some(3)).unwrap_err().contains("set positive below 3"));
}
