//! `data.val`, `data.tests`, `train.stop_early` and `[evaluate]`.

use super::*;

#[test]
fn sets_besides_training_and_test_are_checked() {
    let folder = "task = \"classify\"\n[data]\nroot = \"/d\"\n[train]\nsteps = 1\n";
    for (text, sets, key, part) in [
        (folder, &["data.val=1.5"][..], "data.val", "above 0 and below 1"),
        (folder, &["data.val=column:fold"], "data.val", "only a table has columns"),
        (folder, &["data.val=test"], "data.val", "the set of data.test too"),
        (folder, &["data.val=../other"], "data.val", "no name of a folder"),
        (folder, &["data.val=val", "data.val_masks=m"], "data.val_masks", "no effect"),
        (samples::SEGMENT, &["data.val=0.2"], "data.val_masks", "no effect"),
        (samples::SEGMENT, &["data.val_masks=image_val"], "data.val_masks", "folder of the images"),
        (folder, &["data.tests.val=a"], "data.tests", "the name of another set"),
        (samples::LM, &["data.val=0.9"], "data.val", "no text to train on"),
        (samples::LM, &["data.val=folder"], "data.val", "a text has no folders"),
        (samples::LM, &["data.tests.a=b"], "data.tests", "no effect"),
        (SMALL, &["data.val=folder"], "data.val", "generated data has no folders"),
        (
            samples::STAGES,
            &["train.stop_early.patience=2"],
            "train.stop_early",
            "each [[stage]] states its length",
        ),
        (
            folder,
            &["evaluate.figures=[\"loss\"]", "checkpoint.best=max accuracy"],
            "checkpoint.best",
            "evaluate.figures lacks",
        ),
    ] {
        expect_error(text, sets, key, part);
    }
    for sets in [&["data.val=0.2"][..], &["data.val=val"], &["data.tests.night=n", "data.val=0.1"]] {
        round_trip(&parse(folder, sets).unwrap());
    }
    assert!(parse(samples::TABLE, &["data.val=column:fold"]).is_ok());
    assert!(parse(SMALL, &["data.val=0.1"]).is_ok() && parse(samples::LM, &["data.val=0.1"]).is_ok());
}

#[test]
fn the_figure_that_ends_a_run_is_that_of_the_best_checkpoint() {
    let folder = "task = \"classify\"\n[data]\nroot = \"/d\"\n[train]\nsteps = 1\nstop_early = {}\n";
    let figure = |sets: &[&str]| {
        parse(folder, sets).unwrap().train.stop_early.as_ref().map(|stop| stop.figure().to_string())
    };
    assert_eq!(figure(&[]).as_deref(), Some("min loss"));
    assert_eq!(figure(&["checkpoint.best=max accuracy"]).as_deref(), Some("max accuracy"));
    assert_eq!(
        figure(&["checkpoint.best=max accuracy", "train.stop_early.figure=min loss"]).as_deref(),
        Some("min loss")
    );
}
