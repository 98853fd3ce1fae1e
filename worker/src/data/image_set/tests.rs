#![allow(clippy::unwrap_used)]

use super::super::dataset::{Column, load_one};
use super::super::rng::{Domain, keyed};
use super::super::test_images::{folder, gradient, put, real};
use super::*;

fn plain() -> Normalize {
    Normalize::new([0.0; 3], [1.0; 3])
}

/// The values of one image.
fn image(set: &ImageFolder, index: usize, random: Option<&mut SampleRng>) -> Result<Vec<f32>, SampleError> {
    let mut columns = load_one(set, index, random)?;
    match columns.swap_remove(0) {
        Column::F32(values) => Ok(values),
        Column::I64(_) => panic!("an image has floating-point values"),
    }
}

fn rng(sample: u64) -> SampleRng {
    keyed(Domain::Augment, 1, 0, sample)
}

#[test]
fn an_image_is_read_and_flipped_for_half_of_the_samples() {
    let root = tempfile::tempdir().unwrap();
    folder(root.path(), "train", &[("a", 1), ("b", 1)]);
    let set = ImageFolder::new(ImageIndex::scan(root.path(), "train", None).unwrap(), 8, plain());
    assert_eq!(
        (set.len(), set.classes(), set.image_size(), set.label(1)),
        (2, 2, 8, 1)
    );
    assert_eq!(
        set.fields(),
        [Field::f32("image", [3, 8, 8]), Field::i64("label", [])]
    );
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
    let mirrored: Vec<f32> = upright
        .chunks(8)
        .flat_map(|row| row.iter().rev().copied())
        .collect();
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
    let root = tempfile::tempdir().unwrap();
    folder(root.path(), "train", &[("a", 2)]);
    put(root.path().join("train/a/000.png"), b"no image");
    let set = ImageFolder::new(ImageIndex::scan(root.path(), "train", None).unwrap(), 4, plain());
    assert!(matches!(
        image(&set, 0, None),
        Err(SampleError::NotAnImage { .. })
    ));
    image(&set, 1, None).unwrap();
    std::fs::remove_file(set.index().path(1)).unwrap();
    assert!(matches!(image(&set, 1, None), Err(SampleError::Read { .. })));
    assert_eq!(
        set.idle.lock().unwrap().len(),
        1,
        "one thread needs one working memory"
    );
}

#[test]
fn a_large_photograph_becomes_a_small_square() {
    let Some(root) = real("chase") else { return };
    let photograph = root.join("Image_01L.jpg");
    let folder = tempfile::tempdir().unwrap();
    put(
        folder.path().join("train/eye/1.jpg"),
        &std::fs::read(photograph).unwrap(),
    );
    let set = ImageFolder::new(
        ImageIndex::scan(folder.path(), "train", None).unwrap(),
        224,
        plain(),
    );
    let out = image(&set, 0, None).unwrap();
    let mean = |plane: usize| out[plane * 224 * 224..][..224 * 224].iter().sum::<f32>() / (224.0 * 224.0);
    assert!(
        mean(0) > mean(1) && mean(1) > mean(2),
        "a retina is red: {} {} {}",
        mean(0),
        mean(1),
        mean(2)
    );
    assert!(out.iter().all(|value| (0.0..=1.0).contains(value)));
}
