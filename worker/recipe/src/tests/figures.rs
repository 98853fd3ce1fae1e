//! `model.figures`.

use super::*;
use crate::Figure;

pub(super) const FIGURES: &str = r#"
task = "classify"
[data]
root = "/data"
[model]
figures = [
  { name = "auc", positive = 0 },
  { name = "accuracy", top = 5 },
]
[train]
epochs = 1
"#;

#[test]
fn figures_have_their_settings_and_names() {
    let recipe = parse(FIGURES, &["model.figures.0.classes=sex"]).unwrap();
    let [Figure::Auc(auc), Figure::Accuracy(accuracy)] = &recipe.model.figures[..] else {
        panic!("{:?}", recipe.model.figures)
    };
    assert_eq!((auc.classes.as_str(), auc.positive, &auc.output), ("sex", 0, &None));
    assert_eq!((accuracy.classes.as_str(), accuracy.top), ("label", 5));
    let labels = |text: &str| {
        let recipe = parse(FIGURES, &[&format!("model.figures={text}")]).unwrap();
        recipe.model.figures.iter().map(Figure::label).collect::<Vec<_>>()
    };
    assert_eq!(labels("[{name=\"auc\"}, {name=\"accuracy\", top=5}]"), ["auc", "top5_accuracy"]);
    assert_eq!(labels("[{name=\"accuracy\"}, {name=\"auc\", label=\"area\"}]"), ["accuracy", "area"]);
    let list = "[{name=\"average-precision\"}, {name=\"balanced-accuracy\"}, {name=\"calibration\"}, {name=\"f1\", positive=2}]";
    assert_eq!(labels(list), ["average_precision", "balanced_accuracy", "calibration_error", "f1"]);
}

#[test]
fn wrong_figures_are_errors_that_name_the_figure() {
    for (list, key, part) in [
        ("[{name=\"ouc\"}]", "model.figures[0].name", "\"accuracy\", \"label-accuracy\", \"auc\""),
        ("[{name=\"auc\", top=2}]", "model.figures[0].top", "takes output, classes, positive, label"),
        ("[{name=\"calibration\", bins=0}]", "model.figures[0].bins", "a whole number from 1"),
        ("[{name=\"accuracy\", top=0}]", "model.figures[0].top", "a whole number from 1"),
        (
            "[{name=\"auc\"}, {name=\"auc\", positive=2}]",
            "model.figures[1]",
            "another figure has the name \"auc\"; set label",
        ),
        ("[{name=\"auc\", label=\"batch\"}]", "model.figures[0]", "has \"batch\" already"),
        ("[{name=\"auc\", label=\"a b\"}]", "model.figures[0]", "may have letters, digits"),
        ("[{name=\"auc\", label=\"loss\"}]", "model.figures[0]", "has \"loss\" already"),
    ] {
        expect_error(FIGURES, &[&format!("model.figures={list}")], key, part);
    }
    let regress = ["model.figures=[{name=\"auc\"}]"];
    expect_error(
        samples::REGRESS,
        &regress,
        "model.figures",
        "it applies to task = \"classify\" and \"program\"",
    );
}
