#![allow(clippy::unwrap_used)]
use dtrain_recipe::Recipe;
use tch::Device;

use super::super::samples::Survey;
use super::super::{BuildContext, BuildTask, Classify, Task, Totals};
use super::*;
use crate::data::CacheBudget;
use crate::models::Registry;

const RECIPE: &str = "task = \"classify\"\n[data]\nkind = \"generated\"\nclasses = 3\nimage_size = 32\ntrain_samples = 6\n\
                      test_samples = 6\n[model]\nname = \"vit\"\nwidth = 8\ndepth = 1\nheads = 1\npatch = 16\n[train]\n\
                      steps = 1\n";

fn classify(figures: &str) -> Result<Classify, TaskError> {
    let recipe = Recipe::parse("test", RECIPE, &[format!("model.figures=[{figures}]")]).unwrap();
    let mut registry = Registry::new(Device::Cpu);
    let context = BuildContext { registry: &mut registry, local_ranks: 1, cache: CacheBudget::default() };
    Classify::build(&recipe, Survey::Generated, context)
}

fn batch(weights: &[f32]) -> Batch {
    let samples = weights.len() as i64;
    let images = Tensor::ones([samples, 3, 32, 32], (Kind::Float, Device::Cpu));
    let labels = Tensor::arange(samples, (Kind::Int64, Device::Cpu));
    Batch {
        fields: vec![("image".into(), images), ("label".into(), labels)],
        weights: Tensor::from_slice(weights),
        weight: weights.iter().map(|weight| f64::from(*weight)).sum(),
        blank: false,
        longest: None,
    }
}

#[test]
fn a_classifier_has_its_accuracy_and_the_figures_of_the_recipe() {
    let totals = |sums: &[f64]| Totals { loss_sum: 1.0, weight: 4.0, sums: sums.to_vec() };
    let task = classify("{ name = \"auc\", positive = 2 }, { name = \"accuracy\", top = 2 }").unwrap();
    assert_eq!(task.figures(&totals(&[1.0, 4.0, 3.0, 4.0])), [("accuracy", 0.25), ("top2_accuracy", 0.75)]);
    let rows = task.row_figures().unwrap();
    assert_eq!(rows.figures().into_iter().map(|(name, _)| name).collect::<Vec<_>>(), ["auc"]);
    let passed = rows.forward(&batch(&[1.0, 0.0, 1.0])).unwrap();
    assert_eq!((passed.loss.sums.size(), passed.rows[0].size()), (vec![4], vec![3, 2]));
    let marks = Vec::<f32>::try_from(passed.rows[0].select(1, 1)).unwrap();
    assert_eq!(marks, [1.0, 0.0, 2.0], "the second sample does not count");

    let task = classify("{ name = \"accuracy\", label = \"accuracy\", top = 2 }").unwrap();
    assert_eq!(task.figures(&totals(&[3.0, 4.0])), [("accuracy", 0.75)], "in place of its own");
    assert!(task.row_figures().is_none());
}

#[test]
fn figures_of_classes_have_sums_of_each() {
    let figures =
        "{ name = \"recall\" }, { name = \"calibration\", bins = 2 }, { name = \"f1\", positive = 1 }";
    let task = classify(figures).unwrap();
    assert_eq!(task.facts().sums, 2 + 9 + 6 + 9);
    let found = task.loss(&batch(&[1.0, 0.0, 1.0]), Mode::Train).unwrap();
    assert_eq!(found.sums.size(), [26]);
    // Of three classes: right, predicted and in the targets.
    let counts = [1.0, 0.0, 1.0, 2.0, 0.0, 2.0, 1.0, 0.0, 3.0];
    let sums = [&[2.0, 4.0][..], &counts, &[0.0, 4.0, 0.0, 2.0, 0.0, 3.0], &counts].concat();
    let totals = Totals { loss_sum: 1.0, weight: 4.0, sums };
    let names = ["accuracy", "recall", "calibration_error", "f1"];
    let expected = [0.5, (1.0 + 1.0 / 3.0) / 2.0, 0.25, 0.0];
    for ((found, value), (name, expected)) in
        task.figures(&totals).into_iter().zip(names.iter().zip(expected))
    {
        assert_eq!(found, *name);
        assert!((value - expected).abs() < 1e-12, "{name}: {value}");
    }
}

#[test]
fn figures_that_do_not_fit_name_the_remedy() {
    for (figure, words) in [
        ("name = \"auc\", positive = 3", "there are 3 classes; set positive below 3"),
        ("name = \"recall\", positive = 3", "there are 3 classes; set positive below 3"),
        ("name = \"accuracy\", top = 3", "set top below 3"),
        (
            "name = \"auc\", output = \"logit\"",
            "names \"logit\", which the network lacks; did you mean `logits`?",
        ),
        ("name = \"auc\", classes = \"sex\"", "with a class for each sample are `label`"),
    ] {
        let error = classify(&format!("{{ {figure} }}")).err().unwrap().to_string();
        assert!(error.contains(words), "{error}");
    }
}
