#![allow(clippy::unwrap_used)]

use std::path::Path;

use super::*;
use crate::sources::Reading;
use crate::tests::READING;
use crate::tests::images::{paths, put};

const FILES: [(&str, &str); 4] = [
    ("images.txt", "1 002.Jay/a b.jpg\n2 001.Auk/b.jpg\r\n3 001.Auk/c.jpg\n4 002.Jay/d.jpg\n"),
    ("classes.txt", "1 001.Auk\n2 002.Jay\n"),
    ("image_class_labels.txt", "1 2\n2 1\n3 1\n4 2\n"),
    ("train_test_split.txt", "2 1\n1 1\n3 0\n4 1\n"),
];

fn scan(root: &Path, set: &str, reading: Reading<'_>) -> Result<Samples, DataError> {
    list(&Request { root, set, targets: "", target: None, fields: &[], list: None, pair: None, reading })
}

/// Writes the files, one of them with other lines.
fn written(name: &str, text: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (file, usual) in FILES {
        put(root.path().join(file), if file == name { text } else { usual }.as_bytes());
    }
    root
}

#[test]
fn the_lists_give_both_sets() {
    let root = written("", "");
    let train = scan(root.path(), "train", READING).unwrap();
    assert_eq!(paths(&train), ["images/002.Jay/a b.jpg", "images/001.Auk/b.jpg", "images/002.Jay/d.jpg"]);
    assert_eq!(train.classes(), (&["001.Auk".to_owned(), "002.Jay".to_owned()][..], &[1, 0, 1][..]));
    assert!(train.describe(2).ends_with("images/002.Jay/d.jpg (images.txt:4)"), "{}", train.describe(2));
    let test = scan(root.path(), "test", Reading { train: Some(&train), ..READING }).unwrap();
    assert_eq!((paths(&test), test.classes().1), (vec!["images/001.Auk/c.jpg".to_owned()], &[0][..]));
}

#[test]
fn lists_that_disagree_are_named() {
    for (name, text, part) in [
        ("train_test_split.txt", "1 1\n2 1\n3 0\n5 1\n", "images.txt and "),
        (
            "train_test_split.txt",
            "1 1\n2 1\n3 0\n5 1\n",
            "disagree: 1 number in the first alone: `4`; 1 number in the second alone: `5`",
        ),
        (
            "train_test_split.txt",
            "1 1\n2 1\n3 0\n4 2\n",
            "train_test_split.txt:4: \"2\" is no set; write 1 for training",
        ),
        (
            "train_test_split.txt",
            "1 1\n2 1\n3 1\n4 1\n",
            "no image is of the set test, whose lines end with 0",
        ),
        (
            "image_class_labels.txt",
            "1 2\n2 1\n3 1\n",
            "image_class_labels.txt disagree: 1 number in the first alone: `4`; 0",
        ),
        (
            "image_class_labels.txt",
            "1 2\n2 1\n3 1\n4 3\n",
            "image_class_labels.txt:4: classes.txt has no class \"3\"",
        ),
        (
            "images.txt",
            "1 a.jpg\n1 b.jpg\n2 c.jpg\n3 d.jpg\n4 e.jpg",
            "images.txt:2: \"1\" is also in line 1",
        ),
        (
            "images.txt",
            "1 ../a.jpg\n2 b.jpg\n3 c.jpg\n4 e.jpg",
            "images.txt:1: \"images/../a.jpg\" is not a path below",
        ),
        ("images.txt", "1 a.jpg\n2\n", "images.txt:2: \"2\" is no line of the form `NUMBER TEXT`"),
    ] {
        let root = written(name, text);
        let sets = ["train", "test"].map(|set| scan(root.path(), set, READING));
        let found: Vec<_> = sets.into_iter().filter_map(|set| Some(set.err()?.to_string())).collect();
        assert!(found.iter().any(|found| found.contains(part)), "{part}: {found:?}");
    }
    let root = written("", "");
    let found = scan(root.path(), "val", READING).unwrap_err().to_string();
    assert!(
        found.contains("train_test_split.txt: the sets are train and test, and `val` is none"),
        "{found}"
    );
    std::fs::remove_file(root.path().join("images.txt")).unwrap();
    let found = scan(root.path(), "train", READING).unwrap_err().to_string();
    assert!(
        found.contains("images.txt") && found.contains("set data.root to the folder that holds images.txt"),
        "{found}"
    );
}

proptest::proptest! {
    #[test]
    fn any_text_reads_or_is_an_error_in_a_line(text in "[12a/. \t\r\n]{0,40}") {
        match parse(&text) {
            Ok((lines, by_number)) => proptest::prop_assert_eq!(lines.len(), by_number.len()),
            Err((line, _)) => proptest::prop_assert!((1..=text.matches('\n').count() + 1).contains(&line)),
        }
    }
}
