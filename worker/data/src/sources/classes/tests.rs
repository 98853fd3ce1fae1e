#![allow(clippy::unwrap_used)]

use std::fs;

use dtrain_test_kit::permissions::with_permissions;
use dtrain_test_kit::programs::test_data;
use proptest::prelude::*;

use super::*;
use crate::sampler::shuffled::epoch_order;
use crate::tests::images::{class_counts, folder, paths, png, put};

fn scan_error(root: &Path, split: &str, classes: Option<&[String]>) -> String {
    scan(root, split, classes).unwrap_err().to_string()
}

fn labels(samples: &Samples) -> &[u32] {
    samples.classes().1
}

#[test]
fn classes_and_images_are_sorted_and_other_files_ignored() {
    let root = tempfile::tempdir().unwrap();
    let train = root.path().join("train");
    for name in [
        "dog/b.PNG",
        "dog/a.jpeg",
        "cat/deep/er/z.tif",
        "cat/x.webp",
        "cat/y.JFIF",
        "Bird/1.bmp",
        "Bird/2.tiff",
    ] {
        put(train.join(name), b"unread");
    }
    for other in
        ["dog/notes.txt", "dog/.hidden.png", ".cache/x.png", "cat/.thumbs/x.png", "cat/png", "readme.md"]
    {
        put(train.join(other), b"unread");
    }
    let index = scan(root.path(), "train", None).unwrap();
    assert_eq!(index.classes().0, ["Bird", "cat", "dog"]);
    assert_eq!(
        paths(&index),
        [
            "Bird/1.bmp",
            "Bird/2.tiff",
            "cat/deep/er/z.tif",
            "cat/x.webp",
            "cat/y.JFIF",
            "dog/a.jpeg",
            "dog/b.PNG"
        ]
    );
    assert_eq!(labels(&index), [0, 0, 1, 1, 1, 2, 2]);
    assert_eq!(class_counts(&index), [2, 3, 2]);
    assert_eq!(index.image_path(6), train.join("dog/b.PNG"));
    assert_eq!(index.count(), 7);
}

#[test]
fn errors_of_missing_folders_list_the_existing_ones() {
    let root = tempfile::tempdir().unwrap();
    let text = scan_error(root.path(), "train", None);
    assert!(
        text.starts_with(&format!("the folder {} does not exist", root.path().join("train").display())),
        "{text}"
    );
    assert!(text.contains("has no folders; set data.root"), "{text}");
    folder(root.path(), "training", &[("cat", 1)]);
    let text = scan_error(root.path(), "train", None);
    assert!(text.contains("has the folders `training`; set data.root, data.train and data.test"), "{text}");
    let text = scan_error(&root.path().join("nowhere"), "train", None);
    assert!(text.ends_with("set data.root to the folder that holds the splits"), "{text}");
}

#[test]
fn a_file_in_place_of_a_folder_is_named() {
    let root = tempfile::tempdir().unwrap();
    put(root.path().join("train"), b"");
    let text = scan_error(root.path(), "train", None);
    assert!(text.contains("/train is not a folder"), "{text}");
    let file = root.path().join("train");
    let text = scan_error(&file, "train", None);
    assert!(text.starts_with(&format!("{} is not a folder", file.display())), "{text}");
}

#[test]
fn missing_class_folders_are_an_error_with_the_expected_layout() {
    let root = tempfile::tempdir().unwrap();
    put(root.path().join("train/loose.png"), b"");
    let text = scan_error(root.path(), "train", None);
    assert!(text.contains(
        "has no class folders (1 image lies directly in it); expected one folder of images for each class"
    ));
    assert!(text.contains("train/cat/001.png"), "{text}");
    put(root.path().join("train/looser.png"), b"");
    assert!(scan_error(root.path(), "train", None).contains("(2 images lie directly in it)"));
}

#[test]
fn empty_classes_are_named_and_counted() {
    let root = tempfile::tempdir().unwrap();
    folder(root.path(), "train", &[("good", 1)]);
    fs::create_dir_all(root.path().join("train/empty")).unwrap();
    let text = scan_error(root.path(), "train", None);
    assert!(
        text.starts_with("1 class folder in ")
            && text.contains("without images: `empty`; add images (png, jpg, jpeg, jpe, jfif, "),
        "{text}"
    );
    for number in 0..7 {
        put(root.path().join(format!("train/e{number}/readme.txt")), b"");
    }
    // Files of other classes, and beside the classes, are not the reason.
    put(root.path().join("train/good/other.gif"), b"");
    put(root.path().join("train/loose.png"), b"");
    let text = scan_error(root.path(), "train", None);
    assert!(text.starts_with("8 class folders in "), "{text}");
    assert!(
        text.contains(
            "`e0`, `e1`, `e2`, `e3`, `e4` and 3 more (files that are no images to dtrain: 7 .txt); add"
        ),
        "{text}"
    );
}

#[test]
fn the_test_split_takes_the_training_classes() {
    let root = tempfile::tempdir().unwrap();
    folder(root.path(), "train", &[("a", 1), ("b", 1), ("c", 1)]);
    folder(root.path(), "test", &[("c", 2), ("a", 1)]);
    let train = scan(root.path(), "train", None).unwrap();
    let test = scan(root.path(), "test", Some(train.classes().0)).unwrap();
    assert_eq!(test.classes().0, train.classes().0);
    assert_eq!(labels(&test), [0, 2, 2]);
    folder(root.path(), "test", &[("zebra", 1)]);
    let text = scan_error(root.path(), "test", Some(train.classes().0));
    assert!(text.contains("/test has 1 class that the training split lacks: `zebra`;"), "{text}");
}

