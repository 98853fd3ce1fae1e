//! Layouts of small folders.

#![allow(clippy::unwrap_used)]

use std::fs;

use dtrain_common::look::{Layout, LookQuestion};
use image::{GrayImage, Luma, RgbImage};

/// A folder of data.
struct Data(tempfile::TempDir);

impl Data {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, text: &str) -> &Self {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn images(&self, names: &[&str]) -> &Self {
        for name in names {
            self.file(name, "");
            let path = self.0.path().join(name);
            match name.contains("mask") || name.contains("manual") {
                true => GrayImage::from_fn(4, 4, |x, _| Luma([u8::from(x > 1)])).save(path).unwrap(),
                false => RgbImage::new(4, 4).save(path).unwrap(),
            }
        }
        self
    }

    fn look(&self, below: &str, target: &str) -> Result<Vec<Layout>, String> {
        let data = if below.is_empty() { self.0.path().to_owned() } else { self.0.path().join(below) };
        let question = LookQuestion { data, targets: vec![target.to_owned()], model: None };
        crate::look(&question).map(|look| look.layouts)
    }

    /// Returns the only layout.
    #[track_caller]
    fn one(&self, below: &str, target: &str) -> Layout {
        let mut found = self.look(below, target).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }
}

#[track_caller]
fn states(layout: &Layout, settings: &[(&str, &str)]) {
    for (key, value) in settings {
        assert_eq!(layout.value(key), Some(*value), "{key} of {layout:?}");
    }
}

#[test]
fn class_folders_are_found_in_and_without_sets() {
    let data = Data::new();
    data.images(&["train/a/1.png", "train/b/1.png", "valid/a/2.png", "test/a/3.png", "test/b/3.png"]);
    data.images(&["valid/b/2.png"]);
    let layout = data.one("", "class");
    states(&layout, &[("train", "\"train\""), ("val", "\"valid\""), ("test", "\"test\"")]);
    assert_eq!(layout.words, "2 class folders in train, valid and test");
    let layout = data.one("train", "class");
    let root = format!("{:?}", data.0.path().to_str().unwrap());
    states(&layout, &[("root", &root), ("train", "\"train\""), ("test", "\"train:0.2\"")]);
    // A class with the name of a set.
    data.images(&["train/train/1.png", "valid/train/2.png", "test/train/3.png"]);
    assert_eq!(data.one("", "class").words, "3 class folders in train, valid and test");
    // Images and their masks are no classes.
    let pairs = Data::new();
    pairs.images(&["images/1.png", "masks/1.png"]);
    let error = pairs.look("", "class").unwrap_err();
    assert!(error.contains("has no images in class folders"), "{error}");
}

#[cfg(unix)]
#[test]
fn sets_may_be_links_to_folders_of_images() {
    let data = Data::new();
    data.images(&["all/a/1.png", "all/b/1.png"]);
    let path = |name: &str| data.0.path().join(name);
    for set in ["test", "train"] {
        fs::create_dir(path(set)).unwrap();
        for class in ["a", "b"] {
            std::os::unix::fs::symlink(path("all").join(class), path(set).join(class)).unwrap();
        }
    }
    // A link to a folder above ends nowhere.
    std::os::unix::fs::symlink(path(""), path("train/b/loop")).unwrap();
    assert_eq!(data.one("", "class").words, "2 class folders in train and test");
}

#[test]
fn the_texts_of_sets_are_not_one_text() {
    let data = Data::new();
    data.file("test.txt", "the end").file("train.txt", "the begin").file("valid.txt", "between");
    let layout = data.one("", "tokens");
    let root = format!("{:?}", data.0.path().join("train.txt").to_str().unwrap());
    states(&layout, &[("root", &root), ("test_fraction", "0.1")]);
    assert_eq!(layout.words, "the text train.txt alone; test.txt is another set");
}

