//! Trainings on masks as data sets publish them: the same numbers as from masks whose values are classes, on any ranks.

use std::fs;

use dtrain_common::manifest::Manifest;
use dtrain_test_kit::thorough::{self, ranks};
use dtrain_tests::process::expect_exit_code;
use dtrain_tests::runs::{Run, Sandbox, assert_close};
use image::{DynamicImage, GrayImage, Luma, Rgb, RgbImage};
use serde_json::json;

use crate::bad_input::refused_by;

const RECIPE: &str = r#"
task = "segment"
[data]
root = "data"
image_size = 16
workers = 1
augment = "flip"
[model]
width = 4
depth = 2
batchnorm = "group:2"
[train]
effective_batch = 6
epochs = 2
seed = 3
[optim]
lr = 0.01
[log]
every_steps = 1
"#;

const SIDE: u32 = 16;
/// The training and the test images.
const SETS: [(&str, u32); 2] = [("train", 12), ("test", 4)];

/// The corner of a square of class 1, and its side.
fn square(number: u32) -> (u32, u32, u32) {
    (number % 5, number * 3 % 7, 5 + number % 4)
}

fn class(number: u32, x: u32, y: u32) -> u8 {
    let (left, top, side) = square(number);
    u8::from((left..left + side).contains(&x) && (top..top + side).contains(&y))
}

fn picture(number: u32) -> DynamicImage {
    let shade = |x, y| [60 + 120 * class(number, x, y), (x * 9) as u8, (y * 7 + number) as u8];
    RgbImage::from_fn(SIDE, SIDE, |x, y| Rgb(shade(x, y))).into()
}

/// Returns a mask of these values for the classes.
fn mask(number: u32, values: [u8; 2]) -> DynamicImage {
    GrayImage::from_fn(SIDE, SIDE, |x, y| Luma([values[usize::from(class(number, x, y))]])).into()
}

fn save(sandbox: &Sandbox, path: &str, image: &DynamicImage) {
    let path = sandbox.path("data").join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    image.save(path).unwrap();
}

/// Trains on other ranks too, and compares.
fn same_on_ranks(sandbox: &Sandbox, name: &str, sets: &[&str], wanted: &[f64]) {
    for &ranks in thorough::cases(&[3, 2], 1) {
        let run = sandbox.train(ranks, &format!("{name}-{ranks}"), sets);
        assert_close(wanted, &run.per_step("loss"), 1e-5);
    }
}

fn manifest(run: &Run) -> Manifest {
    Manifest::read(&run.0.latest()).unwrap()
}

/// Masks whose values are classes beside the same masks as DRIVE's folders, as COCO's annotations and in colours.
#[test]
fn masks_in_any_form_give_the_same_training() {
    let sandbox = Sandbox::new(RECIPE);
    for (set, count) in SETS {
        for number in 0..count {
            save(&sandbox, &format!("{set}/{number:02}.png"), &picture(number));
            save(&sandbox, &format!("{set}_masks/{number:02}.png"), &mask(number, [0, 1]));
        }
    }
    let plain = sandbox.train(1, "plain", &["data.classes=2"]);
    let losses = plain.per_step("loss");
    assert!(manifest(&plain).class_names.is_empty() && manifest(&plain).extra.is_null());

    for (set, count) in SETS {
        for number in 0..count {
            save(&sandbox, &format!("{set}ing/images/{number:02}_{set}ing.tif"), &picture(number));
            // The encoder takes colours.
            let mask = mask(number, [0, 255]).to_rgb8().into();
            save(&sandbox, &format!("{set}ing/1st_manual/{number:02}_manual1.gif"), &mask);
        }
    }
    let drive = [
        "data.train=training/images",
        "data.train_masks=training/1st_manual",
        "data.test=testing/images",
        "data.test_masks=testing/1st_manual",
        "data.pair={id}_* -> {id}_manual1",
        "data.masks=binary",
    ];
    assert_eq!(sandbox.train(1, "drive", &drive).per_step("loss"), losses);
    same_on_ranks(&sandbox, "drive", &drive, &losses);

    for (set, count) in SETS {
        let images = (0..count)
            .map(|id| json!({"id": id, "file_name": format!("{id:02}.png"), "width": SIDE, "height": SIDE}));
        let annotation = |id: u32| {
            let (x, y, side) = square(id);
            let (right, bottom) = (x + side, y + side);
            json!({"id": id, "image_id": id, "category_id": 9, "segmentation": [[x, y, right, y, right, bottom, x, bottom]]})
        };
        let document = json!({
            "images": images.collect::<Vec<_>>(),
            "annotations": (0..count).map(annotation).collect::<Vec<_>>(),
            "categories": [{"id": 9, "name": "square"}],
        });
        fs::create_dir_all(sandbox.path("data/annotations")).unwrap();
        fs::write(sandbox.path(&format!("data/annotations/{set}.json")), document.to_string()).unwrap();
    }
    let coco = [
        "data.kind=coco",
        "data.train_masks=annotations/train.json",
        "data.test_masks=annotations/test.json",
    ];
    let run = sandbox.train(1, "coco", &coco);
    assert_eq!(run.per_step("loss"), losses);
    assert_eq!(
        (manifest(&run).classes, manifest(&run).class_names),
        (2, vec!["background".into(), "square".into()])
    );
    same_on_ranks(&sandbox, "coco", &coco, &losses);

    for (set, count) in SETS {
        for number in 0..count {
            let color = |x, y| if class(number, x, y) == 1 { [128, 64, 128] } else { [128, 192, 255] };
            let mask = RgbImage::from_fn(SIDE, SIDE, |x, y| Rgb(color(x, y))).into();
            save(&sandbox, &format!("{set}_colors/{number:02}.png"), &mask);
        }
    }
    fs::write(sandbox.path("colors.csv"), "name,r,g,b\nsky,128,192,255\nroad,128,64,128\nvoid,0,0,0\n")
        .unwrap();
    let file = format!("data.mask_colors={}", sandbox.path("colors.csv").display());
    let colors = [
        "data.train_masks=train_colors",
        "data.test_masks=test_colors",
        "data.ignore_classes=[\"void\"]",
        &file,
    ];
    let run = sandbox.train(1, "colors", &colors);
    assert_eq!(run.per_step("loss"), losses);
    assert_eq!(manifest(&run).class_names, ["sky", "road"]);
    assert_eq!(manifest(&run).extra, json!({"colors": {"mask": ["#80C0FF", "#804080"]}}));
    // Predicted masks have these colours.
    let predict = sandbox.dtrain(&["predict", "colors", "data/test", "-o", "predicted"]).output().unwrap();
    expect_exit_code(&predict, 0);
    let predicted = image::open(sandbox.path("predicted/mask/00.png")).unwrap().to_rgb8();
    assert!(predicted.pixels().all(|pixel| [[0x80, 0xC0, 0xFF], [0x80, 0x40, 0x80]].contains(&pixel.0)));
}