#[cfg(unix)]
#[test]
fn links_are_followed_and_loops_end() {
    use std::os::unix::fs::symlink;
    let root = tempfile::tempdir().unwrap();
    let elsewhere = root.path().join("elsewhere");
    put(elsewhere.join("pictures/1.png"), b"");
    put(elsewhere.join("single.png"), b"");
    let train = root.path().join("train");
    put(train.join("a/own.png"), b"");
    symlink(elsewhere.join("single.png"), train.join("a/linked.png")).unwrap();
    symlink(elsewhere.join("pictures"), train.join("a/more")).unwrap();
    symlink(elsewhere.join("pictures"), train.join("b")).unwrap();
    // Loops: to itself, to a folder above, and twice to the same.
    symlink(&train, train.join("a/up")).unwrap();
    symlink(train.join("a"), train.join("a/self")).unwrap();
    symlink("loop", train.join("a/loop")).unwrap();
    // A broken link is listed, so that it is reported when it is read.
    symlink("nowhere", train.join("b-lost.png")).unwrap();
    symlink("nowhere", train.join("a/lost.png")).unwrap();
    let index = scan(root.path(), "train", None).unwrap();
    assert_eq!(index.classes().0, ["a", "b"]);
    assert_eq!(paths(&index), ["a/linked.png", "a/lost.png", "a/more/1.png", "a/own.png", "b/1.png"]);
}

#[cfg(unix)]
#[test]
fn a_folder_without_permission_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let root = tempfile::tempdir().unwrap();
    folder(root.path(), "train", &[("open", 1), ("shut", 1)]);
    let shut = root.path().join("train/shut");
    fs::set_permissions(&shut, fs::Permissions::from_mode(0o000)).unwrap();
    let result = with_permissions(|| scan(root.path(), "train", None));
    fs::set_permissions(&shut, fs::Permissions::from_mode(0o755)).unwrap();
    let text = result.unwrap_err().to_string();
    assert!(
        text.contains("cannot list the folder ")
            && text.contains("train/shut: ")
            && text.contains("permission"),
        "{text}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn names_of_used_files_must_be_utf8() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let root = tempfile::tempdir().unwrap();
    folder(root.path(), "train", &[("a", 1)]);
    put(root.path().join("train/a").join(OsStr::from_bytes(b"notes\xff.txt")), b"");
    assert_eq!(scan(root.path(), "train", None).unwrap().count(), 1);
    put(root.path().join("train/a").join(OsStr::from_bytes(b"x\xff.png")), b"");
    assert!(scan_error(root.path(), "train", None).ends_with("is not valid UTF-8; rename it"));
}

#[test]
fn a_real_set_is_listed() {
    let Ok(root) = test_data("cifar100") else { return };
    let train = scan(&root, "train", None).unwrap();
    let test = scan(&root, "test", Some(train.classes().0)).unwrap();
    assert_eq!((train.classes().0.len(), train.count(), test.count()), (100, 4000, 1000));
    assert!(class_counts(&train).iter().all(|&count| count == 40));
}

proptest! {
    #[test]
    fn an_index_round_trips_as_json(
        classes in prop::collection::vec("\\PC{0,8}", 1..6),
        names in prop::collection::vec("[^/\\PC]{1,20}", 0..20),
        root in "\\PC{0,12}",
        size: Option<(u32, u32)>,
    ) {
        let mut listing = Listing::default();
        listing.enter("a/b");
        names.iter().for_each(|name| listing.add(name));
        let images = vec![Files::new("train", listing.pack().unwrap())];
        let numbers = Packed::write(names.iter().map(|_| 0)).unwrap();
        let index = Samples {
            root: root.into(),
            set: "train".to_owned(),
            sources: Vec::new(),
            lists: vec![
                List::new("image", ListValues::Images(images)),
                List::new("label", ListValues::Classes { names: classes, numbers }),
            ],
            size,
            table: None,
            ignored: Ignored::default(),
        };
        let told = serde_json::to_vec(&index).unwrap();
        prop_assert_eq!(serde_json::from_slice::<Samples>(&told).unwrap(), index);
    }

    /// The order in which files are made does not change the index.
    #[test]
    fn the_index_depends_on_names_alone(names in prop::collection::btree_set("[a-c]/[a-zA-Z0-9 ]{1,4}\\.png", 1..12), seed: u64) {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let names: Vec<String> = names.into_iter().collect();
        for name in &names {
            put(one.path().join("train").join(name), &png(1, 1));
        }
        let order = epoch_order(names.len(), seed, 0);
        for &at in &order {
            put(two.path().join("train").join(&names[at as usize]), &png(1, 1));
        }
        let (one, two) = (scan(one.path(), "train", None).unwrap(), scan(two.path(), "train", None).unwrap());
        prop_assert_eq!(paths(&one), paths(&two));
        prop_assert_eq!(&one.lists, &two.lists);
        prop_assert_eq!(one.count(), names.len());
    }
}
