//! Images whose channels are data.

#![allow(clippy::unwrap_used)]

use std::io::Cursor;

use dtrain_test_kit::programs::test_data;
use image::{DynamicImage, GrayImage, ImageBuffer, ImageFormat, Luma, LumaA, Rgb, Rgba};
use proptest::prelude::*;
use tiff::encoder::compression::DeflateLevel;
use tiff::encoder::{Compression, TiffEncoder, colortype};

use super::super::super::raster::Labels;
use super::super::*;
use super::raw_tiff::{Tiff, le, tiff};
use crate::tests::images::{bytes_of, encoded, gradient, gray, png, raw_png, reference};

fn data(bytes: &[u8], channels: usize) -> Result<Raster, SampleError> {
    // Old content of the memory must not show.
    let mut out = Raster { values: Values::F32(vec![7.0; 9]), ..Raster::default() };
    pixels(bytes, channels, &mut vec![7; 5], &mut out)?;
    assert_eq!(header(bytes, channels)?, (out.width, out.height));
    assert_eq!(out.channels, channels);
    Ok(out)
}

fn floats_of(image: Raster) -> Vec<f32> {
    match image.values {
        Values::F32(values) => values,
        Values::U8(values) => panic!("floating-point values were expected, not {values:?}"),
    }
}

fn text(bytes: &[u8], channels: usize) -> String {
    let error = data(bytes, channels).unwrap_err().to_string();
    println!("{error}");
    error
}

#[test]
fn one_channel_is_grey_or_the_brightness() {
    let grey = gray(3, 1, |x, _| 50 * x as u8);
    assert_eq!(bytes_of(data(&grey, 1).unwrap()), [0, 50, 100]);
    let bits = raw_png(3, 1, 1, 0, &[], &[0, 0b1010_0000]);
    assert_eq!(bytes_of(data(&bits, 1).unwrap()), [255, 0, 255]);
    let two = raw_png(4, 1, 2, 0, &[], &[0, 0b0001_1011]);
    assert_eq!(bytes_of(data(&two, 1).unwrap()), [0, 85, 170, 255]);
    let four = raw_png(2, 1, 4, 0, &[], &[0, 0x3f]);
    assert_eq!(bytes_of(data(&four, 1).unwrap()), [51, 255]);
    let grey16 = ImageBuffer::<Luma<u16>, _>::from_raw(3, 1, vec![0u16, 13107, 65535]).unwrap();
    for format in [ImageFormat::Png, ImageFormat::Tiff] {
        let bytes = encoded(DynamicImage::ImageLuma16(grey16.clone()), format);
        assert_eq!(floats_of(data(&bytes, 1).unwrap()), [0.0, 0.2, 1.0], "{format:?}");
    }
    // Pillow's convert("L") of these colours.
    let rgb = image::RgbImage::from_raw(4, 1, vec![255, 0, 0, 0, 255, 0, 0, 0, 255, 10, 200, 30]).unwrap();
    for format in [ImageFormat::Png, ImageFormat::Bmp, ImageFormat::Tiff, ImageFormat::WebP] {
        let bytes = encoded(rgb.clone(), format);
        assert_eq!(bytes_of(data(&bytes, 1).unwrap()), [76, 150, 29, 124], "{format:?}");
    }
    let rgb16 = ImageBuffer::<Rgb<u16>, _>::from_raw(1, 1, vec![65535u16, 0, 0]).unwrap();
    let bytes = encoded(DynamicImage::ImageRgb16(rgb16), ImageFormat::Png);
    assert_eq!(floats_of(data(&bytes, 1).unwrap()), [0.299]);
    let clear = ImageBuffer::<LumaA<u8>, _>::from_raw(2, 1, vec![9u8, 255, 9, 0]).unwrap();
    let bytes = encoded(DynamicImage::ImageLumaA8(clear), ImageFormat::Png);
    assert_eq!(bytes_of(data(&bytes, 1).unwrap()), [9, 255]);
    let palette = raw_png(2, 1, 8, 3, &[(b"PLTE", &[0, 0, 0, 255, 0, 0])], &[0, 1, 0]);
    assert_eq!(bytes_of(data(&palette, 1).unwrap()), [76, 0]);
    let jpeg = encoded(GrayImage::from_pixel(8, 8, Luma([99])), ImageFormat::Jpeg);
    assert!(bytes_of(data(&jpeg, 1).unwrap()).iter().all(|value| value.abs_diff(99) < 2));
}

