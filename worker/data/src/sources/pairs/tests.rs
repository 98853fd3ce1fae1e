#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use dtrain_recipe::{Orientation, Resize};
use dtrain_test_kit::programs::test_data;
use proptest::prelude::*;

use super::*;
use crate::check::COUNTED;
use crate::check::{CheckReport, check};
use crate::mask_rule::{MaskKind, MaskRule};
use crate::needs::{Depth, Needs};
use crate::raster::Labels;
use crate::samples::PixelSource;
use crate::tests::images::{gray, paths, png, put};

const RULE: MaskRule = MaskRule::unnamed(MaskKind::Index, 3, 255);

/// Makes folders `train` and `train_masks` of `count` pairs of 8x8 pixels, all of class 1.
fn pairs(count: usize) -> (tempfile::TempDir, Samples) {
    let root = tempfile::tempdir().unwrap();
    for number in 0..count {
        put(root.path().join(format!("train/{number:03}.png")), &png(8, 8));
        put(root.path().join(format!("train_masks/{number:03}.png")), &gray(8, 8, |_, _| 1));
    }
    let index = scan(root.path()).unwrap();
    (root, index)
}

fn scan(root: &Path) -> Result<Samples, DataError> {
    super::scan(root, "train", "train_masks", RULE.into(), None)
}

fn mask_files(samples: &Samples) -> &Files {
    match samples.pixels() {
        Some((PixelSource::Files(files), _)) => files,
        _ => panic!("no files of masks"),
    }
}

/// Returns the paths of the masks, below their folder.
fn mask_paths(samples: &Samples) -> Vec<String> {
    let files = mask_files(samples);
    (0..files.paths.len()).map(|at| files.paths.get(at)).collect()
}

fn mask_path(samples: &Samples, sample: usize) -> PathBuf {
    samples.stored(mask_files(samples), sample).to_string().into()
}

fn with_rule(mut samples: Samples, to: MaskRule) -> Samples {
    for list in &mut samples.lists {
        if let ListValues::Pixels(_, rule) = &mut list.values {
            *rule = to.clone().into();
        }
    }
    samples
}

fn checked(index: &Samples, resize: Resize, depth: Depth) -> CheckReport {
    let needs = Needs { channels: 3, resize, orientation: Orientation::Stored, nodata: None, fill: None };
    check(index, needs, depth, 2, &mut |_, _| ())
}

#[test]
fn pairs_are_found_by_name_whatever_the_ending() {
    let root = tempfile::tempdir().unwrap();
    for name in ["train/b.png", "train/a.JPG", "train/deep/er/c.tif", "train/a.b.png"] {
        put(root.path().join(name), b"unread");
    }
    for name in ["a.png", "b.bmp", "deep/er/c.png", "a.b.tiff", "notes.txt", ".hidden.png"] {
        put(root.path().join("train_masks").join(name), b"unread");
    }
    let index = scan(root.path()).unwrap();
    assert_eq!(paths(&index), ["a.JPG", "a.b.png", "b.png", "deep/er/c.tif"]);
    assert_eq!(mask_paths(&index), ["a.png", "a.b.tiff", "b.bmp", "deep/er/c.png"]);
    assert_eq!(index.image_path(0), root.path().join("train/a.JPG"));
    assert_eq!(mask_path(&index, 3), root.path().join("train_masks/deep/er/c.png"));
    assert_eq!(index.count(), 4);
    assert_eq!(index.ignored.to_string(), "1 .txt");
    // The index for other ranks leaves the ignored files out.
    let told = Samples { ignored: Ignored::default(), ..index };
    let bytes = serde_json::to_vec(&told).unwrap();
    assert_eq!(serde_json::from_slice::<Samples>(&bytes).unwrap(), told);
}

#[test]
fn missing_partners_are_listed() {
    let (root, _) = pairs(3);
    put(root.path().join("train/extra.png"), b"");
    put(root.path().join("train_masks/000b.png"), b"");
    put(root.path().join("train_masks/zebra.png"), b"");
    let text = scan(root.path()).unwrap_err().to_string();
    assert!(text.contains("1 image in "), "{text}");
    assert!(
        text.contains("train_masks: `extra.png`; 2 masks without an image: `000b.png`, `zebra.png`;"),
        "{text}"
    );
    std::fs::remove_file(root.path().join("train/extra.png")).unwrap();
    let text = scan(root.path()).unwrap_err().to_string();
    assert!(text.contains("0 images in ") && text.contains("train_masks; 2 masks"), "{text}");
}

