#![allow(clippy::unwrap_used)]

use std::fs;

use dtrain_test_kit::permissions::with_permissions;
use dtrain_test_kit::programs::test_data;
use image::ImageFormat;
use proptest::prelude::*;

use super::super::sources::classes;
use dtrain_recipe::Orientation;

use super::*;
use crate::tests::images::{class_counts, encoded, folder, gradient, paths, png, put, train};

const PICTURES: Needs =
    Needs { channels: 3, resize: Resize::Crop, orientation: Orientation::Stored, nodata: None, fill: None };

fn quiet(index: &Samples, depth: Depth, threads: usize) -> CheckReport {
    check(index, PICTURES, depth, threads, &mut |_, _| ())
}

/// A set of 202 images in two classes, two of them bad: one cut short, one a text.
fn spoilt() -> (tempfile::TempDir, Samples) {
    let (root, index) = train(&[("a", 101), ("b", 101)]);
    let whole = png(8, 8);
    put(root.path().join("train/a/050.png"), &whole[..whole.len() - 20]);
    put(root.path().join("train/b/007.png"), b"<html>moved</html>");
    (root, index)
}

#[test]
fn bad_images_are_named_and_left_out() {
    let (root, index) = spoilt();
    let mut calls = Vec::new();
    let report = check(&index, PICTURES, Depth::Full, 2, &mut |done, total| calls.push((done, total)));
    assert_eq!(calls.last(), Some(&(202, 202)));
    assert_eq!(report.checked, 202);
    assert_eq!(report.bad.iter().map(|bad| bad.index).collect::<Vec<_>>(), [50, 108]);
    assert_eq!(report.bad[0].path, root.path().join("train/a/050.png").display().to_string());
    assert!(report.bad[0].reason.starts_with("damaged: "), "{}", report.bad[0].reason);
    assert!(
        report.bad[1].reason.contains("it is a web page (HTML); expected PNG"),
        "{}",
        report.bad[1].reason
    );
    let kept = index.without_bad(&report).unwrap();
    assert_eq!(class_counts(&kept), [100, 100]);
    assert!(paths(&kept).iter().all(|path| path != "a/050.png" && path != "b/007.png"));
    assert_eq!(kept.classes().0, index.classes().0);
    // The file that is cut short still has its header.
    let quick = quiet(&index, Depth::Header, 2);
    assert_eq!(quick.bad.iter().map(|bad| bad.index).collect::<Vec<_>>(), [108]);
    for threads in [0, 1, 3, 500] {
        assert_eq!(quiet(&index, Depth::Full, threads), report);
    }
}

#[test]
fn a_check_in_detail_also_counts_kinds_sizes_and_reasons() {
    let (_root, index) = spoilt();
    let mut plain = None;
    for threads in [1, 3] {
        let mut report = check_in_detail(&index, PICTURES, Depth::Full, threads, &mut |_, _| ());
        let mut tally = std::mem::take(&mut report.tally);
        assert_eq!(report, quiet(&index, Depth::Full, threads));
        assert_eq!(tally.sizes.values().sum::<usize>(), 200);
        assert_eq!(tally.kinds.len(), 1);
        let faults: Vec<_> = tally.faults.iter().map(|(kind, count)| (*kind, *count)).collect();
        assert_eq!(faults, [("damaged", 1), ("not an image", 1)]);
        tally.beginnings.sort_unstable();
        // Images of bad samples may be among them.
        assert!((200..=202).contains(&tally.beginnings.len()));
        assert_eq!(*plain.get_or_insert(tally.clone()), tally);
    }
}

#[test]
fn more_than_one_percent_is_an_error() {
    let (root, index) = spoilt();
    let index = index.kept(&|image| image > 1).unwrap();
    assert!(index.without_bad(&quiet(&index, Depth::Full, 2)).is_ok(), "2 of 200 are 1%");
    let index = index.kept(&|image| image > 0).unwrap();
    let text = index.without_bad(&quiet(&index, Depth::Full, 2)).unwrap_err().to_string();
    assert!(text.starts_with("2 of 199 images cannot be used, more than the 1%"), "{text}");
    assert!(
        text.contains(&format!("\n  {}: damaged", root.path().join("train/a/050.png").display())),
        "{text}"
    );
    assert!(text.contains("b/007.png: not an image"), "{text}");
}

#[test]
fn many_bad_images_are_listed_in_part() {
    let root = tempfile::tempdir().unwrap();
    for number in 0..8 {
        put(root.path().join(format!("train/a/{number}.png")), b"");
    }
    let index = classes::scan(root.path(), "train", None).unwrap();
    let text = index.without_bad(&quiet(&index, Depth::Header, 2)).unwrap_err().to_string();
    assert!(text.starts_with("8 of 8 images") && text.contains("a/4.png: the file is empty"), "{text}");
    assert!(!text.contains("a/5.png") && text.ends_with("and 3 more"), "{text}");
}

#[test]
fn losing_all_images_of_a_class_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    folder(root.path(), "train", &[("a", 150)]);
    put(root.path().join("train/rare/1.png"), b"");
    let index = classes::scan(root.path(), "train", None).unwrap();
    let text = index.without_bad(&quiet(&index, Depth::Full, 2)).unwrap_err().to_string();
    assert!(text.starts_with("no image of class `rare` can be used"), "{text}");
    assert!(text.contains("rare/1.png: the file is empty"), "{text}");
    // A class without samples before the check, as in a test split, is not lost.
    let index = classes::scan(root.path(), "train", None).unwrap().kept(&|image| image < 150).unwrap();
    assert_eq!(index.without_bad(&quiet(&index, Depth::Full, 2)).unwrap(), index);
}

