//! Masks.

#![allow(clippy::unwrap_used)]

use image::{DynamicImage, GrayImage, ImageBuffer, ImageFormat, Luma, LumaA, Rgb};

use super::super::super::color_table::ColorTable;
use super::super::super::mask_rule::{MaskKind, MaskRule};
use super::super::super::raster::Labels;
use super::super::*;
use super::raw_tiff::{le, tiff};
use crate::tests::images::{encoded, gradient, gray, raw_png, reference};

fn labels(bytes: &[u8]) -> Result<(Vec<u16>, (u32, u32)), SampleError> {
    let mut out = Labels { values: vec![9; 3], ..Labels::default() };
    bears(MaskKind::Index, bytes)?;
    mask(bytes, &mut vec![7; 5], &mut out)?;
    assert_eq!(mask_header(bytes)?, (out.width, out.height));
    Ok((out.values, (out.width, out.height)))
}

fn bears(kind: MaskKind, bytes: &[u8]) -> Result<(), SampleError> {
    MaskRule::unnamed(kind, 2, 255).check_loss(lossy(bytes)?)
}

/// Returns the colours and the classes of a mask with a threshold.
fn painted(bytes: &[u8], level: u16) -> Result<(Vec<u8>, Vec<u16>), SampleError> {
    let (mut rgb, mut out) = (vec![1; 2], Labels { values: vec![9; 3], ..Labels::default() });
    above(bytes, level, &mut vec![7; 5], &mut rgb, &mut out)?;
    assert_eq!(colors_header(bytes)?, (out.width, out.height));
    let size = colors(bytes, &mut Vec::new(), &mut rgb);
    assert!(size.is_err() || size? == (out.width, out.height));
    Ok((rgb, out.values))
}

/// Compares with Pillow, whose arrays `make_masks.py` wrote: indexes or values, colours, and brightness above 128.
#[test]
fn masks_of_many_formats_are_those_of_pillow() {
    let folder = reference("masks");
    let cases: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("masks.json")).unwrap()).unwrap();
    let cases = cases.as_object().unwrap();
    assert!(cases.len() >= 12, "{}", cases.len());
    for (name, case) in cases {
        let bytes = std::fs::read(folder.join(name)).unwrap();
        let numbers = |key: &str| -> Option<Vec<u16>> { serde_json::from_value(case[key].clone()).unwrap() };
        if let Some(values) = numbers("values") {
            assert_eq!(labels(&bytes).unwrap().0, values, "{name}");
        }
        let (rgb, classes) = painted(&bytes, 128).unwrap();
        assert_eq!(classes, numbers("above").unwrap(), "{name}");
        if let Some(wanted) = numbers("rgb") {
            assert_eq!(rgb.into_iter().map(u16::from).collect::<Vec<_>>(), wanted, "{name}");
        }
    }
}

#[test]
fn a_threshold_takes_wide_values_as_they_are() {
    let grey16 = ImageBuffer::<Luma<u16>, _>::from_raw(3, 1, vec![300u16, 301, 65535]).unwrap();
    for format in [ImageFormat::Png, ImageFormat::Tiff] {
        let bytes = encoded(DynamicImage::ImageLuma16(grey16.clone()), format);
        assert_eq!(painted(&bytes, 300).unwrap().1, [0, 1, 1], "{format:?}");
    }
    for (values, classes) in [([0.5f32, 1.5], [0, 1]), ([-3.0, f32::NAN], [0, 0])] {
        let floats = le(&values, f32::to_le_bytes);
        assert_eq!(painted(&tiff(1, 32, 3, 1, &floats).bytes(), 1).unwrap().1, classes);
    }
    assert!(painted(&encoded(gradient(9, 9), ImageFormat::Jpeg), 100).is_ok());
    assert!(painted(b"hello", 1).is_err());
    let whole = encoded(gradient(32, 32), ImageFormat::Gif);
    assert!(painted(&whole, 100).is_ok());
    assert!(painted(&whole[..whole.len() / 2], 100).unwrap_err().to_string().starts_with("damaged"));
}

#[test]
fn masks_keep_exact_values() {
    assert_eq!(labels(&gray(3, 1, |x, _| 100 * x as u8)).unwrap(), (vec![0, 100, 200], (3, 1)));
    // Not scaled to 255, unlike a picture.
    let bits = raw_png(3, 2, 1, 0, &[], &[0, 0b1010_0000, 0, 0b0100_0000]);
    assert_eq!(labels(&bits).unwrap(), (vec![1, 0, 1, 0, 1, 0], (3, 2)));
    assert_eq!(labels(&raw_png(5, 1, 2, 0, &[], &[0, 0b0001_1011, 0b1000_0000])).unwrap().0, [0, 1, 2, 3, 2]);
    assert_eq!(labels(&raw_png(3, 1, 4, 0, &[], &[0, 0x3f, 0xa0])).unwrap().0, [3, 15, 10]);
    // The index in the palette, not the colour.
    let colors = [9; 48];
    let palette = |bits, line: &[u8]| raw_png(3, 1, bits, 3, &[(b"PLTE", &colors[..3 << bits.min(4)])], line);
    assert_eq!(labels(&palette(8, &[0, 4, 0, 7])).unwrap().0, [4, 0, 7]);
    assert_eq!(labels(&palette(4, &[0, 0x40, 0x70])).unwrap().0, [4, 0, 7]);
    assert_eq!(labels(&palette(1, &[0, 0b0100_0000])).unwrap().0, [0, 1, 0]);
    let grey16 = ImageBuffer::<Luma<u16>, _>::from_raw(2, 1, vec![300u16, 65535]).unwrap();
    for format in [ImageFormat::Png, ImageFormat::Tiff] {
        let bytes = encoded(DynamicImage::ImageLuma16(grey16.clone()), format);
        assert_eq!(labels(&bytes).unwrap().0, [300, 65535], "{format:?}");
    }
    let clear = ImageBuffer::<LumaA<u8>, _>::from_raw(2, 1, vec![9u8, 255, 8, 0]).unwrap();
    assert_eq!(labels(&encoded(DynamicImage::ImageLumaA8(clear), ImageFormat::Png)).unwrap().0, [9, 8]);
    let same = image::RgbImage::from_raw(2, 1, vec![5, 5, 5, 11, 11, 11]).unwrap();
    for format in [ImageFormat::Png, ImageFormat::Bmp, ImageFormat::WebP] {
        assert_eq!(labels(&encoded(same.clone(), format)).unwrap().0, [5, 11], "{format:?}");
    }
    let wide = ImageBuffer::<Rgb<u16>, _>::from_raw(1, 1, vec![700u16; 3]).unwrap();
    assert_eq!(labels(&encoded(DynamicImage::ImageRgb16(wide), ImageFormat::Png)).unwrap().0, [700]);
    assert_eq!(labels(&tiff(1, 8, 1, 1, &[3, 200]).bytes()).unwrap().0, [3, 200]);
    let floats = le(&[1.0f32, 12.0], f32::to_le_bytes);
    assert_eq!(labels(&tiff(1, 32, 3, 1, &floats).bytes()).unwrap().0, [1, 12]);
}

