//! `data.val`, `data.tests`, `train.stop_early` and `[evaluate]`.

use super::*;

#[test]
fn sets_besides_training_and_test_are_checked() {
    let folder = "task = \"classify\"\n[data]\nroot = \"/d\"\n[train]\nsteps = 1\n";
    let sources = "task = \"classify\"\n[train]\nsteps = 1\n[[data.source]]\nroot = \"/a\"\n[[data.source]]\nroot = \"/b\"\ntrain = \"good\"\n";
    let timed = "checkpoint.every=10 min";
    for (text, sets, key, part) in [
        (folder, &["data.val=1.5"][..], "data.val", "above 0 and below 1"),
        (folder, &["data.val=column:fold"], "data.val", "only a table has columns"),
        (folder, &["data.val=test:20"], "data.val", "no part of the test samples"),
        (samples::LM, &["data.val=test:0.2"], "data.val", "a text has no folders"),
        (SMALL, &["data.val=test:0.2"], "data.val", "generated data has no folders"),
        (samples::SEGMENT, &["data.val=test:0.2"], "data.val_masks", "no effect"),
        (folder, &["data.val=test"], "data.val", "the set of data.test too"),
        (folder, &["data.val=../other"], "data.val", "no name of a folder"),
        (folder, &["data.val=val", "data.val_masks=m"], "data.val_masks", "no effect"),
        (samples::SEGMENT, &["data.val=0.2"], "data.val_masks", "no effect"),
        (samples::SEGMENT, &["data.val_masks=image_val"], "data.val_masks", "folder of the images"),
        (folder, &["data.tests.val=a"], "data.tests", "the name of another set"),
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
        (folder, &["data.tests.night=test"], "data.tests.night", "the set of data.test too"),
        (folder, &["data.tests.night=train"], "data.tests.night", "the set of data.train too"),
        (folder, &["data.val=v", "data.tests.night=v"], "data.tests.night", "the set of data.val too"),
        (sources, &["data.val=good"], "data.val", "the set of data.source[1].train too"),
        (sources, &["data.val=test"], "data.val", "the set of data.test too"),
        (sources, &["data.tests.night=good"], "data.tests.night", "the set of data.source[1].train too"),
        (
            folder,
            &[
                "task=program",
                "model.file=/m.pt2",
                "data.episodes={n_way=2,k_shot=1,n_query=1,val=999999999}",
                "data.val=v",
            ],
            "data.episodes.val",
            "lower it",
        ),
        (folder, &["train.stop_early={}", timed], "train.stop_early", "set evaluate.every"),
        (folder, &["evaluate.share=0.1", timed], "evaluate.share", "set evaluate.every"),
    ] {
        expect_error(text, sets, key, part);
    }
    for sets in [
        &["data.val=0.2"][..],
        &["data.val=test:0.2"],
        &["data.val=val"],
        &["data.tests.night=n", "data.val=0.1"],
    ] {
        round_trip(&parse(folder, sets).unwrap());
    }
    assert!(parse(folder, &["train.stop_early={}", timed, "evaluate.every=1 epoch"]).is_ok());
    assert!(parse(sources, &["data.val=v", "data.tests.night=n"]).is_ok());
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
