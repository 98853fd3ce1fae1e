//! Predictions as image files: masks with a palette, maps of 16 bits, of floating-point numbers and of colours.

mod colours;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use png::{BitDepth, ColorType, Encoder};
use tiff::encoder::{TiffEncoder, colortype};

pub use self::colours::{class_colours, viridis};
use super::raster::Labels;

/// The most classes of an image with a palette.
pub const MOST_COLOURS: usize = 256;

fn encoder(
    path: &Path,
    (width, height): (u32, u32),
    color: ColorType,
    depth: BitDepth,
) -> io::Result<Encoder<'static, BufWriter<File>>> {
    let mut encoder = Encoder::new(BufWriter::new(File::create(path)?), width, height);
    encoder.set_color(color);
    encoder.set_depth(depth);
    Ok(encoder)
}

fn finish(encoder: Encoder<'_, BufWriter<File>>, data: &[u8]) -> io::Result<()> {
    let mut writer = encoder.write_header()?;
    writer.write_image_data(data)?;
    Ok(writer.finish()?)
}

/// Writes a mask as a PNG: 8 bits with a palette for up to [`MOST_COLOURS`] values, else 16 bits of grey. The value of a pixel is
/// its class, as `data.masks = "index"` reads it. `colours` are those of the values from 0.
pub fn write_mask(path: &Path, mask: &Labels, colours: &[[u8; 3]]) -> io::Result<()> {
    let size = (mask.width, mask.height);
    if colours.len() > MOST_COLOURS {
        let bytes: Vec<u8> = mask.values.iter().flat_map(|value| value.to_be_bytes()).collect();
        return finish(encoder(path, size, ColorType::Grayscale, BitDepth::Sixteen)?, &bytes);
    }
    let mut encoder = encoder(path, size, ColorType::Indexed, BitDepth::Eight)?;
    encoder.set_palette(colours.concat());
    let bytes: Vec<u8> = mask.values.iter().map(|&value| value as u8).collect();
    finish(encoder, &bytes)
}

/// Writes an RGB picture, row by row with three bytes a pixel.
pub fn write_picture(path: &Path, size: (u32, u32), rgb: &[u8]) -> io::Result<()> {
    finish(encoder(path, size, ColorType::Rgb, BitDepth::Eight)?, rgb)
}

/// Writes a map as a grey PNG of 16 bits from `black`, which is 0, to `white` more, as `data.target_scale` and `data.target_offset`
/// read it. Returns how many numbers are beyond, and are stored as the nearest of the two. NaN is stored as 0.
pub fn write_map16(path: &Path, map: &Labels<f32>, (black, white): (f32, f32)) -> io::Result<usize> {
    let parts = || map.values.iter().map(|value| (value - black) / white);
    let beyond = parts().filter(|part| *part < 0.0 || *part > 1.0).count();
    let value = |part: f32| (part * 65535.0).round().clamp(0.0, 65535.0) as u16;
    let bytes: Vec<u8> = parts().flat_map(|part| value(part).to_be_bytes()).collect();
    finish(encoder(path, (map.width, map.height), ColorType::Grayscale, BitDepth::Sixteen)?, &bytes)?;
    Ok(beyond)
}

/// Writes a map as a TIFF of floating-point numbers of 32 bits.
pub fn write_map32(path: &Path, map: &Labels<f32>) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    let mut encoder = TiffEncoder::new(&mut out).map_err(io::Error::other)?;
    encoder
        .write_image::<colortype::Gray32Float>(map.width, map.height, &map.values)
        .map_err(io::Error::other)?;
    // The last bytes may find the disk full.
    out.flush()
}

/// Writes a map as a picture, whose colours go from the least number to the largest by [`viridis`]. Pixels without a number are
/// black.
pub fn write_coloured_map(path: &Path, map: &Labels<f32>, (least, most): (f32, f32)) -> io::Result<()> {
    let span = if most > least { most - least } else { 1.0 };
    let colour = |value: &f32| if value.is_finite() { viridis((value - least) / span) } else { [0; 3] };
    let rgb: Vec<u8> = map.values.iter().flat_map(colour).collect();
    write_picture(path, (map.width, map.height), &rgb)
}

