#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use dtrain_recipe::{FieldColumns, Separator, Unannotated};

use super::*;
use crate::mask_rule::{MaskKind, MaskRule};
use crate::pixel_target::MapRule;
use crate::sources::classes;
use crate::sources::{Reading, table};
use crate::tests::images::{png, put};

static RULE: MaskRule = MaskRule::unnamed(MaskKind::Index, 2, 255);

const READING: Reading<'_> = Reading {
    mask: &RULE,
    map: MapRule { scale: 1.0, ignore: None, ..MapRule::PLAIN },
    split: table::SPLIT,
    separator: Separator::Auto,
    train: None,
    is_undivided: false,
    ignore_classes: &[],
    unannotated: Unannotated::Background,
};

/// Writes class folders with an image for each name.
fn folders(root: &Path, files: &[&str]) {
    for file in files {
        put(root.join("train").join(file), &png(4, 4));
    }
}

fn table(root: &Path, lines: &str, fields: &[(&str, &str)]) -> Result<Samples, DataError> {
    fs::create_dir_all(root).unwrap();
    let path = root.join("table.csv");
    fs::write(&path, lines).unwrap();
    let fields: Vec<_> =
        fields.iter().map(|(field, text)| FieldColumns::parse(field, text).unwrap()).collect();
    table::scan(&path, "train", &fields, READING)
}

#[test]
fn classes_and_paths_of_all_sources_are_joined() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (folder.path().join("one"), folder.path().join("deep/two"));
    folders(&one, &["cat/a.png", "dog/b.png"]);
    let first = classes::scan(&one, "train", None).unwrap();
    let fields = [("image", "image:path"), ("label", "class:kind")];
    let lines = "path,kind,split\nx/c.png,bird,train\nd.png,dog,train\ne.png,bird,test\n";
    let second = table(&two, lines, &fields).unwrap();
    let joined = Samples::join(vec![(first.clone(), Some(1.0)), (second, Some(2.0))]).unwrap();
    assert_eq!(joined.count(), 4);
    let (names, numbers) = joined.classes();
    assert_eq!(names, ["bird", "cat", "dog"]);
    assert_eq!(numbers, [1, 2, 0, 2]);
    let paths: Vec<_> = (0..4).map(|sample| joined.image_path(sample)).collect();
    let expected = ["one/train/cat/a.png", "one/train/dog/b.png", "deep/two/x/c.png", "deep/two/d.png"];
    assert_eq!(paths, expected.map(|path| folder.path().join(path)));
    assert_eq!(joined.describe(1), paths[1].display().to_string());
    assert_eq!(joined.describe(3), format!("{} (table.csv:3)", paths[3].display()));
    let of_source: Vec<_> = joined.sources.iter().map(|part| (part.samples, part.weight)).collect();
    assert_eq!(of_source, [(2, Some(1.0)), (2, Some(2.0))]);
    // Without the second and the third sample.
    let kept = joined.kept(&|sample| sample == 0 || sample == 3).unwrap();
    assert_eq!((kept.classes().1, kept.sources[0].samples, kept.sources[1].samples), (&[1, 2][..], 1, 1));
    assert_eq!(kept.describe(1), joined.describe(3));
    let text = serde_json::to_string(&joined).unwrap();
    let mut received = joined.clone();
    // Only the scan knows the folders.
    received.sources.iter_mut().for_each(|part| part.folder.clear());
    assert_eq!(serde_json::from_str::<Samples>(&text).unwrap(), received);
    // One source stays as it is.
    assert_eq!(Samples::join(vec![(first.clone(), None)]).unwrap(), first);
}

#[test]
fn sets_of_classes_and_numbers_are_joined() {
    let folder = tempfile::tempdir().unwrap();
    let fields = [("tags", "classes"), ("size", "numbers:w,h")];
    let one =
        table(&folder.path().join("a"), "tags,w,h,split\nx|y,1,2,train\n,3,4,train\n", &fields).unwrap();
    let two = table(&folder.path().join("b"), "tags,w,h,split\nz|x,5,6,train\n", &fields).unwrap();
    let joined = Samples::join(vec![(one, None), (two, None)]).unwrap();
    assert_eq!(joined.class_names()["tags"], ["x", "y", "z"]);
    let ListValues::ClassSets { sets, .. } = &joined.lists[0].values else { panic!("sets of classes") };
    assert_eq!([sets.of(0), sets.of(1), sets.of(2)], [&[0, 1][..], &[], &[2, 0]]);
    assert_eq!(joined.numbers().1, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
}

#[test]
fn sources_with_other_fields_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let one = folder.path().join("one");
    folders(&one, &["cat/a.png"]);
    let first = classes::scan(&one, "train", None).unwrap();
    let two = folder.path().join("two");
    for (lines, fields, part) in [
        (
            "path,kind,split\nc.png,3,train\n",
            &[("image", "image:path"), ("label", "numbers:kind")][..],
            "the field `label` is a class in ",
        ),
        ("path,split\nc.png,train\n", &[("image", "image:path")], "but missing in "),
        (
            "path,b,kind,split\nc.png,d.png,x,train\n",
            &[("image", "image:path,b"), ("label", "class:kind")],
            "but a list of 2 images in ",
        ),
        (
            "path,kind,more,split\nc.png,x,1,train\n",
            &[("image", "image:path"), ("label", "class:kind"), ("more", "numbers")],
            "the field `more` is the numbers more in ",
        ),
    ] {
        let second = table(&two, lines, fields).unwrap();
        let error = Samples::join(vec![(first.clone(), None), (second, None)]).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
