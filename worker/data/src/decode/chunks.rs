//! Rectangles of TIFF files, of which only the tiles or strips are decoded that they touch.

use dtrain_resize::Rectangle;
use tiff::decoder::DecodingResult;

use super::super::error::Result;
use super::super::raster::Raster;
use super::bands::{Bands, damage};
use super::convert::unit16;
use super::limits::truncated;

/// A decoded tile or strip.
struct Chunk {
    left: u32,
    top: u32,
    width: u32,
    height: u32,
    /// The first band, and the bands of a pixel.
    first: usize,
    bands: usize,
}

/// The rectangle, with the places of its values.
struct Target {
    part: Rectangle,
    /// Values from one row to the next, from one pixel to the next, and from one band to the next.
    row: usize,
    pixel: usize,
    band: usize,
}

impl Bands<'_> {
    /// Decodes a rectangle, which is inside of the image: as planes, or row by row as a picture. Call [`Bands::check`] before.
    pub(super) fn decode_part(mut self, part: Rectangle, is_picture: bool, out: &mut Raster) -> Result<()> {
        let (width, height) = self.decoder.chunk_dimensions();
        if width == 0 || height == 0 {
            return Err(truncated());
        }
        let (across, down) = (self.size.0.div_ceil(width), self.size.1.div_ceil(height));
        let (planes, bands) = if self.planar { (self.count, 1) } else { (1, self.count) };
        (out.width, out.height, out.channels) = (part.width, part.height, self.count);
        let pixels = part.width as usize * part.height as usize;
        let columns = part.width as usize;
        let target = match is_picture {
            true => Target { part, row: columns * self.count, pixel: self.count, band: 1 },
            false => Target { part, row: columns, pixel: 1, band: pixels },
        };
        let length = pixels * self.count;
        for plane in 0..planes {
            for row in part.top / height..(part.top + part.height).div_ceil(height) {
                for column in part.left / width..(part.left + part.width).div_ceil(width) {
                    let number = (plane as u32 * down + row) * across + column;
                    let values = self.decoder.read_chunk(number).map_err(damage)?;
                    let size = self.decoder.chunk_data_dimensions(number);
                    let (left, top) = (column * width, row * height);
                    let chunk = Chunk { left, top, width: size.0, height: size.1, first: plane, bands };
                    match &values {
                        DecodingResult::U8(values) => {
                            chunk.copy(values, &target, sized(out.values.u8(), length), |value| value)
                        }
                        DecodingResult::U16(values) => {
                            chunk.copy(values, &target, sized(out.values.f32(), length), unit16)
                        }
                        DecodingResult::F16(values) => {
                            let to = sized(out.values.f32(), length);
                            chunk.copy(values, &target, to, |value| value.to_f32())
                        }
                        DecodingResult::F32(values) => {
                            chunk.copy(values, &target, sized(out.values.f32(), length), |value| value)
                        }
                        DecodingResult::F64(values) => {
                            chunk.copy(values, &target, sized(out.values.f32(), length), |value| value as f32)
                        }
                        _ => None,
                    }
                    .ok_or_else(truncated)?;
                }
            }
        }
        Ok(())
    }
}

fn sized<T: Default + Clone>(values: &mut Vec<T>, length: usize) -> &mut [T] {
    values.resize(length, T::default());
    values
}

impl Chunk {
    /// Copies what the chunk has of the rectangle. `None` if it has fewer values than its size needs.
    fn copy<T: Copy, U>(
        &self,
        values: &[T],
        target: &Target,
        out: &mut [U],
        value: impl Fn(T) -> U,
    ) -> Option<()> {
        let Target { part, row, pixel, band } = *target;
        let (left, right) = (self.left.max(part.left), (self.left + self.width).min(part.left + part.width));
        let (top, bottom) = (self.top.max(part.top), (self.top + self.height).min(part.top + part.height));
        if left >= right {
            return Some(());
        }
        for y in top..bottom {
            let start =
                ((y - self.top) as usize * self.width as usize + (left - self.left) as usize) * self.bands;
            let from = values.get(start..start + (right - left) as usize * self.bands)?;
            let to = (y - part.top) as usize * row + (left - part.left) as usize * pixel;
            for number in 0..self.bands {
                let to = out.get_mut(to + (self.first + number) * band..)?;
                let from = from.iter().skip(number).step_by(self.bands);
                to.iter_mut().step_by(pixel).zip(from).for_each(|(to, &from)| *to = value(from));
            }
        }
        Some(())
    }
}
