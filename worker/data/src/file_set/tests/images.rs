#![allow(clippy::unwrap_used)]

use dtrain_test_kit::programs::test_data;
use image::ImageFormat;

use super::super::*;
use super::options;
use crate::SampleError;
use crate::cache::CacheBudget;
use crate::dataset::{Column, load_one};
use crate::rng::{Domain, keyed};
use crate::sources::classes;
use crate::tests::images::{encoded, gradient, put, train};
use dtrain_recipe::Augment;

/// Returns the values of one image.
fn image(set: &FileSet, index: usize, random: Option<&mut SampleRng>) -> Result<Vec<f32>, SampleError> {
    let columns = load_one(set, index, random)?;
    Ok(columns[0].as_f32().unwrap().into_owned())
}

fn rng(sample: u64) -> SampleRng {
    keyed(Domain::Augment, 1, 0, sample)
}

#[test]
fn an_image_is_read_and_flipped_for_half_of_the_samples() {
    let (_root, index) = train(&[("a", 1), ("b", 1)]);
    let set = FileSet::new(index, options(8, Augment::Flip, 0));
    assert_eq!((set.len(), set.samples.classes().0.len()), (2, 2));
    let normalize = Normalize::new(&[0.0; 3], &[1.0; 3]);
    assert_eq!(set.fields(), [Field::image("image", [3, 8, 8], normalize), Field::i64("label", [])]);
    assert_eq!(load_one(&set, 1, None).unwrap()[1], Column::I64(vec![1]));
    assert!(set.describe(1).ends_with("train/b/000.png"));
    let upright = image(&set, 0, None).unwrap();
    let pixels = gradient(8, 8);
    for (x, y, pixel) in pixels.enumerate_pixels() {
        for c in 0..3 {
            let value = upright[c * 64 + (y * 8 + x) as usize];
            assert!((value * 255.0 - f32::from(pixel.0[c])).abs() < 1e-3);
        }
    }
    let mirrored: Vec<f32> = upright.chunks(8).flat_map(|row| row.iter().rev().copied()).collect();
    let mut flipped = 0;
    for sample in 0..200 {
        let out = image(&set, 0, Some(&mut rng(sample))).unwrap();
        assert!(out == upright || out == mirrored);
        flipped += usize::from(out == mirrored);
    }
    assert!((75..125).contains(&flipped), "{flipped} of 200");
}

#[test]
fn a_bad_image_is_an_error_and_leaves_the_set_usable() {
    let (root, index) = train(&[("a", 2)]);
    put(root.path().join("train/a/000.png"), b"no image");
    let set = FileSet::new(index, options(4, Augment::Flip, 0));
    assert!(matches!(image(&set, 0, None), Err(SampleError::NotAnImage(_))));
    image(&set, 1, None).unwrap();
    std::fs::remove_file(set.samples.image_path(1)).unwrap();
    assert!(matches!(image(&set, 1, None), Err(SampleError::Read(_))));
    assert_eq!(set.idle.lock().unwrap().len(), 1, "one thread needs one working memory");
}

#[test]
fn a_large_photograph_becomes_a_small_square() {
    let Ok(root) = test_data("chase") else { return };
    let photograph = root.join("Image_01L.jpg");
    let folder = tempfile::tempdir().unwrap();
    put(folder.path().join("train/eye/1.jpg"), &std::fs::read(photograph).unwrap());
    let index = classes::scan(folder.path(), "train", None).unwrap();
    let set = FileSet::new(index, options(224, Augment::Flip, 0));
    let out = image(&set, 0, None).unwrap();
    let mean = |plane: usize| out[plane * 224 * 224..][..224 * 224].iter().sum::<f32>() / (224.0 * 224.0);
    assert!(mean(0) > mean(1) && mean(1) > mean(2), "a retina is red: {} {} {}", mean(0), mean(1), mean(2));
    assert!(out.iter().all(|value| (0.0..=1.0).contains(value)));
}

fn train_folder(side: u32) -> (tempfile::TempDir, Samples) {
    let root = tempfile::tempdir().unwrap();
    for (number, format) in [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Bmp].into_iter().enumerate() {
        let image = gradient(side + 7 * number as u32, side + 3);
        put(root.path().join(format!("train/a/{number}.png")), &encoded(image, format));
    }
    let index = classes::scan(root.path(), "train", None).unwrap();
    (root, index)
}

#[test]
fn the_cache_changes_nothing_but_the_work() {
    for augment in [Augment::None, Augment::Flip, Augment::CropFlip, Augment::ResizedCropFlip] {
        for resize in [Resize::Crop, Resize::Stretch] {
            let (root, index) = train_folder(40);
            let with = |bytes: u64| ImageOptions {
                changes: Changes::new(&augment.changes()),
                resize,
                cache: CacheBudget::new(bytes),
                ..ImageOptions::square(24)
            };
            // Room for no image, for some, for all.
            let sets = [0, 7_000, 1 << 20].map(|bytes| FileSet::new(index.clone(), with(bytes)));
            for epoch in 0..3 {
                for sample in [0, 1, 2, 1] {
                    let load = |set: &FileSet, random: bool| {
                        let mut rng = keyed(Domain::Augment, 1, epoch, sample as u64);
                        image(set, sample, random.then_some(&mut rng)).unwrap()
                    };
                    for random in [false, true] {
                        let expected = load(&sets[0], random);
                        assert!(
                            sets.iter().all(|set| load(set, random) == expected),
                            "{augment:?} {resize:?}"
                        );
                    }
                }
            }
            drop(root);
            for sample in 0..3 {
                assert!(image(&sets[0], sample, None).is_err());
                image(&sets[2], sample, None).unwrap();
            }
            let [none, some, all] = sets.map(|set| set.options.cache.used());
            assert_eq!(none, 0);
            assert!(some <= 7_000 && all > 3 * 24 * 24 * 3, "{some} {all}");
        }
    }
}