#[test]
fn channels_of_pictures_can_be_data() {
    let rgba = image::RgbaImage::from_raw(2, 1, vec![1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    let bytes = encoded(rgba, ImageFormat::Png);
    assert_eq!(bytes_of(data(&bytes, 4).unwrap()), [1, 5, 2, 6, 3, 7, 4, 8]);
    let rgba16 = ImageBuffer::<Rgba<u16>, _>::from_raw(1, 1, vec![0u16, 13107, 26214, 65535]).unwrap();
    let bytes = encoded(DynamicImage::ImageRgba16(rgba16), ImageFormat::Png);
    assert_eq!(floats_of(data(&bytes, 4).unwrap()), [0.0, 0.2, 0.4, 1.0]);
    assert_eq!(
        text(&encoded(gradient(4, 4), ImageFormat::Jpeg), 2),
        "it has 3 channels, expected 2; set data.channels = 3 or convert the image"
    );
    assert!(text(&gray(4, 4, |_, _| 0), 4).starts_with("it has 1 channels, expected 4"));
    assert!(header(&gray(4, 4, |_, _| 0), 4).is_err());
    // Three channels are always a picture.
    assert_eq!(bytes_of(data(&gray(1, 1, |_, _| 9), 3).unwrap()), [9, 9, 9]);
}

#[test]
fn tiff_bands_of_any_count_are_read() {
    let few = [1u8, 2, 3, 4, 5, 6, 7, 8, 9, 10];
    for (planar, expected) in [(false, [1u8, 6, 2, 7, 3, 8, 4, 9, 5, 10]), (true, few)] {
        for photometric in [1, 2] {
            // If marked RGB, the decoder would ignore bands beyond the third.
            let file = Tiff { planar, ..tiff(5, 8, 1, photometric, &few) };
            assert_eq!(bytes_of(data(&file.bytes(), 5).unwrap()), expected, "{planar} {photometric}");
            if photometric == 1 {
                assert_eq!(
                    text(&file.bytes(), 3),
                    "it has 5 band(s) of data, not an RGB picture; set data.channels = 5 to train on the values, or \
                     convert the image to 8-bit RGB"
                );
            }
            assert!(text(&file.bytes(), 4).starts_with("it has 5 channels, expected 4"));
        }
    }
    let words = [0u16, 13107, 26214, 65535];
    for big_endian in [false, true] {
        let samples = le(&words, if big_endian { u16::to_be_bytes } else { u16::to_le_bytes });
        let file = Tiff { big_endian, ..tiff(2, 16, 1, 1, &samples) };
        assert_eq!(floats_of(data(&file.bytes(), 2).unwrap()), [0.0, 0.4, 0.2, 1.0]);
        let cmyk = Tiff { width: 1, big_endian, ..tiff(4, 16, 1, 5, &samples) };
        assert_eq!(floats_of(data(&cmyk.bytes(), 4).unwrap()), [0.0, 0.2, 0.4, 1.0]);
    }
    let floats = [-1.5f32, 2.0, 1e9, 0.25];
    assert_eq!(
        floats_of(data(&tiff(2, 32, 3, 1, &le(&floats, f32::to_le_bytes)).bytes(), 2).unwrap()),
        [-1.5, 1e9, 2.0, 0.25]
    );
    let doubles = [-1.5f64, 0.1];
    assert_eq!(
        floats_of(data(&tiff(1, 64, 3, 1, &le(&doubles, f64::to_le_bytes)).bytes(), 1).unwrap()),
        [-1.5, 0.1]
    );
    let halves = le(&[0x3c00u16, 0xc000], u16::to_le_bytes);
    assert_eq!(floats_of(data(&tiff(1, 16, 3, 1, &halves).bytes(), 1).unwrap()), [1.0, -2.0]);
}

#[test]
fn errors_of_other_sample_types_have_a_remedy() {
    let signed = tiff(1, 16, 2, 1, &[1, 0, 2, 0]).bytes();
    assert_eq!(
        text(&signed, 1),
        "samples of type I16 with 16 bits are not supported; convert the image to 8- or 16-bit unsigned or to 32-bit \
         floating-point samples"
    );
    let wide = tiff(2, 32, 1, 1, &[0; 16]).bytes();
    assert!(text(&wide, 2).starts_with("samples of type U32"));
}

#[test]
fn compressed_bands_are_read() {
    let values: Vec<u16> = (0..60 * 40).map(|at| (at * 7 % 1000) as u16).collect();
    let floats: Vec<f32> = values.iter().map(|&value| f32::from(value) / 8.0).collect();
    let expected: Vec<f32> = values.iter().map(|&value| f32::from(value) / 65535.0).collect();
    for (number, compression) in
        [Compression::Packbits, Compression::Lzw, Compression::Deflate(DeflateLevel::Fast)]
            .into_iter()
            .enumerate()
    {
        let mut file = Cursor::new(Vec::new());
        let mut encoder = TiffEncoder::new(&mut file).unwrap().with_compression(compression);
        encoder.write_image::<colortype::Gray16>(60, 40, &values).unwrap();
        assert_eq!(floats_of(data(file.get_ref(), 1).unwrap()), expected, "{number}");
        let mut file = Cursor::new(Vec::new());
        let mut encoder = TiffEncoder::new(&mut file).unwrap().with_compression(compression);
        encoder.write_image::<colortype::Gray32Float>(60, 40, &floats).unwrap();
        assert_eq!(floats_of(data(file.get_ref(), 1).unwrap()), floats, "{number}");
        let whole = file.into_inner();
        let image = Raster::default();
        for keep in [4, 20, whole.len() / 2, whole.len() * 9 / 10] {
            assert!(pixels(&whole[..keep], 1, &mut Vec::new(), &mut image.clone()).is_err());
        }
    }
}

#[test]
fn nan_and_infinity_are_named() {
    for (value, name) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let samples = le(&[1.0, 2.0, 3.0, value], f32::to_le_bytes);
        assert_eq!(
            text(&tiff(2, 32, 3, 1, &samples).bytes(), 2),
            format!(
                "the data has 1 values that are not finite (the first is {name}, at column 1, row 0 of channel 1); replace them \
                 in the file, for example by 0"
            )
        );
    }
    // Too large for 32 bits.
    let samples = le(&[1e300f64, 0.0], f64::to_le_bytes);
    assert!(text(&tiff(1, 64, 3, 1, &samples).bytes(), 1).contains("the first is inf"));
}

#[test]
fn a_huge_size_in_the_header_costs_no_memory() {
    let bomb = Tiff { width: 60_000, height: 60_000, ..tiff(1, 32, 3, 1, &[0; 8]) };
    assert!(matches!(header(&bomb.bytes(), 1), Err(SampleError::TooLarge((60_000, _), _))));
    assert!(data(&bomb.bytes(), 1).is_err());
    let png = raw_png(60_000, 60_000, 8, 0, &[], &[0]);
    assert!(matches!(header(&png, 1), Err(SampleError::TooLarge(..))));
    let bits = raw_png(u32::MAX >> 1, 60_000, 1, 0, &[], &[0]);
    assert!(mask(&bits, &mut Vec::new(), &mut Labels::default()).is_err());
    let bits = raw_png(40_000, 40_000, 1, 0, &[], &[0]);
    let found = mask(&bits, &mut Vec::new(), &mut Labels::default());
    assert!(matches!(found, Err(SampleError::TooLarge(..))), "{found:?}");
}

#[test]
fn real_tiles_and_heights_are_read() {
    let Ok(root) = test_data("heights") else { return };
    for entry in std::fs::read_dir(root.join("img")).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        let tile = data(&bytes, 4).unwrap();
        assert_eq!((tile.width, tile.height), (400, 400));
        let counts: Vec<f32> = floats_of(tile).iter().map(|value| value * 65535.0).collect();
        // 16-bit numbers over their full range, and not all equal.
        let highest = counts.iter().copied().fold(0.0, f32::max);
        let whole = |value: &f32| (value - value.round()).abs() < 1e-2;
        assert!(counts.iter().all(whole) && (1.0..=65535.0).contains(&highest), "{highest}");
    }
    let label = std::fs::read(root.join("lab/lab_bj0216.tif")).unwrap();
    let heights = floats_of(data(&label, 1).unwrap());
    // The value that Pillow reads.
    assert_eq!(heights.iter().copied().fold(0.0, f32::max), 21.0);
}

