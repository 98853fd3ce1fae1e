#![allow(clippy::unwrap_used)]

mod arrays;
mod chunks;
mod data;
mod jpegs;
mod kinds;
mod masks;
mod raw_tiff;

use std::path::Path;

use dtrain_test_kit::programs::test_data;
use image::{DynamicImage, GrayImage, ImageBuffer, ImageFormat, Luma, LumaA, Rgb, Rgba};
use proptest::prelude::*;

use self::raw_tiff::tiff;
use super::*;
use crate::tests::images::{encoded, gradient, png, raw_png, reference};

fn decode(bytes: &[u8]) -> Result<(Vec<u8>, (u32, u32)), SampleError> {
    let (mut raw, mut rgb) = (vec![7; 5], vec![7; 5]);
    let size = rgb8(bytes, &mut raw, &mut rgb)?;
    assert_eq!(rgb.len(), (size.0 * size.1 * 3) as usize);
    Ok((rgb, size))
}

#[test]
fn lossless_formats_give_exact_pixels() {
    let image = gradient(13, 7);
    for format in [ImageFormat::Png, ImageFormat::Bmp, ImageFormat::Tiff, ImageFormat::WebP, ImageFormat::Pnm]
    {
        let bytes = encoded(image.clone(), format);
        assert_eq!(header(&bytes, 3).unwrap(), (13, 7), "{format:?}");
        assert_eq!(decode(&bytes).unwrap(), (image.to_vec(), (13, 7)), "{format:?}");
    }
}

#[test]
fn jpeg_gives_nearly_the_pixels() {
    let image = gradient(64, 48);
    let (rgb, size) = decode(&encoded(image.clone(), ImageFormat::Jpeg)).unwrap();
    assert_eq!(size, (64, 48));
    let error: u32 = rgb.iter().zip(image.iter()).map(|(a, b)| u32::from(a.abs_diff(*b))).sum();
    assert!(error < 4 * rgb.len() as u32, "mean error {}", error as f32 / rgb.len() as f32);
}

#[test]
fn jpeg_pixels_equal_those_of_pillow() {
    let mut cases = 0;
    for entry in std::fs::read_dir(reference("jpeg")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "jpg") {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let (rgb, size) = decode(&bytes).unwrap();
        let expected = image::open(path.with_extension("png")).unwrap().to_rgb8();
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert_eq!(size, expected.dimensions(), "{name}");
        assert_eq!(header(&bytes, 3).unwrap(), size, "{name}");
        let off = std::iter::zip(&rgb, expected.as_raw()).map(|(a, b)| a.abs_diff(*b));
        let most = off.max().unwrap();
        // Another decoder reads CMYK, and it differs.
        assert!(most <= if name == "cmyk" { 2 } else { 0 }, "{name}: off by {most}");
        cases += 1;
    }
    assert_eq!(cases, 17);
}

/// Pillow reads all of these files.
#[test]
fn a_jpeg_with_damaged_codes_is_correct_above_the_damage() {
    for name in ["444", "420", "restarts", "grey"] {
        let whole = std::fs::read(reference("jpeg").join(name).with_extension("jpg")).unwrap();
        let (good, (width, height)) = decode(&whole).unwrap();
        let scan = memchr::memmem::find(&whole, &[0xff, 0xda]).unwrap();
        let first = scan + 2 + usize::from(u16::from_be_bytes([whole[scan + 2], whole[scan + 3]]));
        let row = width as usize * 3;
        for at in (first..whole.len() - 2).step_by(3) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            // Markers and escapes are not codes.
            if [whole[at - 1], whole[at], bytes[at]].contains(&0xff) {
                continue;
            }
            let (rgb, size) = decode(&bytes).unwrap_or_else(|error| panic!("{name}, byte {at}: {error}"));
            assert_eq!(size, (width, height));
            // Codes have no fixed places: damage in the second half cannot reach the upper quarter.
            if at - first > (whole.len() - first) / 2 {
                let rows = row * (height as usize / 4);
                let off = std::iter::zip(&rgb[..rows], &good[..rows]).map(|(a, b)| a.abs_diff(*b));
                assert!(off.max() <= Some(12), "{name}, byte {at}");
            }
        }
    }
}