#[test]
fn files_that_are_not_masks_are_errors() {
    let said = |bytes: &[u8]| labels(bytes).unwrap_err().to_string();
    assert!(
        said(&encoded(GrayImage::new(8, 8), ImageFormat::Jpeg)).starts_with("a JPEG file cannot be a mask")
    );
    for format in [ImageFormat::Png, ImageFormat::Bmp] {
        assert!(
            said(&encoded(gradient(4, 4), format)).contains("this image of 3 channel(s) holds colours"),
            "{format:?}"
        );
    }
    let halves = le(&[0.5f32, 1.0], f32::to_le_bytes);
    assert!(said(&tiff(1, 32, 3, 1, &halves).bytes()).contains("colours or fractions"));
    let below = le(&[-1.0f32, f32::NAN], f32::to_le_bytes);
    assert!(said(&tiff(1, 32, 3, 1, &below).bytes()).contains("colours or fractions"));
    assert!(said(&tiff(3, 8, 1, 2, &[0; 6]).bytes()).contains("this image of 3 channel(s) holds colours"));
    assert_eq!(said(b""), "the file is empty");
    assert!(said(b"hello").starts_with("not an image"));
    let whole = gray(64, 64, |x, y| (x * y) as u8);
    assert!(said(&whole[..whole.len() - 30]).starts_with("damaged"));
}

#[test]
fn a_map_of_several_bands_has_the_remedy_for_maps() {
    let error = super::super::map::map_header(&tiff(3, 8, 1, 2, &[0; 6]).bytes()).unwrap_err().to_string();
    assert!(error.contains("this image has 3 channels; save it as a grey PNG"), "{error}");
}

#[test]
fn masks_are_refused_for_their_compression_and_not_for_their_ending() {
    let read = |name: &str| std::fs::read(reference("pictures").join(name)).unwrap();
    for name in ["mask-lossless.webp", "mask-lossless-animated.webp", "mask-lzw.tif"] {
        let (values, size) = labels(&read(name)).unwrap();
        assert_eq!(size, (24, 24));
        assert!(
            values.iter().all(|&value| value == 0 || value == 255) && values[9 + 24 * 12] == 255,
            "{name}"
        );
        assert_eq!(lossy(&read(name)).unwrap(), None, "{name}");
    }
    let strip = |webp: &[u8]| {
        let mut bytes = tiff(1, 8, 1, 1, webp).bytes();
        let uncompressed = [3, 1, 3, 0, 1, 0, 0, 0, 1, 0];
        let at = memchr::memmem::rfind(&bytes, &uncompressed).unwrap() + 8;
        bytes[at..at + 2].copy_from_slice(&50001u16.to_le_bytes());
        bytes
    };
    for (bytes, kind) in [
        (read("mask-lossy.webp"), "lossy WebP"),
        (read("mask-lossy-with-alpha.webp"), "lossy WebP"),
        (read("mask-lossy-animated.webp"), "lossy WebP"),
        (read("mask-jpeg.tif"), "JPEG-compressed TIFF"),
        (strip(&read("mask-lossy.webp")), "TIFF with lossy WebP inside"),
    ] {
        let error = labels(&bytes).unwrap_err().to_string();
        assert!(error.starts_with(&format!("a {kind} file cannot be a mask")), "{error}");
        assert!(
            error.contains("from their source")
                && error.ends_with("set data.masks = \"threshold\", if they are black and white")
        );
        bears(MaskKind::Threshold(128), &bytes).unwrap();
        let table = |tolerance| MaskKind::Colors(ColorTable { entries: Vec::new(), tolerance });
        bears(table(1), &bytes).unwrap();
        let error = bears(table(0), &bytes).unwrap_err().to_string();
        assert!(
            error.ends_with("Else set data.mask_tolerance to the levels by which colours may differ"),
            "{error}"
        );
        assert_eq!(lossy(&bytes).unwrap(), Some(kind));
    }
    assert_eq!(lossy(&strip(&read("mask-lossless.webp"))).unwrap(), None);
    assert!(lossy(&read("mask-lossy.webp")[..12]).is_err(), "more of the file is needed");
}