/// Folders as COD10K's: JPEG images, and grey masks of which more than 128 is the object.
/// COD10K's folders: the first images of Test by name are the validation samples.
#[test]
fn the_first_test_samples_validate_as_a_folder_of_them() {
    let sandbox = Sandbox::new(RECIPE);
    for (set, numbers) in [("train", 0..12), ("val", 0..2), ("test", 2..4)] {
        for number in numbers {
            let (picture, mask) = (picture(number), mask(number, [0, 1]));
            save(&sandbox, &format!("{set}/{number:02}.png"), &picture);
            save(&sandbox, &format!("{set}_masks/{number:02}.png"), &mask);
            let part = if set == "train" { "Train" } else { "Test" };
            save(&sandbox, &format!("{part}/Image/{number:02}.png"), &picture);
            save(&sandbox, &format!("{part}/GT_Object/{number:02}.png"), &mask);
        }
    }
    let folders = ["data.train=Train/Image", "data.train_masks=Train/GT_Object", "data.test=Test/Image"];
    let more = ["data.test_masks=Test/GT_Object", "data.val=test:0.5"];
    let tested = ["data.classes=2", "test.weights=last"];
    let of_test = sandbox.train(1, "of-test", &[&folders[..], &more, &tested].concat());
    let named = sandbox.train(2, "named", &[&["data.val=val"][..], &tested].concat());
    assert_close(&of_test.per_step("loss"), &named.per_step("loss"), 1e-5);
    let losses =
        |run: &Run| run.evaluations().iter().filter_map(|eval| eval["loss"].as_f64()).collect::<Vec<_>>();
    assert_close(&losses(&of_test), &losses(&named), 1e-5);
    assert_close(&[of_test.result().test["loss"]], &[named.result().test["loss"]], 1e-5);
    assert_eq!((&of_test.plan()["val_samples"], &of_test.plan()["test_samples"]), (&json!(2), &json!(2)));
}

#[test]
fn grey_masks_have_a_threshold() {
    let sandbox = Sandbox::new(RECIPE);
    for (set, folder, count) in [("train", "Train", 12), ("test", "Test", 4)] {
        for number in 0..count {
            save(&sandbox, &format!("{folder}/Image/{number:02}.jpg"), &picture(number));
            save(&sandbox, &format!("{folder}/GT_Object/{number:02}.png"), &mask(number, [128, 129]));
            save(&sandbox, &format!("{set}_masks/{number:02}.png"), &mask(number, [0, 1]));
        }
    }
    let folders = ["data.train=Train/Image", "data.test=Test/Image"];
    let plain = sandbox.train(1, "plain", &[&folders[..], &["data.classes=2"]].concat()).per_step("loss");
    let masks =
        ["data.train_masks=Train/GT_Object", "data.test_masks=Test/GT_Object", "data.masks=threshold"];
    let cod = [&folders[..], &masks].concat();
    assert_eq!(sandbox.train(1, "cod", &cod).per_step("loss"), plain);
    same_on_ranks(&sandbox, "cod", &cod, &plain);
}

#[test]
fn colors_without_a_class_are_named_with_files_and_pixels() {
    let sandbox = Sandbox::new(RECIPE);
    for (set, count) in SETS {
        for number in 0..count {
            save(&sandbox, &format!("{set}/{number:02}.png"), &picture(number));
            save(&sandbox, &format!("{set}_masks/{number:02}.png"), &mask(number, [0, 250]));
        }
    }
    let sets = ["data.mask_colors={ ground = \"#000000\", square = \"#FFFFFF\" }", "train.steps=1"];
    let pixels: u32 = (0..12).map(|number| square(number).2.pow(2)).sum();
    let found =
        format!("#FAFAFA in 12 files ({pixels} pixels; nearest: square #FFFFFF, 5 levels away); add them");
    let words = [
        "12 of 12 images cannot be used",
        "have a colour that data.mask_colors lacks, namely #FAFAFA",
        &found,
        "set data.mask_tolerance = 5",
    ];
    refused_by(&mut sandbox.command(ranks(), "refused", &sets, &[]), &words);
    let with = [&sets[..], &["data.mask_tolerance=5"]].concat();
    let text = expect_exit_code(&sandbox.launch(ranks(), "tolerant", &with), 0);
    assert!(text.contains("pixels by class in 12 masks of train_masks: ground "), "{text}");
}