#[test]
fn files_that_cannot_be_opened_are_bad() {
    let (_root, index) = train(&[("a", 2)]);
    fs::remove_file(index.image_path(0)).unwrap();
    for depth in [Depth::Header, Depth::Full] {
        let report = quiet(&index, depth, 1);
        assert_eq!(report.bad.len(), 1);
        assert!(
            report.bad[0].reason.starts_with("the file cannot be read: No such file"),
            "{}",
            report.bad[0].reason
        );
    }
}

#[cfg(unix)]
#[test]
fn a_file_without_permission_is_bad() {
    use std::os::unix::fs::PermissionsExt;
    let (_root, index) = train(&[("a", 1)]);
    fs::set_permissions(index.image_path(0), fs::Permissions::from_mode(0o000)).unwrap();
    let report = with_permissions(|| quiet(&index, Depth::Full, 1));
    assert!(report.bad[0].reason.contains("denied"));
}

#[test]
fn a_header_far_into_the_file_is_found() {
    // TIFF keeps its directory behind the pixels.
    let root = tempfile::tempdir().unwrap();
    let tiff = encoded(gradient(300, 300), ImageFormat::Tiff);
    assert!(tiff.len() > 2 * crate::regular::HEADER_BYTES);
    put(root.path().join("train/a/1.tif"), &tiff);
    let index = classes::scan(root.path(), "train", None).unwrap();
    assert_eq!(quiet(&index, Depth::Header, 1).bad, []);
}

#[test]
fn images_that_are_not_resized_have_one_size() {
    let (root, index) = train(&[("a", 100), ("b", 50)]);
    put(root.path().join("train/a/000.png"), b"bad");
    let needs = Needs { resize: Resize::None, ..PICTURES };
    let found = |index: &Samples| index.without_bad(&check(index, needs, Depth::Header, 2, &mut |_, _| ()));
    assert_eq!(found(&index).unwrap().size, Some((8, 8)));
    assert_eq!(index.without_bad(&quiet(&index, Depth::Header, 2)).unwrap().size, None);
    put(root.path().join("train/b/007.png"), &png(8, 12));
    let text = found(&index).unwrap_err().to_string();
    assert!(text.contains("train/b/007.png has 8x12 pixels, but "), "{text}");
    assert!(
        text.contains("train/a/001.png has 8x8; data.resize = \"none\"")
            && text.contains("\"crop\" or \"stretch\""),
        "{text}"
    );
    // The test split must have the training images' size.
    let mut index = index.kept(&|image| image < 100).unwrap();
    index.size = Some((32, 8));
    let text = found(&index).unwrap_err().to_string();
    assert!(text.contains("but every training image has 32x8"), "{text}");
}

#[test]
fn the_channels_are_checked() {
    let (_root, index) = train(&[("a", 3)]);
    for depth in [Depth::Header, Depth::Full] {
        let bad = |channels| {
            let needs = Needs { channels, ..PICTURES };
            check(&index, needs, depth, 1, &mut |_, _| ()).bad
        };
        assert_eq!(bad(3), []);
        assert_eq!(bad(1), [], "the brightness of a picture");
        assert_eq!(bad(4).len(), 3);
        assert!(bad(4)[0].reason.contains("set data.channels = 3"), "{}", bad(4)[0].reason);
    }
}

#[test]
fn nothing_to_check_is_no_error() {
    let root = tempfile::tempdir().unwrap();
    folder(root.path(), "train", &[("a", 1)]);
    let index = classes::scan(root.path(), "train", None).unwrap().kept(&|_| false).unwrap();
    assert_eq!(quiet(&index, Depth::Full, 4), CheckReport { checked: 0, ..CheckReport::default() });
}

#[test]
fn the_depth_follows_the_size() {
    assert_eq!(Depth::for_len(10_000), Depth::Full);
    assert_eq!(Depth::for_len(10_001), Depth::Header);
}

#[test]
fn a_real_set_is_good() {
    let Ok(root) = test_data("cifar100") else { return };
    let index = classes::scan(&root, "test", None).unwrap();
    assert_eq!(quiet(&index, Depth::Full, 2), CheckReport { checked: 1000, ..CheckReport::default() });
}

proptest! {
    #[test]
    fn one_percent_is_exact(bad in 0usize..1000, total in 1usize..50_000) {
        prop_assert_eq!(too_many_bad(bad, total), bad as f64 / total as f64 > 0.01);
    }
}

#[test]
fn parts_of_a_list_have_one_limit_on_bad_samples() {
    let report = |bad: usize, checked| {
        let sample = |index| BadSample { index, path: String::new(), reason: String::new() };
        CheckReport { bad: (0..bad).map(sample).collect(), checked, ..CheckReport::default() }
    };
    let (mut train, mut val) = (report(0, 450), report(1, 50));
    assert!(val.good(50).is_err());
    CheckReport::join_limit([&mut train, &mut val]).unwrap();
    assert!(val.good(50).is_ok());
    let all = CheckReport::join_limit([&mut report(5, 450), &mut report(1, 50)]).unwrap_err().to_string();
    assert!(all.starts_with("6 of 500 images"), "{all}");
}