#[test]
fn a_repeated_name_is_an_error() {
    let (root, _) = pairs(2);
    put(root.path().join("train_masks/001.bmp"), b"");
    let text = scan(root.path()).unwrap_err().to_string();
    assert!(
        text.contains("train_masks has the files `001.bmp` and `001.png`, which differ only in the ending"),
        "{text}"
    );
}

#[test]
fn missing_and_empty_folders_name_the_setting() {
    let root = tempfile::tempdir().unwrap();
    put(root.path().join("images/1.png"), b"");
    let text = scan(root.path()).unwrap_err().to_string();
    assert!(text.contains("has the folders `images`; set data.root, data.train and data.test"), "{text}");
    put(root.path().join("train/1.png"), b"");
    let text = scan(root.path()).unwrap_err().to_string();
    assert!(text.contains("set data.root, data.train_masks and data.test_masks"), "{text}");
    std::fs::create_dir(root.path().join("train_masks")).unwrap();
    let text = scan(root.path()).unwrap_err().to_string();
    assert!(text.contains(" has no images; ") && text.contains("train_masks"), "{text}");
    put(root.path().join("train_masks/1.mat"), b"");
    let text = scan(root.path()).unwrap_err().to_string();
    assert!(text.contains(" has no images (files that are no images to dtrain: 1 .mat); add"), "{text}");
}

#[test]
fn bad_masks_are_bad_samples() {
    let (root, index) = pairs(300);
    put(root.path().join("train_masks/007.png"), &gray(8, 8, |x, y| if (x, y) == (2, 3) { 9 } else { 255 }));
    put(root.path().join("train_masks/008.png"), &gray(4, 8, |_, _| 0));
    put(root.path().join("train_masks/009.png"), b"no mask");
    let report = checked(&index, Resize::Crop, Depth::Full);
    assert_eq!(report.bad.iter().map(|bad| bad.index).collect::<Vec<_>>(), [7, 8, 9]);
    assert!(report.bad[0].path.ends_with("train/007.png"), "{}", report.bad[0].path);
    let reason = &report.bad[0].reason;
    assert!(
        reason.starts_with("its mask ")
            && reason.contains("007.png: the mask has the value 9 at column 2, row 3"),
        "{reason}"
    );
    assert!(reason.contains("classes go from 0 to 2 and 255 means no class; set data.classes"), "{reason}");
    assert!(report.bad[1].reason.contains("has 4x8 pixels, but the image 8x8"), "{}", report.bad[1].reason);
    assert!(report.bad[2].reason.contains("not an image"), "{}", report.bad[2].reason);
    assert_eq!(index.without_bad(&report).unwrap().count(), 297);
    // Masks of a small set are always decoded.
    let quick = checked(&index, Resize::Crop, Depth::Header);
    assert_eq!(quick.bad, report.bad);
    assert_eq!(report.class_counts.masks, 297);
}

#[test]
fn many_masks_are_counted_in_part_unless_that_finds_one_class() {
    let (_root, index) = pairs(COUNTED + 100);
    let quick = checked(&index, Resize::Crop, Depth::Header);
    assert_eq!((quick.class_counts.masks, quick.class_counts.classes()), (COUNTED / 2 + 50, 1));
    let class_counts = |report: &CheckReport| index.class_counts(report, 2, 2, &mut |_, _| ());
    // For a test set one class is enough.
    assert_eq!(index.class_counts(&quick, 1, 2, &mut |_, _| ()), quick.class_counts);
    assert_eq!(class_counts(&quick).masks, COUNTED + 100);
    assert_eq!(class_counts(&quick).classes(), 1);
    // A mask that the check did not decode.
    put(mask_path(&index, 1), &gray(8, 8, |x, _| x as u8 % 3));
    let rare = class_counts(&quick);
    assert_eq!(rare.occurring().map(|(class, _)| class).collect::<Vec<_>>(), [0, 1, 2]);
    // A mask that the check decodes, so that no other is read.
    put(mask_path(&index, 0), &gray(8, 8, |x, _| x as u8 % 3));
    let quick = checked(&index, Resize::Crop, Depth::Header);
    assert_eq!(class_counts(&quick), quick.class_counts);
}

