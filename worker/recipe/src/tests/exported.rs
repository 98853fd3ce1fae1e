//! Exported programs: `model.file` in every task, and the tasks `regress` and `program`.

use std::collections::BTreeMap;

use super::samples::{BINARY, EXPORTED, LM, PROGRAM, REGRESS, SEGMENT};
use super::*;

#[test]
fn a_program_takes_the_place_of_a_network() {
    let recipe = parse(EXPORTED, &["model.inputs.size=mask"]).unwrap();
    let model = &recipe.model;
    assert_eq!((model.name, model.width, model.depth), (None, None, None));
    assert_eq!(recipe.program(), model.file.as_deref());
    let inputs = [("pixel_values", "image"), ("size", "mask")];
    assert_eq!(model.inputs, BTreeMap::from(inputs.map(|(name, field)| (name.into(), field.into()))));
    assert_eq!(model.auxiliary, BTreeMap::from([("aux".to_owned(), 0.4)]));
    let text = "task = \"lm\"\ndata.root = \"/t\"\nmodel.file = \"gpt.pt2\"\ntrain.steps = 1\n";
    let recipe = parse(text, &["model.libraries=[\"a.so\"]"]).unwrap();
    let here = std::env::current_dir().unwrap();
    assert_eq!(recipe.model.file, Some(here.join("gpt.pt2")));
    assert_eq!(recipe.model.libraries, [here.join("a.so")]);
    assert_eq!(recipe.model.context, None, "the program states it");
    assert_eq!(parse(text, &["model.context=8"]).unwrap().model.context, Some(8));
}

#[test]
fn sizes_of_built_in_networks_have_no_effect_on_a_program() {
    for (text, set) in [
        (EXPORTED, "model.name=unet"),
        (EXPORTED, "model.width=8"),
        (EXPORTED, "model.context=8"),
        (PROGRAM, "model.heads=8"),
    ] {
        expect_set_error(text, set, "this setting has no effect");
        expect_set_error(text, set, "the network is the program in model.file");
    }
    for set in ["model.inputs.x=image", "model.output=x", "model.auxiliary.x=1", "model.libraries=[\"x\"]"] {
        let key = set.split_once('=').unwrap().0;
        let key = key.strip_suffix(".x").unwrap_or(key);
        expect_error(SEGMENT, &[set], key, "an exported program in model.file, which is not set");
    }
    expect_error(PROGRAM, &["model.auxiliary.x=1"], "model.auxiliary", "the program returns the loss itself");
}

#[test]
fn the_ending_of_the_file_matches_the_task() {
    for text in [EXPORTED, SMALL, LM, REGRESS, PROGRAM] {
        expect_set_error(text, "model.file=/m/net.pt", "write one with `dtrain import`");
        expect_set_error(text, "model.file=/m/net", "\"net\" does not end in .pt2");
    }
    for text in [REGRESS, PROGRAM] {
        let text = text.replace("file = ", "# ").replace("inputs = ", "# ");
        expect_error(&text, &[], "model.file", "missing; name a file that `dtrain import` wrote");
    }
}

#[test]
fn settings_of_a_program_have_their_kinds() {
    for (set, part) in [
        ("model.inputs=image", "expected a table of names, such as { pixel_values = \"image\" }"),
        ("model.inputs={}", "expected a table of names"),
        ("model.inputs={ x = 1 }", "`x`: expected a name in quotes, got the whole number 1"),
        ("model.output=[3]", "a name in quotes"),
        ("model.auxiliary=[\"aux\"]", "expected a table of weights, such as { aux = 0.4 }"),
        ("model.auxiliary={ aux = -1 }", "`aux`: expected a number of at least 0"),
        ("model.auxiliary={ aux = nan }", "`aux`: expected a number of at least 0"),
        ("model.libraries=a.so", "a list of paths"),
        ("model.libraries=[1]", "a path in quotes"),
    ] {
        expect_set_error(EXPORTED, set, part);
    }
    expect_set_error(EXPORTED, "model.output=aux", "\"aux\" is also in model.auxiliary");
}