#[test]
fn known_data_sets_are_recognised() {
    let cub = Data::new();
    for name in ["images.txt", "classes.txt", "image_class_labels.txt", "train_test_split.txt"] {
        cub.file(name, "");
    }
    cub.images(&["images/001.a/1.png"]);
    states(&cub.one("", "class"), &[("kind", "\"cub\"")]);
    let imagenet = Data::new();
    imagenet.images(&["train/n01/1.png", "train/n02/1.png", "val/1.png"]).file("val.txt", "1.png 0\n");
    states(&imagenet.one("", "class"), &[("test", "\"val\""), ("lists", "{ val = \"val.txt\" }")]);
    let lists = Data::new();
    let list = "{\"label_names\": [], \"image_names\": [], \"image_labels\": []}";
    lists.file("base.json", list).file("novel.json", list);
    states(
        &lists.one("", "class"),
        &[("kind", "\"json-list\""), ("train", "\"base.json\""), ("test", "\"novel.json\"")],
    );
    let coco = Data::new();
    coco.images(&["train2017/1.png", "val2017/2.png"]);
    coco.file("annotations/instances_train2017.json", "{\"images\": []}");
    coco.file("annotations/instances_val2017.json", "{\"images\": []}");
    coco.file("annotations/captions_val2017.json", "{\"images\": []}");
    states(
        &coco.one("", "mask"),
        &[("test", "\"val2017\""), ("test_masks", "\"annotations/instances_val2017.json\"")],
    );
}

#[test]
fn images_and_masks_are_found_by_their_names() {
    let drive = Data::new();
    for (folder, set, numbers) in [("training", "training", [21, 22]), ("test", "test", [1, 2])] {
        for number in numbers {
            drive.images(&[
                &format!("{folder}/images/{number:02}_{set}.png"),
                &format!("{folder}/1st_manual/{number:02}_manual1.png"),
            ]);
        }
    }
    let layout = drive.one("", "mask");
    states(
        &layout,
        &[
            ("train", "\"training/images\""),
            ("train_masks", "\"training/1st_manual\""),
            ("test_masks", "\"test/1st_manual\""),
            ("pair", "\"{id}_* -> {id}_manual1\""),
            ("masks", "\"binary\""),
        ],
    );
    let flat = Data::new();
    flat.images(&[
        "pictures/a.png",
        "pictures/b.png",
        "masks/a.png",
        "masks/b.png",
        "other_masks/a.png",
        "other_masks/b.png",
    ]);
    let names: Vec<_> = flat.look("", "mask").unwrap().into_iter().map(|layout| layout.name).collect();
    assert_eq!(names, ["masks:masks", "masks:other_masks"]);
}

#[test]
fn tables_name_their_columns() {
    let data = Data::new();
    data.images(&["1.png", "2.png", "1_mask.png", "2_mask.png"]);
    data.file("a.csv", "id;photo;seg_mask;species;length;split\n1;1.png;1_mask.png;wren;1,5;train\n2;2.png;2_mask.png;robin;2,5;val\n");
    let table = |target: &str| data.one("a.csv", target);
    states(
        &table("class"),
        &[("fields", "{ image = \"image:photo\", label = \"class:species\" }"), ("test", "\"val\"")],
    );
    states(&table("mask"), &[("fields", "{ image = \"image:photo\", mask = \"mask:seg_mask\" }")]);
    data.file("b.csv", "photo,length,width_mm\n1.png,1.5,3\n2.png,2.5,4\n");
    let numbers = data.one("b.csv", "vector");
    states(
        &numbers,
        &[
            ("fields", "{ image = \"image:photo\", targets = \"numbers:length,width_mm\" }"),
            ("test", "\"train:0.2\""),
        ],
    );
    assert_eq!(numbers.numbers, 2);
    data.file(
        "c.jsonl",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"split\": \"train\"}\n",
    );
    states(&data.one("c.jsonl", "tokens"), &[("fields", "{ tokens = \"chat:messages\" }")]);
    data.file("d.csv", "text\nno sets\n");
    assert!(data.look("d.csv", "tokens").unwrap_err().contains("has no column split"));
}

#[test]
fn numbers_and_several_classes_have_their_tables() {
    let data = Data::new();
    data.images(&["train/1.png", "test/2.png"]);
    for set in ["train", "test"] {
        data.file(&format!("{set}/targets.csv"), "file,age,height\n1.png,3,4\n");
        data.file(&format!("{set}/classes.csv"), "file,classes\n1.png,a|b\n");
    }
    assert_eq!(data.one("", "vector").numbers, 2);
    states(&data.one("", "classes"), &[("target", "\"classes\""), ("train", "\"train\"")]);
}

#[test]
fn folders_without_data_are_named() {
    let data = Data::new();
    assert!(data.look("", "class").unwrap_err().contains("is an empty folder"));
    data.file("notes.md", "");
    assert!(data.look("", "tokens").unwrap_err().contains("has no text; name a .txt file"));
    data.file("a.txt", "aaaa");
    assert!(data.look("a.txt", "tokens").unwrap_err().contains("no text to learn from"));
}
