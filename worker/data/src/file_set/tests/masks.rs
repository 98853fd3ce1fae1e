#![allow(clippy::unwrap_used)]

use super::super::*;
use crate::dataset::load_one;
use crate::mask_rule::{MaskKind, MaskRule};
use crate::rng::{Domain, keyed};
use crate::sources::pairs;
use crate::tests::images::{encoded, gray, png, put};
use dtrain_recipe::changes::{
    Affine, Invert, Jitter, PixelFilter, RandomCrop, Rot90, Rotation, VerticalFlip,
};
use dtrain_recipe::{Augment, Change};
use dtrain_test_kit::programs::test_data;
use image::{ImageFormat, Rgb, RgbImage};

const AUGMENTS: [Augment; 4] = [Augment::None, Augment::Flip, Augment::CropFlip, Augment::ResizedCropFlip];

fn options(side: u32, augment: Augment, resize: Resize, bytes: u64) -> ImageOptions {
    ImageOptions { resize, ..super::options(side, augment, bytes) }
}

/// Loads image and mask.
fn load(set: &FileSet, random: Option<u64>) -> (Vec<f32>, Vec<i64>) {
    let mut rng = random.map(|sample| keyed(Domain::Augment, 1, 0, sample));
    let columns = load_one(set, 0, rng.as_mut()).unwrap();
    (columns[0].as_f32().unwrap().to_vec(), columns[1].as_i64().unwrap().to_vec())
}

/// Makes one image in blocks of 8 pixels; its red is 20 times the mask's class plus 20.
fn blocks() -> (tempfile::TempDir, Samples) {
    let class = |x: u32, y: u32| (x / 8 + 3 * (y / 8)) as u8 % 11;
    let root = tempfile::tempdir().unwrap();
    let image = RgbImage::from_fn(64, 48, |x, y| Rgb([20 + 20 * class(x, y), 255, 0]));
    put(root.path().join("i/1.bmp"), &encoded(image, ImageFormat::Bmp));
    put(root.path().join("m/1.png"), &gray(64, 48, class));
    let rule = MaskRule::unnamed(MaskKind::Index, 11, 255);
    let index = pairs::scan(root.path(), "i", "m", rule.into(), None).unwrap();
    (root, index)
}

#[test]
fn a_mask_goes_where_its_image_goes() {
    let (_root, index) = blocks();
    for augment in AUGMENTS {
        for (resize, side) in [(Resize::Crop, 48), (Resize::Crop, 32), (Resize::Stretch, 40)] {
            let set = FileSet::new(index.clone(), options(side, augment, resize, 0));
            assert_eq!(set.fields()[1], Field::i64("mask", [side as usize, side as usize]));
            assert_eq!(set.len(), 1);
            let mut changed = false;
            for sample in 0..30 {
                let (image, mask) = load(&set, Some(sample));
                changed |= mask != load(&set, None).1;
                let pixels = (side * side) as usize;
                let mut right = 0;
                for (at, &class) in mask.iter().enumerate() {
                    let (red, green) = (image[at] * 255.0, image[pixels + at]);
                    // Green is full inside the image; pixels from outside are black and of no class.
                    assert_eq!(class == 255, green == 0.0, "{augment:?} {resize:?}");
                    right += usize::from(class == 255 || (red - 20.0 - 20.0 * class as f32).abs() < 1.0);
                }
                // At the borders of blocks a resized image has mixed colours, but its mask has not.
                assert!(right * 10 > pixels * 4, "{augment:?} {resize:?}: {right} of {pixels}");
            }
            assert_eq!(changed, augment != Augment::None);
        }
    }
}

/// Every kind of geometry but perspectives, before and after a change of colours.
fn moved(filter: PixelFilter) -> Changes {
    Changes::new(&[
        Change::VerticalFlip(VerticalFlip { share: 0.5 }),
        Change::Rotation(Rotation { degrees: 90.0, filter }),
        Change::Invert(Invert { share: 1.0 }),
        Change::Rot90(Rot90::default()),
        Change::Affine(Affine { filter, ..Affine::default() }),
    ])
}

#[test]
fn a_mask_turns_with_its_image() {
    let (_root, index) = blocks();
    let plain = options(48, Augment::None, Resize::Crop, 0);
    let set = FileSet::new(index, ImageOptions { changes: moved(PixelFilter::Nearest), ..plain });
    let mut outside = 0;
    for sample in 0..30 {
        let (image, mask) = load(&set, Some(sample));
        for (at, &class) in mask.iter().enumerate() {
            let red = (image[at] * 255.0).round() as i64;
            // A rotation before the colours leaves white, one after them black.
            assert!(
                if class == 255 { red == 255 || red == 0 } else { red == 255 - 20 - 20 * class },
                "{red} {class}"
            );
            outside += usize::from(class == 255);
        }
    }
    assert!((1000..40_000).contains(&outside), "{outside}");
}

