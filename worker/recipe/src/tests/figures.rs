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
    assert_eq!((auc.classes.as_deref(), auc.positive, &auc.output), (Some("sex"), 0, &None));
    assert_eq!((accuracy.classes.as_deref(), accuracy.top), (Some("label"), 5));
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
    let [low, high] = ["min", "max"].map(|goal| format!("checkpoint.best={goal} auc"));
    assert!(parse(FIGURES, &[&high]).is_ok());
    expect_error(FIGURES, &[&low], "checkpoint.best", "a larger auc is better; use \"max auc\"");
    let stops = [
        "train.stop_early={ patience = 2, figure = \"max calibration_error\" }",
        "model.figures=[{name=\"calibration\"}]",
    ];
    expect_error(FIGURES, &stops, "train.stop_early.figure", "use \"min calibration_error\"");
}

/// The settings that a task determines are filled in.
#[test]
fn figures_have_the_fields_of_the_task() {
    let figure = |text: &str, list: &str| {
        let mut figures = parse(text, &[&format!("model.figures={list}")]).unwrap().model.figures;
        figures.remove(0)
    };
    let Figure::Iou(iou) = figure(samples::SEGMENT, "[{name=\"iou\"}]") else { panic!() };
    assert_eq!((iou.classes.as_deref(), iou.positive), (Some("mask"), None));
    let table = "task = \"program\"\n[data]\nroot = \"/t.csv\"\nkind = \"table\"\nclasses = 2\n[model]\nfile = \"/m.pt2\"\n[train]\nsteps = 1\n";
    for (fields, classes) in [
        ("{ image = \"image\", region = \"mask\" }", "region"),
        ("{ image = \"image\", region = \"mask\", label = \"class\" }", "label"),
        ("{ image = \"image\", region = \"mask\", edge = \"mask\" }", "label"),
    ] {
        let text = table.replace("kind", &format!("fields = {fields}\nkind"));
        let Figure::Iou(iou) = figure(&text, "[{name=\"iou\"}]") else { panic!() };
        assert_eq!(iou.classes.as_deref(), Some(classes), "{fields}");
    }
    let Figure::Rmse(rmse) = figure(samples::REGRESS, "[{name=\"rmse\", bands=[-1, 0.5, 4]}]") else {
        panic!()
    };
    assert_eq!(rmse.target.as_deref(), Some("map"));
    let names = |list: &str| figure(samples::REGRESS, list).names();
    assert_eq!(
        names("[{name=\"rmse\", bands=[-1, 0.5, 4]}]"),
        ["rmse", "rmse_-1_0.5", "rmse_0.5_4", "rmse_4_up"]
    );
    let list = "[{name=\"mae\", interval=true, bands=[0], label=\"e\"}]";
    assert_eq!(names(list), ["e", "e_95", "e_0_up"]);
}

#[test]
fn wrong_bands_and_intervals_are_errors() {
    for (text, list, part) in [
        (samples::REGRESS, "[{name=\"mae\", bands=[1, 1]}]", "bands must rise"),
        (samples::REGRESS, "[{name=\"mae\", bands=[2, 1]}]", "bands must rise"),
        (
            samples::REGRESS,
            "[{name=\"mae\", bands=[0]}, {name=\"mae\", label=\"mae_0_up\"}]",
            "another figure has the name \"mae_0_up\"",
        ),
        (samples::SEGMENT, "[{name=\"iou\", interval=true}]", "set images = true too"),
    ] {
        let number = usize::from(part.contains("another"));
        expect_error(text, &[&format!("model.figures={list}")], &format!("model.figures[{number}]"), part);
    }
}