#[test]
fn wrong_classes_end_the_run_with_the_remedy() {
    let (_root, index) = pairs(5);
    let index = with_rule(index, MaskRule { classes: 1, ..RULE });
    let report = checked(&index, Resize::Crop, Depth::Full);
    let text = index.without_bad(&report).unwrap_err().to_string();
    assert!(text.starts_with("5 of 5 images cannot be used") && text.contains("set data.classes"), "{text}");
    let index = with_rule(index, MaskRule { classes: 1, ignore: 1, ..RULE });
    assert_eq!(checked(&index, Resize::Crop, Depth::Full).bad, []);
}

#[test]
fn the_common_size_is_that_of_the_first_good_image() {
    let (root, mut index) = pairs(150);
    put(root.path().join("train/000.png"), b"");
    let found = index.without_bad(&checked(&index, Resize::None, Depth::Header)).unwrap();
    assert_eq!((found.size, found.count()), (Some((8, 8)), 149));
    assert_eq!(index.without_bad(&checked(&index, Resize::Crop, Depth::Header)).unwrap().size, None);
    put(root.path().join("train/003.png"), &png(9, 8));
    put(root.path().join("train_masks/003.png"), &gray(9, 8, |_, _| 1));
    let text = index.without_bad(&checked(&index, Resize::None, Depth::Full)).unwrap_err().to_string();
    assert!(
        text.contains("train/003.png has 9x8 pixels, but ") && text.contains("train/001.png has 8x8;"),
        "{text}"
    );
    assert!(text.contains("set data.resize = \"crop\" or \"stretch\""), "{text}");
    // A test split must have the training images' size.
    index.size = Some((16, 16));
    let text = index.without_bad(&checked(&index, Resize::None, Depth::Header)).unwrap_err().to_string();
    assert!(text.contains("has 8x8 pixels, but every training image has 16x16"), "{text}");
}

#[test]
fn binary_masks_have_two_values() {
    let rule = MaskRule::unnamed(MaskKind::Binary, 2, 255);
    let mut labels = Labels { width: 4, height: 1, values: vec![0, 255, 7, 65535] };
    rule.apply(&mut labels).unwrap();
    assert_eq!(labels.values, [0, 1, 1, 1]);
}

#[test]
fn a_real_set_of_classes_pairs_up() {
    let Ok(root) = test_data("camvid") else { return };
    let rule = MaskRule::unnamed(MaskKind::Index, 11, 11);
    let index = super::scan(&root, "train", "trainannot", rule.into(), None).unwrap();
    assert_eq!(index.count(), 24);
    let report = checked(&index, Resize::None, Depth::Full);
    assert_eq!(index.without_bad(&report).unwrap().size, Some((480, 360)));
}

#[test]
fn a_real_binary_set_pairs_up() {
    let Ok(root) = test_data("membrane") else { return };
    let rule = MaskRule::unnamed(MaskKind::Binary, 2, 255);
    let index = super::scan(&root, "image", "label", rule.into(), None).unwrap();
    assert_eq!(index.count(), 30);
    let needs = Needs {
        channels: 1,
        resize: Resize::None,
        orientation: Orientation::Stored,
        nodata: None,
        fill: None,
    };
    let report = check(&index, needs, Depth::Full, 2, &mut |_, _| ());
    assert_eq!(index.without_bad(&report).unwrap().size, Some((512, 512)));
}

proptest! {
    /// Images and masks of the same name are paired, whatever the names.
    #[test]
    fn pairing_is_by_name(
        images in prop::collection::btree_set("[ab]{1,2}(/[ab]{1,2})?", 1..8),
        masks in prop::collection::btree_set("[ab]{1,2}(/[ab]{1,2})?", 1..8),
    ) {
        // A name may be both a folder and a file's stem; endings keep them apart.
        let root = tempfile::tempdir().unwrap();
        for name in &images {
            put(root.path().join("train").join(format!("{name}.png")), b"");
        }
        for name in &masks {
            put(root.path().join("train_masks").join(format!("{name}.bmp")), b"");
        }
        let result = scan(root.path());
        if images == masks {
            let index = result.unwrap();
            prop_assert_eq!(index.count(), images.len());
            for (image, mask) in paths(&index).iter().zip(mask_paths(&index)) {
                prop_assert_eq!(image.strip_suffix(".png"), mask.strip_suffix(".bmp"));
            }
        } else {
            let is_unpaired = matches!(result, Err(DataError::Unpaired(..)));
            prop_assert!(is_unpaired);
        }
    }
}

