#![allow(clippy::unwrap_used)]

use super::super::*;
use super::options;
use crate::check::check;
use crate::dataset::load_one;
use crate::needs::Needs;
use crate::normalize::Normalize;
use crate::pixel_target::MapRule;
use crate::rng::{Domain, keyed};
use crate::sources::pairs;
use crate::tests::images::{encoded, gray, png, put};
use dtrain_recipe::Augment;
use dtrain_test_kit::programs::test_data;
use image::{ImageBuffer, ImageFormat, Luma};

fn pair(image: &[u8], map: &[u8], rule: MapRule) -> (tempfile::TempDir, Samples) {
    let root = tempfile::tempdir().unwrap();
    put(root.path().join("i/1.png"), image);
    put(root.path().join("m/1.png"), map);
    let index = pairs::scan(root.path(), "i", "m", rule.into(), None).unwrap();
    (root, index)
}

/// Returns image and map.
fn load(set: &FileSet, random: Option<u64>) -> Result<(Vec<f32>, Vec<f32>)> {
    let mut rng = random.map(|sample| keyed(Domain::Augment, 1, 0, sample));
    let columns = load_one(set, 0, rng.as_mut())?;
    let values = |column: &Column| column.as_f32().unwrap().to_vec();
    Ok((values(&columns[0]), values(&columns[1])))
}

#[test]
fn a_map_goes_where_its_image_goes() {
    // The map's grey is the image's, and grey 0 is no number.
    let grey = |x: u32, y: u32| (40 + x / 8 * 20 + y / 8 * 30) as u8;
    let rule = MapRule { scale: 1.0, ignore: Some(40), ..MapRule::PLAIN };
    let (_root, index) = pair(&gray(32, 32, grey), &gray(32, 32, grey), rule);
    for augment in [Augment::None, Augment::Flip, Augment::CropFlip, Augment::ResizedCropFlip] {
        let sets = [0, 1 << 20].map(|bytes| FileSet::new(index.clone(), options(32, augment, bytes)));
        assert_eq!(sets[0].fields()[1], Field::f32("map", [32, 32]));
        for sample in 0..10 {
            let (image, map) = load(&sets[0], Some(sample)).unwrap();
            let cached = load(&sets[1], Some(sample)).unwrap();
            // NaN is not equal to itself.
            assert_eq!(format!("{:?}", (&image, &map)), format!("{cached:?}"), "{augment:?}");
            let right = image.iter().zip(&map).filter(|(pixel, number)| {
                // Pixels from outside of the image are black.
                let none = **pixel == 0.0 || (**pixel * 255.0 - 40.0).abs() < 0.5;
                if none { number.is_nan() } else { (**pixel - **number).abs() < 0.01 }
            });
            let share = right.count() as f64 / map.len() as f64;
            // At the borders of blocks a resized image has mixed values, but its map has not.
            let least = if augment == Augment::ResizedCropFlip { 0.4 } else { 1.0 };
            assert!(share >= least, "{augment:?}: {share}");
        }
    }
}

#[test]
fn maps_of_16_bits_keep_their_steps() {
    let words = ImageBuffer::<Luma<u16>, _>::from_fn(4, 1, |x, _| Luma([[0, 1, 9, 65535][x as usize]]));
    let rule = MapRule { scale: 65535.0, ignore: Some(9), ..MapRule::PLAIN };
    let (_root, index) = pair(&gray(4, 1, |_, _| 1), &encoded(words, ImageFormat::Png), rule);
    let options = ImageOptions { size: (4, 1), resize: Resize::None, ..options(1, Augment::None, 0) };
    let (_, map) = load(&FileSet::new(index, options), None).unwrap();
    assert!(map[2].is_nan(), "{map:?}");
    assert!((map[1] - 1.0).abs() < 1e-6 && map[0] == 0.0 && map[3] == 65535.0, "{map:?}");
}

#[test]
fn a_coloured_map_is_a_bad_sample() {
    let rule = MapRule { scale: 1.0, ignore: None, ..MapRule::PLAIN };
    let (root, index) = pair(&png(8, 8), &png(8, 8), rule);
    let said = |index: &Samples| {
        let set = FileSet::new(index.clone(), options(8, Augment::None, 0));
        load(&set, None).unwrap_err().to_string()
    };
    assert!(
        said(&index).contains("but this image has 3 channels; save it as a grey PNG"),
        "{}",
        said(&index)
    );
    let needs = Needs {
        channels: 3,
        resize: Resize::Crop,
        orientation: Orientation::Stored,
        nodata: None,
        fill: None,
    };
    let report = check(&index, needs, Depth::Header, 1, &mut |_, _| ());
    assert!(report.bad[0].reason.contains("this image has 3 channels"), "{report:?}");
    put(root.path().join("m/1.png"), &gray(8, 4, |_, _| 1));
    assert!(said(&index).contains("has 8x4 pixels, but the image 8x8"), "{}", said(&index));
}

#[test]
fn real_heights_are_metres() {
    let Ok(data) = test_data("heights") else { return };
    // An image and its map have the same name but for "img" and "lab".
    let root = tempfile::tempdir().unwrap();
    for part in ["img", "lab"] {
        std::fs::create_dir(root.path().join(part)).unwrap();
        for entry in std::fs::read_dir(data.join(part)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().replace(part, "tile");
            std::os::unix::fs::symlink(&path, root.path().join(part).join(name)).unwrap();
        }
    }
    let index = pairs::scan(
        root.path(),
        "img",
        "lab",
        MapRule { scale: 1.0, ignore: None, ..MapRule::PLAIN }.into(),
        None,
    )
    .unwrap();
    let needs = Needs {
        channels: 4,
        resize: Resize::None,
        orientation: Orientation::Stored,
        nodata: None,
        fill: None,
    };
    let checked = |threads| check(&index, needs, Depth::Full, threads, &mut |_, _| ());
    let report = checked(2);
    assert!(report.bad.is_empty(), "{:?}", report.bad);
    let moments = report.moments;
    assert_eq!(moments.count, 7 * 400 * 400);
    assert!(moments.min >= 0.0 && (50.0..100.0).contains(&moments.max), "{moments:?}");
    assert_eq!(checked(1).moments, moments, "whatever the number of threads");
    let options = ImageOptions {
        channels: 4,
        normalize: Normalize::new(&[0.0; 4], &[1.0; 4]),
        ..options(128, Augment::CropFlip, 0)
    };
    let set = FileSet::new(index, options);
    let columns = load_one(&set, 0, None).unwrap();
    assert!(columns[1].as_f32().unwrap().iter().all(|height| (0.0..=moments.max as f32).contains(height)));
}