#[test]
fn jpeg_headers_are_read_without_the_rest() {
    let whole = std::fs::read(reference("jpeg/progressive.jpg")).unwrap();
    let sof = whole.windows(2).position(|pair| pair == [0xff, 0xc2]).unwrap();
    assert_eq!(header(&whole[..sof + 20], 3).unwrap(), (37, 23));
    let text = header(&whole[..sof + 8], 3).unwrap_err().to_string();
    assert!(text.contains("truncated"), "{text}");
    let changed = |at: usize, value: u8| {
        let mut bytes = whole.clone();
        bytes[sof + at] = value;
        header(&bytes, 3).unwrap_err().to_string()
    };
    assert!(changed(4, 12).contains("a JPEG of 12 bits is not supported"));
    assert!(changed(9, 2).contains("a JPEG of 2 components is not supported"));
    assert!(changed(1, 0xc3).contains("coding process 0xc3 is not supported"));
}

#[test]
fn grey_and_16_bits_become_rgb() {
    let grey = GrayImage::from_raw(2, 1, vec![3, 200]).unwrap();
    assert_eq!(decode(&encoded(grey, ImageFormat::Png)).unwrap().0, [3, 3, 3, 200, 200, 200]);
    let grey16 = ImageBuffer::<Luma<u16>, _>::from_raw(4, 1, vec![0u16, 128, 129, 65535]).unwrap();
    let bytes = encoded(DynamicImage::ImageLuma16(grey16), ImageFormat::Png);
    assert_eq!(decode(&bytes).unwrap().0, [0, 0, 0, 0, 0, 0, 1, 1, 1, 255, 255, 255]);
    let rgb16 = ImageBuffer::<Rgb<u16>, _>::from_raw(1, 1, vec![0u16, 257 * 77, 65535]).unwrap();
    for format in [ImageFormat::Png, ImageFormat::Tiff] {
        assert_eq!(
            decode(&encoded(DynamicImage::ImageRgb16(rgb16.clone()), format)).unwrap().0,
            [0, 77, 255]
        );
    }
}

#[test]
fn transparent_pixels_lie_on_white() {
    let rgba = image::RgbaImage::from_raw(3, 1, vec![10, 20, 30, 255, 10, 20, 30, 0, 0, 0, 0, 51]).unwrap();
    let bytes = encoded(rgba, ImageFormat::Png);
    assert_eq!(decode(&bytes).unwrap().0, [10, 20, 30, 255, 255, 255, 204, 204, 204]);
    let grey = ImageBuffer::<LumaA<u8>, _>::from_raw(2, 1, vec![9u8, 255, 9, 0]).unwrap();
    let bytes = encoded(DynamicImage::ImageLumaA8(grey), ImageFormat::Png);
    assert_eq!(decode(&bytes).unwrap().0, [9, 9, 9, 255, 255, 255]);
    let rgba16 = ImageBuffer::<Rgba<u16>, _>::from_raw(1, 1, vec![65535u16, 0, 0, 0]).unwrap();
    let bytes = encoded(DynamicImage::ImageRgba16(rgba16), ImageFormat::Png);
    assert_eq!(decode(&bytes).unwrap().0, [255, 255, 255]);
    let grey16 = ImageBuffer::<LumaA<u16>, _>::from_raw(1, 1, vec![514u16, 65535]).unwrap();
    let bytes = encoded(DynamicImage::ImageLumaA16(grey16), ImageFormat::Png);
    assert_eq!(decode(&bytes).unwrap().0, [2, 2, 2]);
}

