//! Masks: their values, colours, annotations, and names beside those of images.

use super::samples::{BINARY, COCO, COLORS, SEGMENT, THRESHOLD};
use super::*;

fn colors(recipe: &Recipe) -> Vec<String> {
    let list = recipe.data.mask_colors.as_ref().unwrap().list();
    list.iter().map(|entry| format!("{} {}", entry.class, entry.hex())).collect()
}

#[test]
fn colors_name_and_count_the_classes() {
    let recipe = parse(COLORS, &[]).unwrap();
    assert_eq!(colors(&recipe), ["sky #80C0FF", "road #804080", "void #000000", "void #FFFFFF"]);
    assert_eq!((recipe.data.masks, recipe.data.classes, recipe.data.ignore), (Masks::Colors, 2, Some(255)));
    // Whatever the form, the experiment is the same.
    let list = "data.mask_colors=[\"sky #80c0ff\", \"road #804080\", \"void #000000\", \"void #FFFFFF\"]";
    let text = COLORS.lines().filter(|line| !line.starts_with("mask_colors")).collect::<Vec<_>>().join("\n");
    assert!(recipe.differences(&parse(&text, &[list]).unwrap()).is_empty());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("colors.csv");
    std::fs::write(&file, "name,r,g,b\nsky,128,192,255\nroad,128,64,128\nvoid,0,0,0\nvoid,255,255,255\n")
        .unwrap();
    let set = format!("data.mask_colors={}", file.display());
    let read = parse(&text, &[&set]).unwrap();
    assert!(recipe.differences(&read).is_empty(), "{:?}", recipe.differences(&read));
    std::fs::write(&file, "sky,128,192,255\nroad,128,192,255\n").unwrap();
    expect_error(&text, &[&set], "data.mask_colors", "have the same colour #80C0FF");
    // A file that is not there may be on the machine of the run.
    std::fs::remove_file(&file).unwrap();
    let recipe = parse(&text, &[&set, "data.root=/"]).unwrap();
    round_trip(&recipe);
}

#[test]
fn a_threshold_has_two_classes() {
    assert_eq!(parse(THRESHOLD, &[]).unwrap().data.classes, 2);
    expect_set_error(THRESHOLD, "data.classes=3", "threshold masks have 2 classes, not 3");
    expect_set_error(BINARY, "data.mask_threshold=3", "it applies to data.masks = \"threshold\"");
}

#[test]
fn wrong_colors_have_a_remedy() {
    expect_set_error(COLORS, "data.classes=2", "data.mask_colors determines it");
    expect_error(
        COLORS,
        &["data.ignore_classes=[\"viod\"]"],
        "data.ignore_classes",
        "has no class \"viod\"; did you mean \"void\"?",
    );
    expect_error(
        COLORS,
        &["data.ignore_classes=[\"void\", \"sky\"]"],
        "data.ignore_classes",
        "and 1 are left",
    );
    expect_set_error(COLORS, "data.ignore=1", "1 is the number of a class, of 2 in data.mask_colors");
    expect_set_error(COLORS, "data.mask_colors={ a = \"red\" }", "`a`: the text \"red\" is no colour");
    expect_set_error(
        SEGMENT,
        "data.mask_colors={ a = \"#000000\" }",
        "it applies to data.masks = \"colors\"",
    );
    expect_error(BINARY, &["data.masks=colors"], "data.mask_colors", "missing; state the colours");
    expect_set_error(SEGMENT, "data.mask_tolerance=3", "it applies to data.masks = \"colors\"");
    expect_set_error(SEGMENT, "data.ignore_classes=[\"a\"]", "whose classes have names");
}

#[test]
fn annotations_determine_classes() {
    expect_set_error(COCO, "data.classes=81", "the categories of the annotations determine it");
    expect_set_error(COCO, "data.masks=binary", "drawn from annotations");
    expect_set_error(COCO, "data.pair={id} -> {id}", "it applies to data.kind = \"folder\"");
    expect_set_error(SEGMENT, "data.unannotated=error", "it applies to data.kind = \"coco\"");
    expect_error(
        SMALL,
        &["data.kind=coco", "data.root=/"],
        "data.kind",
        "task = \"classify\" takes the kinds",
    );
}

#[test]
fn names_pair_by_a_pattern() {
    let one = ["data.train_masks=Train/Image", "data.test_masks=test"];
    parse(COLORS, &one).unwrap();
    expect_set_error(SEGMENT, "data.train_masks=image", "is the folder of the images");
    expect_set_error(COLORS, "data.pair={id}_training", "is not \"IMAGES -> MASKS\"");
    let classes = SMALL.replace("kind = \"generated\"", "root = \"/data\"");
    expect_set_error(&classes, "data.pair={id} -> {id}", "it applies to masks and maps");
}