/// Also for another rank, which finds what this one has decoded.
#[test]
fn smaller_files_are_the_same_from_any_cache() {
    let (_root, index) = train_folder(100);
    for augment in [Augment::None, Augment::ResizedCropFlip] {
        let with = |decode: Decode, bytes: u64| ImageOptions {
            changes: Changes::new(&augment.changes()),
            decode,
            cache: CacheBudget::new(bytes),
            ..ImageOptions::square(24)
        };
        let set = |decode, bytes| FileSet::new(index.clone(), with(decode, bytes));
        // Room for no image, for some, for all; the last two are ranks of one machine.
        let sets = [0, 12_000, 1 << 20, 40_000, 40_000].map(|bytes| set(Decode::Scaled, bytes));
        let ticket = sets[3].options.cache.create_pool(2).unwrap().unwrap();
        sets[4].options.cache.open_pool(ticket).unwrap();
        let exact = set(Decode::Exact, 0);
        for epoch in 0..4 {
            for sample in [0, 1, 2, 1] {
                let load = |set: &FileSet| {
                    let mut rng = keyed(Domain::Augment, 1, epoch, sample as u64);
                    image(set, sample, Some(&mut rng)).unwrap()
                };
                let expected = load(&sets[0]);
                assert!(sets.iter().all(|set| load(set) == expected), "{augment:?} {epoch} {sample}");
                // Only the second is a JPEG file; a small part of it keeps its size.
                let is_same = load(&exact) == expected;
                assert!(is_same || sample == 1, "{augment:?} {epoch} {sample}");
                assert!(!is_same || sample != 1 || augment != Augment::None, "{augment:?} {epoch}");
            }
        }
    }
}

#[test]
fn without_resizing_another_size_is_an_error() {
    let (_root, index) = train_folder(40);
    let options = ImageOptions {
        resize: Resize::None,
        size: (40, 43),
        changes: Changes::new(&Augment::CropFlip.changes()),
        ..ImageOptions::square(1)
    };
    let set = FileSet::new(index, options);
    assert_eq!(set.fields()[0].shape, [3, 43, 40]);
    assert_eq!(image(&set, 0, None).unwrap().len(), 3 * 40 * 43);
    let text = image(&set, 1, Some(&mut rng(1))).unwrap_err().to_string();
    assert!(text.starts_with("it has 47x43 pixels, expected 40x43; set data.resize"), "{text}");
}

#[test]
fn satellite_tiles_keep_their_bands() {
    let Ok(root) = test_data("heights") else { return };
    let folder = tempfile::tempdir().unwrap();
    for name in ["img/img_bj0216.tif", "lab/lab_bj0216.tif"] {
        let class = name.split('/').next().unwrap();
        put(folder.path().join("train").join(class).join("1.tif"), &std::fs::read(root.join(name)).unwrap());
    }
    let index = classes::scan(folder.path(), "train", None).unwrap();
    let options = |channels: usize, scale: f64| ImageOptions {
        channels,
        normalize: Normalize::new(&vec![0.0; channels], &vec![scale; channels]),
        ..ImageOptions::square(100)
    };
    let heights = FileSet::new(index.clone(), options(1, 1.0));
    let metres = image(&heights, 1, None).unwrap();
    let highest = metres.iter().copied().fold(0.0, f32::max);
    assert!((3.0..=84.0).contains(&highest), "{highest} m");
    let text = image(&heights, 0, None).unwrap_err().to_string();
    assert!(text.starts_with("it has 4 channels, expected 1; set data.channels = 4"), "{text}");
    let index = index.kept(&|image| image < 1).unwrap();
    let tiles = FileSet::new(index, options(4, 1.0 / 65535.0));
    let values = image(&tiles, 0, None).unwrap();
    assert_eq!(values.len(), 4 * 100 * 100);
    // Means of the 16-bit numbers by band (by numpy, from the PackBits strips); resizing keeps them.
    let mean = |band: usize| values[band * 10_000..][..10_000].iter().sum::<f32>() / 10_000.0;
    for (band, of_file) in [893.06, 847.79, 1012.60, 2807.70].into_iter().enumerate() {
        let found = mean(band);
        assert!((found / of_file - 1.0).abs() < 0.01, "band {band}: {found}");
    }
}

#[test]
fn a_cached_image_is_cut_once() {
    let (_root, index) = train(&[("a", 2)]);
    put(index.image_path(0), &encoded(gradient(40, 30), ImageFormat::Png));
    let of = |bytes| ImageOptions { crop_fraction: 0.5, ..options(8, Augment::Flip, bytes) };
    let (cached, plain) = (FileSet::new(index.clone(), of(1 << 20)), FileSet::new(index, of(0)));
    let expected = load_one(&plain, 0, None).unwrap();
    for _ in 0..2 {
        assert_eq!(load_one(&cached, 0, None).unwrap(), expected);
    }
    let whole = FileSet::new(plain.samples.clone(), options(8, Augment::Flip, 0));
    assert_ne!(load_one(&whole, 0, None).unwrap(), expected);
}