/// Mixes a picture half and half with the colours of a mask of its size. Values without a colour leave it as it is.
pub fn overlay(rgb: &mut [u8], mask: &Labels, colours: &[[u8; 3]]) {
    let mix = |own: u8, other: u8| ((u16::from(own) + u16::from(other)) / 2) as u8;
    for (pixel, value) in rgb.chunks_exact_mut(3).zip(&mask.values) {
        if let Some(colour) = colours.get(usize::from(*value)) {
            pixel.iter_mut().zip(colour).for_each(|(own, other)| *own = mix(*own, *other));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::decode;
    use super::super::raster::{Raster, Values};
    use super::*;

    fn bytes(write: impl FnOnce(&Path) -> io::Result<()>) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        write(&path).unwrap();
        std::fs::read(path).unwrap()
    }

    #[test]
    fn masks_read_back_as_their_classes() {
        for classes in [3, 256, 300] {
            let values = vec![0, 1, 2, 1, 0, (classes - 1) as u16];
            let mask = Labels { width: 3, height: 2, values };
            let file = bytes(|path| write_mask(path, &mask, &class_colours(classes)));
            let mut read = Labels::default();
            decode::mask(&file, &mut Vec::new(), &mut read).unwrap();
            assert_eq!(read, mask, "{classes}");
        }
    }

    #[test]
    fn maps_read_back_as_their_numbers() {
        let map = Labels { width: 2, height: 2, values: vec![0.0, 2.5, 10.0, 11.0] };
        let read = |file: &[u8]| {
            let mut map = Raster::default();
            let white = decode::map(file, None, &mut Vec::new(), &mut map).unwrap();
            (map.values, white)
        };
        let file = bytes(|path| write_map32(path, &map));
        assert_eq!(read(&file).0, Values::F32(map.values.clone()));
        let mut beyond = 0;
        let file = bytes(|path| write_map16(path, &map, (0.0, 10.0)).map(|count| beyond = count));
        let picture = bytes(|path| write_coloured_map(path, &map, (0.0, 11.0)));
        let mut rgb = Raster::default();
        decode::pixels(&picture, 3, &mut Vec::new(), &mut rgb).unwrap();
        let Values::F32(values) = read(&file).0 else { panic!("a map is of numbers") };
        let scale = 10.0 / values[2];
        let back: Vec<f32> = values.iter().map(|value| value * scale).collect();
        assert!(back.iter().zip([0.0, 2.5, 10.0, 10.0]).all(|(a, b)| (a - b).abs() < 1e-4), "{back:?}");
        assert_eq!(beyond, 1);
        let Values::U8(rgb) = rgb.values else { panic!("a picture has 8 bits") };
        assert_eq!(rgb[..3], viridis(0.0));
    }

    #[test]
    fn pixels_without_a_number_are_not_beyond_white() {
        let map = Labels { width: 4, height: 1, values: vec![f32::NAN, -0.5, 0.5, 1.5] };
        let mut beyond = [0; 2];
        bytes(|path| write_map16(path, &map, (0.0, 1.0)).map(|count| beyond[0] = count));
        let moved = bytes(|path| write_map16(path, &map, (-0.5, 2.0)).map(|count| beyond[1] = count));
        assert_eq!(beyond, [2, 0]);
        let read = image::load_from_memory(&moved).unwrap().to_luma16();
        assert_eq!(**read.as_raw(), [0, 0, 32768, 65535]);
    }

    #[test]
    fn an_overlay_mixes_colours_of_classes() {
        let mut rgb = [100; 6];
        let mask = Labels { width: 2, height: 1, values: vec![1, 255] };
        overlay(&mut rgb, &mask, &class_colours(2));
        assert_eq!(rgb, [114, 50, 50, 100, 100, 100]);
    }
}
