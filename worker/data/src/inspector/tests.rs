#![allow(clippy::unwrap_used)]

use dtrain_recipe::Resize;

use super::super::mask_rule::{MaskKind, MaskRule};
use super::super::pixel_target::MapRule;
use super::super::raster::{Labels, Values};
use super::*;
use crate::tests::images::{chunk, put, reference};

fn needs(orientation: Orientation, channels: usize) -> Needs {
    Needs { channels, resize: Resize::None, orientation, nodata: None, fill: None }
}

fn values(image: &Raster) -> &[u8] {
    match &image.values {
        Values::U8(values) => values,
        Values::F32(_) => panic!("8-bit values were expected"),
    }
}

#[test]
fn pictures_are_turned_as_in_pillow() {
    let stored = image::open(reference("pictures").join("turned-1.png")).unwrap().to_rgb8();
    for tag in 1..=8 {
        let shown = image::open(reference("pictures").join(format!("shown-{tag}.bmp"))).unwrap().to_rgb8();
        for ending in ["png", "webp", "tif", "jpg"] {
            let path = reference("pictures").join(format!("turned-{tag}.{ending}"));
            let mut inspector = Inspector::for_check();
            for (orientation, expected) in [(Orientation::Stored, &stored), (Orientation::Exif, &shown)] {
                for depth in [Depth::Header, Depth::Full] {
                    let size = inspector.image(&Stored::from(&*path), needs(orientation, 3), depth).unwrap();
                    assert_eq!(size, expected.dimensions(), "{tag} {ending} {orientation:?} {depth:?}");
                }
                let got = values(&inspector.image);
                match ending {
                    "jpg" => {
                        let off =
                            std::iter::zip(got, expected.as_raw()).map(|(a, b)| u64::from(a.abs_diff(*b)));
                        assert!(off.sum::<u64>() < 40 * got.len() as u64, "{tag} {orientation:?}");
                    }
                    _ => assert_eq!(got, expected.as_raw(), "{tag} {ending} {orientation:?}"),
                }
            }
            let marked = inspector.marks.unwrap().turned.files;
            assert_eq!(marked, if tag == 1 { 0 } else { 4 }, "{tag} {ending}");
            // Data in planes is turned like a picture.
            let mut grey = Inspector::default();
            grey.image(&Stored::from(&*path), needs(Orientation::Exif, 1), Depth::Full).unwrap();
            assert_eq!((grey.image.width, grey.image.height), shown.dimensions());
        }
    }
}

#[test]
fn exif_data_behind_the_pixels_is_found_at_both_depths() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("late.png");
    let file = std::fs::read(reference("pictures").join("turned-6.png")).unwrap();
    let place = |kind: &[u8]| file.windows(4).position(|it| it == kind).unwrap() - 4;
    let (exif, end) = (place(b"eXIf"), place(b"IEND"));
    let length = u32::from_be_bytes(file[exif..exif + 4].try_into().unwrap()) as usize + 12;
    let (early, rest) = (&file[exif..exif + length], &file[exif + length..end]);
    for padding in [0, 5_000, 100_000] {
        let mut late = [&file[..exif], rest].concat();
        chunk(b"paDd", &vec![0; padding], &mut late);
        let without = [&late[..], &file[end..]].concat();
        late.extend([early, &file[end..]].concat());
        for (file, is_turned) in [(late, true), (without, false)] {
            put(&path, &file);
            for depth in [Depth::Header, Depth::Full] {
                let mut inspector = Inspector::for_check();
                let stored =
                    inspector.image(&Stored::from(&*path), needs(Orientation::Stored, 3), depth).unwrap();
                let shown =
                    inspector.image(&Stored::from(&*path), needs(Orientation::Exif, 3), depth).unwrap();
                assert_ne!(stored.0, stored.1);
                let expected = if is_turned { (stored.1, stored.0) } else { stored };
                assert_eq!(shown, expected, "{padding} {depth:?}");
            }
        }
    }
}

#[test]
fn the_memory_of_a_huge_image_is_freed_and_results_are_kept() {
    let mut inspector =
        Inspector { file: vec![0; 100], raw: vec![0; KEPT_BYTES / 2], ..Inspector::for_check() };
    inspector.moments.push((3, Moments::default()));
    inspector.free_excess();
    assert_eq!(inspector.held_bytes(), KEPT_BYTES / 2 + 100);
    inspector.raw.resize(KEPT_BYTES, 0);
    inspector.free_excess();
    assert_eq!(inspector.held_bytes(), 0);
    assert_eq!((inspector.moments.len(), inspector.marks.is_some()), (1, true));
}

#[test]
fn targets_turn_like_images_of_one_channel() {
    for tag in 1..=8 {
        let path = reference("pictures").join(format!("turned-{tag}.tif"));
        let mut inspector = Inspector::default();
        inspector.image(&Stored::from(&*path), needs(Orientation::Stored, 1), Depth::Full).unwrap();
        let image = &inspector.image;
        let mut labels = Labels { width: image.width, height: image.height, values: values(image).to_vec() };
        decode::turn(&std::fs::read(&path).unwrap()).unwrap().labels(&mut labels);
        inspector.image(&Stored::from(&*path), needs(Orientation::Exif, 1), Depth::Full).unwrap();
        assert_eq!(values(&inspector.image), labels.values, "{tag}");
        assert_eq!((inspector.image.width, inspector.image.height), (labels.width, labels.height));
    }
}

#[test]
fn lossy_masks_are_errors_and_lossy_maps_are_marked() {
    let mask = MaskRule::unnamed(MaskKind::Binary, 2, 255);
    let map = MapRule { scale: 1.0, ignore: None, ..MapRule::PLAIN };
    for depth in [Depth::Header, Depth::Full] {
        let mut inspector = Inspector::for_check();
        let mut read = |name: &str, rule: PixelRule| {
            inspector
                .pixels(&Stored::from(&*reference("pictures").join(name)), &rule, Orientation::Stored, depth)
                .map_err(|error| error.to_string())
        };
        let error = read("mask-lossy.webp", mask.clone().into()).unwrap_err();
        assert!(error.contains("a lossy WebP file cannot be a mask"), "{error}");
        assert!(read("mask-jpeg.tif", mask.clone().into()).is_err());
        assert_eq!(read("mask-lossless.webp", mask.clone().into()), Ok((24, 24)));
        assert_eq!(read("mask-jpeg.tif", map.into()), Ok((24, 24)));
        assert_eq!(read("mask-lzw.tif", map.into()), Ok((24, 24)));
        let marks = inspector.marks.unwrap();
        assert_eq!((marks.lossy_maps.files, marks.turned.files), (1, 0));
        assert!(marks.lossy_maps.to_string().ends_with("mask-jpeg.tif"));
    }
}
