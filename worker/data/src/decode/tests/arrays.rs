//! Arrays of NumPy and JPEG 2000, compared with what NumPy and Pillow (OpenJPEG) read.

use proptest::prelude::*;

use super::super::super::raster::Labels;
use super::super::*;
use crate::tests::images::reference;

fn file(name: &str) -> Vec<u8> {
    std::fs::read(reference("formats").join(name)).unwrap()
}

fn data(bytes: &[u8], channels: usize) -> Result<Raster> {
    let mut out = Raster { values: Values::F32(vec![7.0; 9]), ..Raster::default() };
    pixels(bytes, channels, &mut vec![7; 5], &mut out)?;
    assert_eq!(header(bytes, channels)?, (out.width, out.height));
    Ok(out)
}

/// Value (y, x, c) of every array is c * 100 + y * 10 + x, of 3 rows, 4 columns and 2 channels.
fn expected(channels: usize) -> Vec<u16> {
    let rows = |c| (0..3).flat_map(move |y| (0..4).map(move |x| c * 100 + y * 10 + x));
    (0..channels as u16).flat_map(rows).collect()
}

#[test]
fn arrays_of_any_layout_and_type_are_images() {
    for name in ["u8.npy", "u8-first.npy", "u8-fortran.npy", "one.npz", "named.npz"] {
        let image = data(&file(name), 2).unwrap();
        assert_eq!((image.width, image.height, image.channels), (4, 3, 2), "{name}");
        let values: Vec<u8> = expected(2).iter().map(|value| *value as u8).collect();
        assert_eq!(image.values, Values::U8(values), "{name}");
    }
    for name in ["f4.npy", "f8-big.npy"] {
        let values = expected(1).iter().map(|value| f32::from(*value) / 4.0).collect();
        assert_eq!(data(&file(name), 1).unwrap().values, Values::F32(values), "{name}");
    }
    let words = expected(2).iter().map(|value| f32::from(*value) / 65535.0).collect();
    assert_eq!(data(&file("u2-big.npy"), 2).unwrap().values, Values::F32(words));
    // A picture has its colours side by side, in both layouts.
    for name in ["rgb.npy", "rgb-first.npy"] {
        let values: Vec<u8> =
            (0..12).flat_map(|at| [0, 1, 2].map(|c| (c * 80 + at / 4 * 10 + at % 4) as u8)).collect();
        assert_eq!(data(&file(name), 3).unwrap().values, Values::U8(values), "{name}");
    }
}

#[test]
fn arrays_are_masks_and_maps() {
    for name in ["i8-mask.npy", "bool-mask.npy", "f4-mask.npy", "named.npz"] {
        let mut labels = Labels::default();
        mask(&file(name), &mut Vec::new(), &mut labels).unwrap();
        assert_eq!(
            (labels.width, labels.height, mask_header(&file(name)).unwrap()),
            (4, 3, (4, 3)),
            "{name}"
        );
        let classes: Vec<u16> =
            (0..12).map(|at| if name.starts_with("bool") { at % 2 } else { at % 3 }).collect();
        assert_eq!(labels.values, classes, "{name}");
    }
    let mut out = Raster::default();
    assert_eq!(map(&file("f4.npy"), None, &mut Vec::new(), &mut out).unwrap().white, 1.0);
    assert_eq!((map_header(&file("f4.npy")).unwrap(), lossy(&file("f4.npy")).unwrap()), ((4, 3), None));
    let white = map(&file("u2-map.npy"), None, &mut Vec::new(), &mut out).unwrap().white;
    assert_eq!(
        (white, &out.values),
        (65535.0, &Values::F32(expected(1).iter().map(|value| f32::from(*value) / 65535.0).collect()))
    );
}