proptest! {
    /// Whatever a byte is changed to, decoding ends with an image or an error.
    #[test]
    fn damage_never_panics(kind in 0usize..8, at: prop::sample::Index, value: u8, cut: prop::sample::Index, channels in 1usize..6) {
        let words = le(&[3u16; 4], u16::to_le_bytes);
        let floats = le(&[0.5f32; 2], f32::to_le_bytes);
        let mut bytes = match kind {
            0 => png(9, 9),
            1 => gray(9, 9, |x, _| x as u8),
            2 => raw_png(9, 1, 4, 0, &[], &[0, 1, 2, 3, 4, 5]),
            3 => tiff(2, 16, 1, 1, &words).bytes(),
            4 => Tiff { planar: true, ..tiff(5, 8, 1, 2, &[5; 10]) }.bytes(),
            5 => tiff(1, 32, 3, 1, &floats).bytes(),
            6 => std::fs::read(reference("masks/interlaced.gif")).unwrap(),
            _ => std::fs::read(reference("masks/palette.tif")).unwrap(),
        };
        let place = at.index(bytes.len());
        bytes[place] = value;
        let keep = cut.index(bytes.len()) + 1;
        for bytes in [&bytes[..], &bytes[..keep]] {
            let (mut out, mut labels) = (Raster::default(), Labels::default());
            let _ = header(bytes, channels);
            let _ = mask_header(bytes);
            let _ = super::super::kind(bytes, "image");
            let _ = colors_header(bytes);
            let (mut rgb, mut classes) = (Vec::new(), Labels::default());
            let _ = above(bytes, 128, &mut Vec::new(), &mut rgb, &mut classes);
            if pixels(bytes, channels, &mut Vec::new(), &mut out).is_ok() {
                let values = match &out.values { Values::U8(values) => values.len(), Values::F32(values) => values.len() };
                prop_assert_eq!(values, out.width as usize * out.height as usize * channels);
            }
            if mask(bytes, &mut Vec::new(), &mut labels).is_ok() {
                prop_assert_eq!(labels.values.len(), labels.width as usize * labels.height as usize);
            }
        }
    }

    #[test]
    fn any_bytes_are_an_image_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200), tiff: bool, channels in 1usize..6) {
        let mut bytes = bytes;
        if tiff {
            bytes.splice(0..0, *b"II*\0\x08\0\0\0");
        }
        let _ = kind(&bytes, "image");
        prop_assert!(pixels(&bytes, channels, &mut Vec::new(), &mut Raster::default()).is_err());
        prop_assert!(mask(&bytes, &mut Vec::new(), &mut Labels::default()).is_err());
    }
}