#[test]
fn a_random_part_stands_anywhere_in_image_and_mask() {
    let (_root, index) = blocks();
    let changes = Changes::new(&[Change::RandomCrop(RandomCrop::default())]);
    // Scaled to 64 x 48 and to 48 x 48.
    for (resize, places) in [(Resize::Crop, 33 * 17), (Resize::Stretch, 17 * 17)] {
        let sets = [0, 1 << 20].map(|bytes| {
            let plain = options(32, Augment::None, resize, bytes);
            FileSet::new(
                index.clone(),
                ImageOptions { crop_fraction: 2.0 / 3.0, changes: changes.clone(), ..plain },
            )
        });
        let mut found = std::collections::HashSet::new();
        for sample in 0..400 {
            let (image, mask) = load(&sets[0], Some(sample));
            assert_eq!(load(&sets[1], Some(sample)), (image.clone(), mask.clone()), "from the cache");
            let right = |(red, class): (&f32, &i64)| (red * 255.0 - 20.0 - 20.0 * *class as f32).abs() < 1.0;
            let right = image.iter().zip(&mask).filter(|pixel| right(*pixel)).count();
            // A stretched image has mixed colours at the borders of blocks.
            let least = if resize == Resize::Crop { mask.len() } else { mask.len() * 4 / 10 };
            assert!(right >= least, "{resize:?}: {right} of {}", mask.len());
            found.insert(image.iter().map(|value| (value * 255.0) as u8).collect::<Vec<_>>());
        }
        // Blocks look alike in some places.
        assert!((places / 4..=places).contains(&found.len()), "{resize:?}: {} of {places}", found.len());
        assert_ne!(load(&sets[0], Some(1)), load(&sets[0], None));
    }
}

#[test]
fn an_image_that_is_not_square_cannot_make_quarter_turns() {
    let (_root, index) = blocks();
    let plain = ImageOptions { size: (64, 48), ..options(48, Augment::None, Resize::None, 0) };
    let set = FileSet::new(index, ImageOptions { changes: moved(PixelFilter::Nearest), ..plain });
    load(&set, None);
    let mut rng = keyed(Domain::Augment, 1, 0, 0);
    let text = load_one(&set, 0, Some(&mut rng)).unwrap_err().to_string();
    assert!(text.contains("64x48 pixels cannot be turned by 90 degrees"), "{text}");
}

#[test]
fn the_cache_changes_nothing() {
    let (_root, index) = blocks();
    let changes = Changes::new(&[
        Change::Jitter(Jitter::default()),
        Change::Rotation(Rotation::default()),
        Change::Rot90(Rot90::default()),
    ]);
    let sets = [0, 1 << 20].map(|bytes| {
        let plain = options(24, Augment::None, Resize::Stretch, bytes);
        FileSet::new(index.clone(), ImageOptions { changes: changes.clone(), ..plain })
    });
    for sample in 0..8 {
        assert_eq!(load(&sets[0], Some(sample)), load(&sets[1], Some(sample)));
    }
    for augment in AUGMENTS {
        let sets = [0, 1 << 20]
            .map(|bytes| FileSet::new(index.clone(), options(24, augment, Resize::Stretch, bytes)));
        for sample in 0..8 {
            assert_eq!(load(&sets[0], Some(sample)), load(&sets[1], Some(sample)), "{augment:?}");
            assert_eq!(load(&sets[0], None), load(&sets[1], None), "{augment:?}");
        }
    }
}

#[test]
fn a_bad_mask_is_a_bad_sample() {
    let (root, index) = blocks();
    put(root.path().join("m/1.png"), &gray(64, 48, |_, _| 12));
    let set = FileSet::new(index, options(8, Augment::None, Resize::Crop, 0));
    let text = load_one(&set, 0, None).unwrap_err().to_string();
    assert!(text.starts_with("its mask ") && text.contains("the value 12"), "{text}");
    put(root.path().join("m/1.png"), &gray(48, 48, |_, _| 1));
    let text = load_one(&set, 0, None).unwrap_err().to_string();
    assert!(text.contains("has 48x48 pixels, but the image 64x48; make both the same size"), "{text}");
    put(root.path().join("m/1.png"), &png(64, 48));
    let text = load_one(&set, 0, None).unwrap_err().to_string();
    assert!(text.contains("holds colours or fractions"), "{text}");
    assert!(set.describe(0).ends_with("i/1.bmp"));
}

#[test]
fn real_street_scenes_have_masks() {
    let Ok(root) = test_data("camvid") else { return };
    let rule = MaskRule::unnamed(MaskKind::Index, 11, 11);
    let index = pairs::scan(&root, "val", "valannot", rule.into(), None).unwrap();
    let set = FileSet::new(index, options(160, Augment::CropFlip, Resize::Stretch, 0));
    for sample in 0..set.len() {
        let columns = load_one(&set, sample, None).unwrap();
        let mask = columns[1].as_i64().unwrap();
        assert!(mask.iter().all(|value| (0..=11).contains(value)));
        assert!((0..11).filter(|class| mask.contains(class)).count() > 4);
    }
}