#[test]
fn a_regression_has_its_own_defaults_and_losses() {
    let text = "task = \"regress\"\ndata.root = \"/r\"\nmodel.file = \"/m.pt2\"\ntrain.steps = 1\n";
    let recipe = parse(text, &[]).unwrap();
    let data = &recipe.data;
    assert_eq!((data.kind, data.target, data.ignore), (DataKind::Folder, Some(Target::Vector), None));
    assert_eq!(
        (recipe.model.loss, data.target_scale, data.normalize_targets),
        (Loss::word("mse").unwrap(), 1.0, false)
    );
    expect_set_error(
        REGRESS,
        "model.loss=cross-entropy",
        "\"huber\", \"smooth-l1\", \"quantile\", \"program\", not \"cross-entropy\"",
    );
    let stage = "stage=[{ name = \"a\", steps = 1, loss = \"cross-entropy\" }]";
    expect_error(&text.replace("train.steps = 1", ""), &[stage], "stage[0].loss", "task = \"regress\" takes");
    expect_set_error(REGRESS, "data.target=mask", "takes \"vector\", \"map\", \"classes\", not \"mask\"");
}

#[test]
fn the_target_decides_the_settings_of_the_data() {
    for (text, sets, key, part) in [
        (
            SEGMENT,
            ["data.target=mask"].as_slice(),
            "data.target",
            "\"classify\" and \"regress\" and \"program\"",
        ),
        (SMALL, &["data.normalize_targets=true"], "data.normalize_targets", "task = \"regress\""),
        (BINARY, &["data.target_scale=2"], "data.target_scale", "it applies to maps"),
        (BINARY, &["data.target_offset=2"], "data.target_offset", "it applies to maps"),
        (
            BINARY,
            &["data.nodata=nan"],
            "data.nodata",
            "it applies to maps, and to images with another data.channels",
        ),
        (
            REGRESS,
            &["data.nodata=nan", "data.fill=0"],
            "data.fill",
            "images with another data.channels than 3",
        ),
        (
            EXPORTED,
            &["data.channels=1", "data.fill=0"],
            "data.fill",
            "it replaces data.nodata, which is not set",
        ),
        (BINARY, &["data.decode=scaled"], "data.decode", "images keep their own size"),
        (PROGRAM, &["data.decode=scaled"], "data.decode", "it applies to images"),
        (REGRESS, &["data.masks=index"], "data.masks", "the task is \"regress\" with data.target = \"map\""),
        (REGRESS, &["data.classes=3"], "data.classes", "it applies to classes"),
        (REGRESS, &["data.kind=generated"], "data.root", "generated data has no files"),
        (PROGRAM, &["data.image_size=8"], "data.image_size", "it applies to images"),
        (PROGRAM, &["data.normalize_targets=true"], "data.normalize_targets", "task = \"regress\""),
    ] {
        expect_error(text, sets, key, "this setting has no effect");
        expect_error(text, sets, key, part);
    }
    expect_set_error(REGRESS, "data.nodata=none", "expected a number, \"nan\" or \"file\", got the text");
    for (text, value) in [("-9999", NoData::Number(-9999.0)), ("file", NoData::Word(NoDataWord::File))] {
        let recipe = parse(REGRESS, &[&format!("data.nodata={text}")]).unwrap();
        assert_eq!(recipe.data.nodata, Some(value));
        round_trip(&recipe);
    }
    expect_set_error(PROGRAM, "data.kind=folder", "\"program\" with data.target = \"tokens\" takes");
    expect_set_error(PROGRAM, "data.augment=flip", "takes \"none\", \"shift\"");
    let text = PROGRAM.replace("target = ", "# ").replace("context", "# ");
    let recipe = parse(&text, &["data.kind=text"]).unwrap();
    assert_eq!((recipe.data.target, recipe.data.augment), (Some(Target::Tokens), Augment::Shift));
    assert_eq!(parse(&text, &[]).unwrap().data.target, Some(Target::Class));
    let masks = ["data.target=mask", "data.classes=3", "data.train_masks=train"];
    expect_error(&text, &masks, "data.train_masks", "the folder of the masks or maps");
    let recipe = parse(&text, &["data.target=mask", "data.masks=binary"]).unwrap();
    assert_eq!((recipe.data.classes, recipe.data.ignore), (2, Some(255)));
}

#[test]
fn files_of_a_program_are_checked_before_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("net.pt2");
    std::fs::write(&file, "").unwrap();
    let file = format!("model.file={}", file.display());
    let library = format!("model.libraries=[{:?}]", folder.path().join("absent.so"));
    let sets = ["data.kind=generated", &file, &library];
    let text = EXPORTED.replace("root = ", "# ");
    let error = parse(&text, &sets).unwrap().check_paths().unwrap_err();
    assert_eq!(error.key(), Some("model.libraries"), "{error}");
    assert!(error.message().contains("absent.so does not exist"), "{error}");
}
