//! `[[data.source]]`.

use super::*;
use crate::{ColumnKind, DataKind};

/// Folders and a table, by weight.
pub(super) const SOURCES: &str = r#"
task = "segment"
[data]
classes = 3
[[data.source]]
root = "/data/a"
weight = 3
train_masks = "labels"
[[data.source]]
kind = "table"
root = "/data/b.csv"
fields = { image = "image:path", mask = "mask:label" }
test = "val"
weight = 1.5
[train]
epochs = 1
"#;

#[test]
fn a_source_has_the_settings_of_the_data_and_its_own() {
    let recipe = parse(SOURCES, &[]).unwrap();
    let sources = recipe.by_source();
    let [folder, table] = &sources[..] else { panic!("two sources") };
    assert_eq!(folder.data.root.as_deref(), Some("/data/a".as_ref()));
    assert_eq!((folder.data.kind, &*folder.data.train_masks), (DataKind::Folder, "labels"));
    assert_eq!((table.data.kind, &*table.data.test, &*table.data.train), (DataKind::Table, "val", "train"));
    assert_eq!(table.fields().unwrap()[1].kind, ColumnKind::Mask);
    assert!(folder.fields().unwrap().is_empty() && recipe.has(ColumnKind::Mask));
    round_trip(&recipe);
    assert_eq!(parse(samples::SEGMENT, &[]).unwrap().by_source().len(), 1);
    let text = parse(samples::LM_SOURCES, &[]).unwrap();
    assert_eq!(text.by_source()[1].data.root.as_deref(), Some("/data/b.txt".as_ref()));
    let relative = "task=\"lm\"\n[data]\n[[data.source]]\nroot=\"a.txt\"\n[train]\nepochs=1";
    assert!(parse(relative, &[]).unwrap().data.source[0].root.is_absolute());
}

#[test]
fn wrong_sources_are_named_with_their_remedy() {
    let of = |sources: &str| {
        format!(
            "task = \"classify\"\n[data]\nsampler = \"shuffled\"\nsource = [{sources}]\n[train]\nepochs = 1\n"
        )
    };
    for (sources, key, part) in [
        ("{ weight = 1.0 }", "data.source[0].root", "missing; name the folder, the table or the text"),
        ("{ root = \"a\", weight = -1.0 }", "data.source[0].weight", "at least 0"),
        (
            "{ root = \"a\", weight = 0.0 }, { root = \"b\", weight = 1.0 }",
            "data.source[0].weight",
            "remove the source",
        ),
        (
            "{ root = \"a\", weight = 1.0 }, { root = \"b\" }",
            "data.source[1].weight",
            "of all sources, or of none",
        ),
        (
            "{ root = \"a\", kind = \"generated\" }",
            "data.source[0].kind",
            "\"folder\", \"coco\", \"table\", \"shards\", \"parquet\", \"cub\", \"json-list\"",
        ),
        ("{ root = \"a\", weight = 1.0 }", "data.source[0].weight", "there is no other source"),
        ("{ root = \"a\" }, { root = \"a\", train = \"train\" }", "data.source[1].root", "twice"),
        (
            "{ root = \"a\", fields = { image = \"image\" } }",
            "data.source[0].fields",
            "it applies to a source with columns",
        ),
        ("{ root = \"a\", train_masks = \"x\" }", "data.source[0].train_masks", "masks and maps"),
        ("{ root = \"a\" }, { root = \"a\" }", "data.source[1].root", "the source is there twice"),
        ("{ root = \"a\", folder = \"x\" }", "data.source[0].folder", "root"),
        (
            "{ root = \"a\", kind = \"table\", fields = { image = \"picture\" } }",
            "data.source[0].fields.image",
            "no kind of field",
        ),
    ] {
        expect_error(&of(sources), &[], key, part);
    }
    expect_error(
        SOURCES,
        &["data.source=[{root=\"/a\"}, {root=\"/b\", kind=\"cub\"}]"],
        "data.source[1].kind",
        "its images have one class each",
    );
    let two = of("{ root = \"a\", weight = 1.0 }, { root = \"b\", weight = 1.0 }");
    expect_error(&two, &["data.sampler=balanced"], "data.source[0].weight", "data.sampler decides");
    expect_error(&two, &["data.root=/c"], "data.root", "has its own root");
    expect_error(&two, &["data.kind=generated"], "data.source", "generated data has no files");
    let masks = "task = \"segment\"\n[data]\nclasses = 2\n[[data.source]]\nroot = \"a\"\ntrain_masks = \"train\"\n[train]\nepochs = 1\n";
    expect_error(masks, &[], "data.source[0].train_masks", "is the folder of the images");
    let both = "{ root = \"a\", train = \"x\" }, { root = \"b\", train = \"y\" }";
    expect_error(&of(both), &["data.train=z"], "data.train", "each [[data.source]] states its own");
    let numbers = "{ root = \"a.csv\", kind = \"table\", fields = { x = \"numbers:a,b\" } }";
    let program = format!(
        "task = \"program\"\n[data]\nsource = [{numbers}]\n[model]\nfile = \"/m.pt2\"\n[train]\nepochs = 1\n"
    );
    assert_eq!(parse(&program, &[]).unwrap().target(), None);
    let text = ["data.source=[{root=\"a.txt\", train=\"x\"}]"];
    let lm = "task = \"lm\"\n[data]\n[train]\nepochs = 1\n";
    expect_error(lm, &text, "data.source[0].train", "it applies to images");
}
