#![allow(clippy::unwrap_used)]
use dtrain_recipe::Recipe;
use tch::Device;

use super::super::samples::Survey;
use super::super::{BuildContext, BuildTask, Classify, Mode, Task};
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
        outputs: None,
    }
}

/// Returns the figures of these sums.
fn figures_of(task: &Classify, sums: &[f64]) -> Vec<(String, f64)> {
    task.row_figures().unwrap().by_sums().unwrap().figures(sums)
}

#[test]
fn a_classifier_has_its_accuracy_and_the_figures_of_the_recipe() {
    let named = |all: &[(&str, f64)]| {
        all.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect::<Vec<_>>()
    };
    let task = classify("{ name = \"auc\", positive = 2 }, { name = \"accuracy\", top = 2 }").unwrap();
    let expected = named(&[("accuracy", 0.25), ("top2_accuracy", 0.75)]);
    assert_eq!(figures_of(&task, &[1.0, 4.0, 3.0, 4.0]), expected);
    let rows = task.row_figures().unwrap();
    assert_eq!(rows.figures().into_iter().map(|(name, _)| name).collect::<Vec<_>>(), ["auc"]);
    let passed = rows.forward(&batch(&[1.0, 0.0, 1.0])).unwrap();
    assert_eq!((passed.loss.sums.size(), passed.rows[0].size()), (vec![4], vec![3, 2]));
    let marks = Vec::<f32>::try_from(passed.rows[0].select(1, 1)).unwrap();
    assert_eq!(marks, [1.0, 0.0, 2.0], "the second sample does not count");

    let task = classify("{ name = \"accuracy\", label = \"accuracy\", top = 2 }").unwrap();
    assert_eq!(figures_of(&task, &[3.0, 4.0]), named(&[("accuracy", 0.75)]), "in place of the task's");
    let loss = task.loss(&batch(&[1.0; 3]), Mode::Train).unwrap();
    assert_eq!((loss.sums.size(), task.facts().sums), (vec![0], 0), "a step computes no figures");
}

#[test]
fn figures_of_classes_have_sums_of_each() {
    let figures =
        "{ name = \"recall\" }, { name = \"calibration\", bins = 2 }, { name = \"f1\", positive = 1 }";
    let task = classify(figures).unwrap();
    let rows = task.row_figures().unwrap();
    assert_eq!(rows.by_sums().unwrap().count(), 2 + 9 + 6 + 9);
    assert_eq!(rows.forward(&batch(&[1.0, 0.0, 1.0])).unwrap().loss.sums.size(), [26]);
    // Of three classes: right, predicted and in the targets.
    let counts = [1.0, 0.0, 1.0, 2.0, 0.0, 2.0, 1.0, 0.0, 3.0];
    let sums = [&[2.0, 4.0][..], &counts, &[0.0, 4.0, 0.0, 2.0, 0.0, 3.0], &counts].concat();
    let names = ["accuracy", "recall", "calibration_error", "f1"];
    let expected = [0.5, (1.0 + 1.0 / 3.0) / 2.0, 0.25, 0.0];
    for ((found, value), (name, expected)) in
        figures_of(&task, &sums).into_iter().zip(names.iter().zip(expected))
    {
        assert_eq!(found, *name);
        assert!((value - expected).abs() < 1e-12, "{name}: {value}");
    }
    let by_class = rows.by_sums().unwrap().by_class(&sums);
    assert_eq!((by_class.len(), by_class[0].figure.as_str()), (2, "recall"));
    assert_eq!(
        (&by_class[0].classes[..], &by_class[0].values[..]),
        (&["0", "1", "2"].map(String::from)[..], &[1.0, 0.0, 1.0 / 3.0][..])
    );
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
