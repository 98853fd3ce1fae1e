//! Turning of pictures, as their EXIF orientation states.

use super::raster::{Labels, Raster, Values};

/// One of the eight orientations of a picture, by the numbers of EXIF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn(u8);

impl Turn {
    pub(super) const NONE: Self = Self(1);

    /// Returns the turn of a tag; unknown numbers mean none, as in Pillow.
    pub(super) fn of_tag(tag: u64) -> Self {
        u8::try_from(tag).ok().filter(|tag| (1..=8).contains(tag)).map_or(Self::NONE, Self)
    }

    /// Returns the size of a picture of the size (width, height) after the turn.
    pub(super) fn size(self, (width, height): (u32, u32)) -> (u32, u32) {
        if self.0 >= 5 { (height, width) } else { (width, height) }
    }

    pub(super) fn image(self, image: &mut Raster) {
        if self == Self::NONE {
            return;
        }
        let size = (image.width, image.height);
        let is_rgb = image.view().is_rgb();
        match &mut image.values {
            Values::U8(values) if is_rgb => {
                *values = self.plane(bytemuck::cast_slice::<u8, [u8; 3]>(values), size).into_flattened();
            }
            Values::U8(values) => *values = self.planes(values, size),
            Values::F32(values) => *values = self.planes(values, size),
        }
        (image.width, image.height) = self.size(size);
    }

    pub(super) fn labels<T: Copy>(self, labels: &mut Labels<T>) {
        if self == Self::NONE {
            return;
        }
        let size = (labels.width, labels.height);
        labels.values = self.plane(&labels.values, size);
        (labels.width, labels.height) = self.size(size);
    }

    fn planes<T: Copy>(self, values: &[T], size: (u32, u32)) -> Vec<T> {
        let plane = (size.0 as usize * size.1 as usize).max(1);
        values.chunks_exact(plane).flat_map(|values| self.plane(values, size)).collect()
    }

    /// Returns a plane of the size (width, height) after the turn.
    fn plane<T: Copy>(self, values: &[T], size: (u32, u32)) -> Vec<T> {
        let (width, height) = (size.0 as usize, size.1 as usize);
        let (wide, high) = if self.0 >= 5 { (height, width) } else { (width, height) };
        let mut turned = Vec::with_capacity(values.len());
        for y in 0..high {
            for x in 0..wide {
                let (column, row) = match self.0 {
                    2 => (width - 1 - x, y),
                    3 => (width - 1 - x, height - 1 - y),
                    4 => (x, height - 1 - y),
                    5 => (y, x),
                    6 => (y, height - 1 - x),
                    7 => (width - 1 - y, height - 1 - x),
                    8 => (width - 1 - y, x),
                    _ => (x, y),
                };
                turned.push(values[row * width + column]);
            }
        }
        turned
    }
}
