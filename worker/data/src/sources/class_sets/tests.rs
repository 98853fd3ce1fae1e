#![allow(clippy::unwrap_used)]

use dtrain_recipe::Target;

use super::*;
use crate::samples::ListValues;
use crate::sources::{Reading, folders};
use crate::tests::READING;
use crate::tests::images::{paths, png, put};

/// Writes `train` and `test` with images, and the tables.
fn folder(tables: [&str; 2], images: &[&str]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (set, table) in ["train", "test"].into_iter().zip(tables) {
        images.iter().for_each(|name| put(root.path().join(set).join(name), &png(8, 6)));
        put(root.path().join(set).join("classes.csv"), table.as_bytes());
    }
    root
}

fn scan(root: &tempfile::TempDir, set: &str, reading: Reading<'_>) -> Result<Samples, DataError> {
    let target = Some(Target::Classes);
    folders::list(&Request {
        root: root.path(),
        set,
        targets: "",
        target,
        fields: &[],
        list: None,
        pair: None,
        reading,
    })
}

#[test]
fn images_have_the_classes_of_their_lines() {
    let train = "file;classes\nb.png;red|big\nin/a.png;\n";
    let root = folder(
        [train, "file,classes\nin/a.png,big\nb.png, big | red\n"],
        &["b.png", "in/a.png", "notes.txt"],
    );
    let train = scan(&root, "train", READING).unwrap();
    assert_eq!(paths(&train), ["train/b.png", "train/in/a.png"]);
    assert!(train.image_path(0).is_file());
    assert_eq!(train.ignored.to_string(), "1 .txt", "the table is not ignored");
    let sets = |samples: &Samples| {
        let ListValues::ClassSets { names, sets } = &samples.lists[1].values else {
            panic!("sets of classes")
        };
        (names.join(" "), sets.of(0).to_vec(), sets.of(1).to_vec())
    };
    assert_eq!(sets(&train), ("big red".to_owned(), vec![1, 0], vec![]));
    let test = scan(&root, "test", Reading { train: Some(&train), ..READING }).unwrap();
    assert_eq!(sets(&test), ("big red".to_owned(), vec![0, 1], vec![0]));
}

#[test]
fn wrong_tables_are_named_with_their_remedy() {
    let good = "file,classes\na.png,x\n";
    for (tables, part) in [
        (
            ["file,x,y\na.png,1,0\n", good],
            "train/classes.csv:2: the table has the columns `x`, `y`, and takes one after `file`",
        ),
        (["file,classes\n", good], "1 image in"),
        (["file,classes\na.png,x\nb.png,x\n", good], "classes.csv:3: there is no image \"b.png\""),
        (["file,classes\na.png,\n", good], "no training line has a class in the column `label`"),
        (
            [good, "file,classes\na.png,x|z\n"],
            "test/classes.csv:2: label is \"z\", a class that no training line has",
        ),
        (["", good], "the table is empty; write the line `file,classes`"),
    ] {
        let root = folder(tables, &["a.png"]);
        let found = scan(&root, "train", READING)
            .and_then(|train| scan(&root, "test", Reading { train: Some(&train), ..READING }));
        let found = found.unwrap_err().to_string();
        assert!(found.contains(part), "{tables:?}: {found}");
    }
    let root = folder([good, good], &["a.png"]);
    std::fs::remove_file(root.path().join("train/classes.csv")).unwrap();
    let found = scan(&root, "train", READING).unwrap_err().to_string();
    assert!(found.contains("write a line `file,classes` and a line for each image"), "{found}");
}