#[test]
fn one_bit_and_palette_png_are_looked_up() {
    // One line: filter byte 0, then the bits 101.
    let one_bit = raw_png(3, 1, 1, 0, &[], &[0, 0b1010_0000]);
    assert_eq!(decode(&one_bit).unwrap().0, [255, 255, 255, 0, 0, 0, 255, 255, 255]);
    let colors = [10, 20, 30, 40, 50, 60];
    let palette = raw_png(2, 1, 8, 3, &[(b"PLTE", &colors)], &[0, 1, 0]);
    assert_eq!(decode(&palette).unwrap().0, [40, 50, 60, 10, 20, 30]);
    let transparent = raw_png(2, 1, 8, 3, &[(b"PLTE", &colors), (b"tRNS", &[0, 255])], &[0, 1, 0]);
    assert_eq!(decode(&transparent).unwrap().0, [40, 50, 60, 255, 255, 255]);
}

#[test]
fn the_name_does_not_matter_and_one_pixel_is_an_image() {
    assert_eq!(decode(&png(1, 1)).unwrap().1, (1, 1));
    assert_eq!(decode(&encoded(gradient(1, 1), ImageFormat::Jpeg)).unwrap().1, (1, 1));
}

#[test]
fn files_that_are_not_images_are_errors_with_their_content() {
    let error = |bytes: &[u8]| {
        let text = decode(bytes).unwrap_err().to_string();
        assert_eq!(header(bytes, 3).unwrap_err().to_string(), text);
        text
    };
    assert_eq!(error(b""), "the file is empty");
    assert_eq!(
        error(b"hello, world and more"),
        "not an image: the file begins with \"hello, world\"; expected PNG, JPEG, BMP, TIFF, WebP, GIF, PNM, JPEG 2000 or an array of NumPy"
    );
    assert!(error(&[0, 1, 2, 0xff]).contains("begins with 00 01 02 ff"));
    assert!(error(b"\0\0\x01\0\x01\0\x01\x01\0\0").contains("the format Ico is not supported"));
}

#[test]
fn truncated_files_are_found() {
    let image = gradient(64, 64);
    for format in
        [ImageFormat::Png, ImageFormat::Bmp, ImageFormat::Tiff, ImageFormat::WebP, ImageFormat::Jpeg]
    {
        let bytes = encoded(image.clone(), format);
        for keep in [4, 20, bytes.len() / 2, bytes.len() * 9 / 10] {
            let error = decode(&bytes[..keep]).map(|(_, size)| size).unwrap_err();
            assert!(!error.to_string().is_empty());
            println!("{format:?} {keep}: {error}");
        }
    }
}

#[test]
fn a_jpeg_with_trailing_data_or_a_preview_is_whole() {
    let whole = encoded(gradient(32, 32), ImageFormat::Jpeg);
    let mut trailing = whole.clone();
    trailing.extend([0; 100]);
    assert_eq!(decode(&trailing).unwrap().1, (32, 32));
    // The end marker of an embedded preview must not count as the file's.
    let preview = encoded(gradient(8, 8), ImageFormat::Jpeg);
    let mut with_preview = vec![0xff, jpeg::SOI, 0xff, 0xe5];
    with_preview.extend((preview.len() as u16 + 2).to_be_bytes());
    with_preview.extend(&preview);
    with_preview.extend(&whole[2..]);
    assert_eq!(decode(&with_preview).unwrap().1, (32, 32));
    with_preview.truncate(with_preview.len() - 30);
    assert!(decode(&with_preview).unwrap_err().to_string().contains("truncated"));
}