/// Writes empty files.
fn files(all: &[&str]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    all.iter().for_each(|name| put(root.path().join(name), b""));
    root
}

fn scan_by(root: &tempfile::TempDir, folders: [&str; 2], pair: &str) -> Result<Samples, String> {
    let pair = pair.parse().unwrap();
    super::scan(root.path(), folders[0], folders[1], RULE.into(), Some(&pair))
        .map_err(|error| error.to_string())
}

#[test]
fn patterns_pair_images_with_masks_of_other_names() {
    let root = files(&[
        "i/22_training.tif",
        "i/21_training.tif",
        "i/notes.txt",
        "m/21_manual1.gif",
        "m/22_manual1.gif",
        "m/21_manual2.gif",
    ]);
    let samples = scan_by(&root, ["i", "m"], "{id}_training -> {id}_manual1").unwrap();
    assert_eq!(paths(&samples), ["21_training.tif", "22_training.tif"]);
    assert_eq!(mask_paths(&samples), ["21_manual1.gif", "22_manual1.gif"]);
    let note = samples.ignored.notes();
    assert!(
        note.len() == 1
            && note[0].contains("1 file in ")
            && note[0].ends_with("are not of the form {id}_manual1 of data.pair: `21_manual2.gif`"),
        "{note:?}"
    );
    assert!(scan_by(&root, ["i", "m"], "{id}_* -> {id}_manual1").is_ok());
    // Cityscapes' folders.
    let root = files(&["i/bonn/bonn_1_left.png", "m/bonn/bonn_1_labels.png", "m/bonn/bonn_1_color.png"]);
    let samples = scan_by(&root, ["i", "m"], "{id}_left -> {id}_labels").unwrap();
    assert_eq!(mask_paths(&samples), ["bonn/bonn_1_labels.png"]);
}

#[test]
fn images_and_masks_may_be_in_one_folder() {
    let root = files(&["a/1.jpg", "a/1_1st.png", "a/1_2nd.png", "a/2.jpg", "a/2_1st.png", "a/2_2nd.png"]);
    let samples = scan_by(&root, ["a", "a"], "{id}.jpg -> {id}_1st.png").unwrap();
    assert_eq!(
        (paths(&samples), mask_paths(&samples)),
        (vec!["1.jpg".into(), "2.jpg".into()], vec!["1_1st.png".into(), "2_1st.png".into()])
    );
    assert_eq!(
        samples.ignored.notes().len(),
        2,
        "both sides leave out the second readings: {:?}",
        samples.ignored
    );
    let root = files(&["a/1.png", "a/1_mask.png", "a/2.png", "a/2_mask.png"]);
    let samples = scan_by(&root, ["a", "a"], "{id} -> {id}_mask").unwrap();
    assert_eq!(
        (paths(&samples).len(), samples.ignored.notes().len()),
        (2, 0),
        "a file of both forms is a mask"
    );
}

#[test]
fn errors_of_patterns_name_the_files_and_the_remedy() {
    let root = files(&["i/21_training.tif", "i/22_training.tif", "m/21_manual1.gif", "m/23_manual1.gif"]);
    let error = scan_by(&root, ["i", "m"], "{id}_training -> {id}_manual1").unwrap_err();
    assert!(error.contains("`22_training.tif`; 1 mask without an image: `23_manual1.gif`; "), "{error}");
    assert!(
        error.contains(
            "by data.pair = \"{id}_training -> {id}_manual1\", the mask of `22_training.tif` is `22_manual1`; correct the pattern"
        ),
        "{error}"
    );
    let error = scan_by(&root, ["i", "m"], "{id}_test -> {id}_manual1").unwrap_err();
    assert!(
        error.contains("no name in ")
            && error.contains("is of the form {id}_test of data.pair; the names are `21_training.tif`"),
        "{error}"
    );
    let root = files(&["i/1_a.png", "i/1_b.png", "m/1.png"]);
    let error = scan_by(&root, ["i", "m"], "{id}_* -> {id}").unwrap_err();
    assert!(
        error.contains("the files `1_a.png` and `1_b.png`, which are both {id} = `1` of {id}_* in data.pair"),
        "{error}"
    );
}