#[test]
fn wrong_arrays_are_named_with_the_remedy() {
    let mut labels = Labels::default();
    let said = |result: Result<()>| result.unwrap_err().to_string();
    let image = |name: &str, channels| data(&file(name), channels).map(drop);
    let cases = [
        (
            said(image("u8.npy", 5)),
            "it has 2 channels, expected 5; set data.channels = 2 or convert the image",
        ),
        (
            said(image("i8-mask.npy", 1)),
            "an image is no array of the type i64; save it as uint8, uint16, float32 or float64",
        ),
        (
            said(image("vector.npy", 1)),
            "an array of the shape [5] is no image; save it with the shape height x width",
        ),
        (said(image("text.npy", 1)), "an array of the type \"<U2\" is not supported"),
        (
            said(image("several.npz", 1)),
            "the archive has the arrays `a`, `b`, and none is named `image`; save one array in a file, or give it this name",
        ),
        (
            said(image("nan.npy", 1)),
            "the data has 1 values that are not finite (the first is NaN, at column 1, row 2 of channel 0)",
        ),
        (said(image("f4.npy", 3)), "it has 1 channels, expected 3"),
        (
            said(mask(&file("negative.npy"), &mut Vec::new(), &mut labels)),
            "this array has the value -1; save the numbers of classes",
        ),
        (said(mask(&file("f4.npy"), &mut Vec::new(), &mut labels)), "this array has the value 0.25"),
        (said(data(&file("u8.npy")[..140], 2).map(drop)), "damaged: the file is truncated"),
    ];
    for (said, expected) in cases {
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn jpeg_2000_gives_the_pixels_of_openjpeg() {
    for name in ["lossless.jp2", "lossy.jp2", "rate.jp2", "grey.jp2", "tiles.j2k", "alpha.jp2"] {
        let bytes = file(name);
        let mut rgb = Vec::new();
        let size = rgb8(&bytes, &mut Vec::new(), &mut rgb).unwrap();
        let shown = image::open(reference("formats").join(name).with_extension("png")).unwrap().to_rgb8();
        assert_eq!((size, header(&bytes, 3).unwrap()), (shown.dimensions(), size), "{name}");
        assert!(rgb == *shown.as_raw(), "{name}");
    }
    let words = data(&file("words.jp2"), 1).unwrap();
    let shown = image::open(reference("formats").join("words.png")).unwrap().to_luma16();
    let expected: Vec<f32> = shown.iter().map(|&value| f32::from(value) / 65535.0).collect();
    assert_eq!(words.values, Values::F32(expected));
    for (name, problem) in [
        ("few-bits.j2k", "JPEG 2000 of 1 bands of 4 bits is not supported"),
        ("signed.j2k", "JPEG 2000 of signed values is not supported"),
    ] {
        let said = data(&file(name), 1).unwrap_err().to_string();
        assert!(said.starts_with(problem), "{said}");
    }
    // Four bands, of which none is opacity.
    let bands = file("bands.j2k");
    assert_eq!(data(&bands, 4).unwrap().channels, 4);
    assert!(data(&bands, 3).unwrap_err().to_string().contains("4 band(s) of data"));
    assert!(matches!(data(&bands, 1), Err(SampleError::Channels { found: 4, expected: 1 })));
    // Wherever the file ends early.
    for name in ["lossless.jp2", "tiles.j2k"] {
        let whole = file(name);
        for length in (40..whole.len() - 2).step_by(131) {
            let said = data(&whole[..length], 3).unwrap_err().to_string();
            assert!(said.contains("damaged: "), "{name} {length}: {said}");
        }
    }
    let white = map(&file("grey.jp2"), None, &mut Vec::new(), &mut Raster::default()).unwrap().white;
    assert_eq!((lossy(&file("grey.jp2")).unwrap(), white), (Some("JPEG 2000"), 255.0));
}

/// The checksum of an archive's member is compared, also of one that is not compressed.
#[test]
fn a_changed_value_in_an_archive_is_an_error() {
    for name in ["named.npz", "one.npz"] {
        let whole = file(name);
        let (right, mut errors) = (data(&whole, 2).unwrap().values, 0);
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x40;
            match data(&bytes, 2) {
                Ok(image) => assert_eq!(image.values, right, "{name}: {at}"),
                Err(_) => errors += 1,
            }
        }
        assert!(errors > 24, "{name}: the values alone have 24 bytes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Whatever a byte is changed to, decoding ends with an image or an error.
    #[test]
    fn damage_never_panics(kind in 0usize..6, at: prop::sample::Index, value: u8, cut: prop::sample::Index, channels in 1usize..4) {
        let names = ["u8.npy", "f8-big.npy", "one.npz", "lossy.jp2", "tiles.j2k", "i8-mask.npy"];
        let mut bytes = file(names[kind]);
        let place = at.index(bytes.len());
        bytes[place] = value;
        let keep = cut.index(bytes.len()) + 1;
        for bytes in [&bytes[..], &bytes[..keep]] {
            let (mut out, mut labels) = (Raster::default(), Labels::default());
            let _ = header(bytes, channels);
            if pixels(bytes, channels, &mut Vec::new(), &mut out).is_ok() {
                prop_assert_eq!(out.values.len(), out.width as usize * out.height as usize * channels);
            }
            if mask(bytes, &mut Vec::new(), &mut labels).is_ok() {
                prop_assert_eq!(labels.values.len(), labels.width as usize * labels.height as usize);
            }
        }
    }
}