#[test]
fn a_huge_size_in_the_header_costs_no_memory() {
    let bomb = raw_png(60_000, 60_000, 8, 2, &[], &[0]);
    let error = decode(&bomb).unwrap_err();
    assert!(matches!(error, SampleError::TooLarge((60_000, 60_000), _)), "{error}");
    assert!(matches!(header(&bomb, 3), Err(SampleError::TooLarge(..))));
    // Grey needs a third of the memory, but its RGB copy does not.
    assert!(matches!(header(&raw_png(20_000, 20_000, 8, 0, &[], &[0]), 3), Err(SampleError::TooLarge(..))));
    assert!(header(&raw_png(u32::MAX, u32::MAX, 8, 2, &[], &[0]), 3).is_err());
    assert!(header(&raw_png(0, 4, 8, 2, &[], &[0]), 3).is_err());
}

#[test]
fn floating_point_rgb_is_an_error() {
    let image = ImageBuffer::<Rgb<f32>, _>::from_raw(1, 1, vec![0.5f32; 3]).unwrap();
    let single = encoded(DynamicImage::ImageRgb32F(image), ImageFormat::Tiff);
    let half = tiff(3, 16, 3, 2, &[0; 12]).bytes();
    let double = tiff(3, 64, 3, 2, &[0; 48]).bytes();
    for bytes in [single, half, double] {
        let error = decode(&bytes).unwrap_err();
        assert!(error.to_string().contains("floating-point samples is not supported; convert"), "{error}");
    }
}

/// Returns the content of the files of a folder whose names have this ending.
fn contents(folder: &Path, ending: &str) -> Vec<Vec<u8>> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|file| file.to_str().unwrap().ends_with(ending));
    files.map(|file| std::fs::read(file).unwrap()).collect()
}

#[test]
fn real_photographs_decode() {
    let Ok(folder) = test_data("chase") else { return };
    for file in contents(&folder, "L.jpg") {
        assert_eq!(decode(&file).unwrap().1, (999, 960));
    }
}

#[test]
fn real_drawings_decode_to_black_and_white() {
    let Ok(folder) = test_data("omniglot/Sanskrit/character29") else { return };
    for file in contents(&folder, ".png") {
        let (rgb, size) = decode(&file).unwrap();
        assert_eq!(size, (105, 105));
        let ink = rgb.iter().filter(|&&value| value == 0).count();
        assert!(rgb.iter().all(|&value| value == 0 || value == 255) && ink > 100 && ink < rgb.len() / 4);
    }
}

#[test]
fn real_satellite_bands_are_no_pictures() {
    let Ok(folder) = test_data("heights") else { return };
    for (part, words) in [
        ("img", "it has 4 band(s) of data, not an RGB picture; set data.channels = 4"),
        ("lab", "it has 1 band(s) of data"),
    ] {
        for file in contents(&folder.join(part), ".tif") {
            let error = decode(&file).unwrap_err().to_string();
            assert!(error.starts_with(words), "{error}");
        }
    }
}

proptest! {
    /// Whatever a byte is changed to, decoding ends with an image or an error.
    #[test]
    fn damage_never_panics(format in 0usize..5, at: prop::sample::Index, value: u8, cut: prop::sample::Index) {
        let formats = [ImageFormat::Png, ImageFormat::Bmp, ImageFormat::Tiff, ImageFormat::WebP, ImageFormat::Jpeg];
        let mut bytes = encoded(gradient(9, 9), formats[format]);
        let place = at.index(bytes.len());
        bytes[place] = value;
        let keep = cut.index(bytes.len()) + 1;
        let (mut raw, mut rgb) = (Vec::new(), Vec::new());
        let _ = header(&bytes[..keep], 3);
        let _ = (kind(&bytes, "image"), kind(&bytes[..keep], "image"));
        for bytes in [&bytes[..], &bytes[..keep]] {
            if let Ok((width, height)) = rgb8(bytes, &mut raw, &mut rgb) {
                prop_assert_eq!(rgb.len() as u64, u64::from(width) * u64::from(height) * 3);
            }
        }
    }

    #[test]
    fn any_bytes_are_an_image_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(rgb8(&bytes, &mut Vec::new(), &mut Vec::new()).is_err());
    }
}
