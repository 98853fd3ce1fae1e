#![allow(clippy::unwrap_used)]

use dtrain_recipe::Target;
use proptest::prelude::*;

use super::*;
use crate::sources::{Reading, classes, folders};
use crate::tests::READING;
use crate::tests::images::{paths, png, put};

/// Writes the class folders `train`, and the list of the set `val`.
fn written(list: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for class in ["n01", "n02", "n10"] {
        put(root.path().join("train").join(class).join("a.png"), &png(4, 4));
    }
    put(root.path().join("lists/val.txt"), list.as_bytes());
    root
}

fn scan(list: &str) -> Result<Samples, DataError> {
    let root = written(list);
    let train = classes::scan(root.path(), "train", None)?;
    let reading = Reading { train: Some(&train), ..READING };
    let target = Some(Target::Class);
    let list = Some("lists/val.txt");
    folders::list(&Request {
        root: root.path(),
        set: "val",
        targets: "",
        target,
        fields: &[],
        list,
        pair: None,
        reading,
    })
}

#[test]
fn classes_are_names_or_numbers_of_training_classes() {
    for list in [
        "b 1.jpg n10\na.jpg n01\n",
        "b 1.jpg 2\r\n\r\na.jpg 0\n",
        "val/b 1.jpg\t2\nval/a.jpg\t0\n",
        "./b 1.jpg   2\na.jpg 0\n",
        "\u{feff}b 1.jpg 2\na.jpg 0\n",
    ] {
        let found = scan(list).unwrap();
        assert_eq!(paths(&found), ["val/b 1.jpg", "val/a.jpg"], "{list:?}");
        assert_eq!((found.classes().0.len(), found.classes().1), (3, &[2, 0][..]), "{list:?}");
    }
    assert!(scan("a.jpg 0\n").unwrap().describe(0).ends_with("val/a.jpg (val.txt:1)"));
}

#[test]
fn wrong_lists_are_named_with_their_remedy() {
    for (list, part) in [
        (
            "a.jpg 1\nb.jpg 3\nc.jpg 3\n",
            "val.txt:2: 3 is the number of no training class, which are 0 to 2 in the order of",
        ),
        ("a.jpg 1\nb.jpg 3\nc.jpg 3\n", "; 1 more line has this problem"),
        ("a.jpg n01\nb.jpg n03\n", "val.txt:2: label is \"n03\", a class that no training line has"),
        ("a.jpg 0\na.jpg 1\n", "val.txt:2: \"a.jpg\" is also in line 1"),
        ("a.jpg\n", "\"a.jpg\" is no line of the form `PATH CLASS`"),
        ("../a.jpg 0\n", "val.txt:1: \"val/../a.jpg\" is not a path below"),
        ("\n", "the list has no images"),
    ] {
        let found = scan(list).unwrap_err().to_string();
        assert!(found.contains(part), "{list:?}: {found}");
    }
}

/// Names that are numbers, in the order of text, would be other numbers in the order of classes.
#[test]
fn where_a_name_is_a_number_all_are_names() {
    let classes = ["0", "1", "10", "2"].map(str::to_owned);
    let named = |text: &str| {
        let mut lines = parse(text).unwrap();
        name_classes(&mut lines, &classes)
            .map(|()| lines.into_iter().map(|line| line.class).collect::<Vec<_>>())
    };
    assert_eq!(named("a 10\nb 2\n").unwrap(), ["10", "2"]);
    assert_eq!(named("a 3\nb 2\n").unwrap(), ["3", "2"], "3 is a class that no training sample has");
}

proptest! {
    #[test]
    fn any_text_reads_or_is_an_error_in_a_line(text in "[a/. 0-9\n]{0,40}") {
        match parse(&text) {
            Ok(lines) => prop_assert!(!lines.is_empty()),
            Err((line, _)) => prop_assert!((1..=text.matches('\n').count() + 1).contains(&line)),
        }
    }
}
