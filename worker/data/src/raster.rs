//! Decoded images in memory, and views of parts of them.

use super::plane::{Placement, Plane};

/// The values of a decoded image.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// From 0 to 255, of 8-bit images.
    U8(Vec<u8>),
    /// From 0 to 1 for 16-bit images; as in the file for floating-point images.
    F32(Vec<f32>),
}

impl Default for Values {
    fn default() -> Self {
        Self::U8(Vec::new())
    }
}

impl Values {
    /// Returns the memory for 8-bit values, with old content.
    pub(super) fn u8(&mut self) -> &mut Vec<u8> {
        if let Self::F32(_) = self {
            *self = Self::U8(Vec::new());
        }
        match self {
            Self::U8(values) => values,
            Self::F32(_) => unreachable!("just replaced"),
        }
    }

    /// Returns the memory for floating-point values, with old content.
    pub(super) fn f32(&mut self) -> &mut Vec<f32> {
        if let Self::U8(_) = self {
            *self = Self::F32(Vec::new());
        }
        match self {
            Self::F32(values) => values,
            Self::U8(_) => unreachable!("just replaced"),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::U8(values) => values.len(),
            Self::F32(values) => values.len(),
        }
    }

    /// Returns the memory held, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        match self {
            Self::U8(values) => values.capacity(),
            Self::F32(values) => 4 * values.capacity(),
        }
    }
}

/// A decoded image.
///
/// 8-bit images of three channels are RGB pictures, row by row with three values a pixel: decoders give this
/// layout and the resampler is fastest with it. All others are planes, one for each channel, row by row.
#[derive(Debug, Clone, PartialEq)]
pub struct Raster {
    /// In pixels, like the height.
    pub width: u32,
    pub height: u32,
    /// Values of a pixel.
    pub channels: usize,
    /// `width * height * channels` values.
    pub values: Values,
}

impl Default for Raster {
    fn default() -> Self {
        Self { width: 0, height: 0, channels: 3, values: Values::default() }
    }
}

impl Raster {
    /// Returns the whole image.
    pub fn view(&self) -> View<'_> {
        View::whole(&self.values, self.width as usize, self.height as usize, self.channels)
    }
}

/// A rectangle of an image: channel c at (x, y) is `values[first + c * plane + y * row + x]`, or
/// `values[first + c + y * row + 3 * x]` in an RGB picture.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Values of the whole image.
    pub values: &'a Values,
    /// Index of the rectangle's upper left value.
    pub first: usize,
    /// In pixels, like the height.
    pub width: usize,
    pub height: usize,
    /// Values of a pixel.
    pub channels: usize,
    /// Values from one row to the next.
    pub row: usize,
    /// Values from one channel to the next; unused for an RGB picture.
    pub plane: usize,
}

impl<'a> View<'a> {
    /// Returns a view of a whole image without gaps between its values.
    pub(super) fn whole(values: &'a Values, width: usize, height: usize, channels: usize) -> Self {
        let mut all = Self { values, first: 0, width, height, channels, row: width, plane: width * height };
        all.row *= if all.is_rgb() { 3 } else { 1 };
        all
    }

    /// Returns whether the three values of a pixel are side by side.
    pub fn is_rgb(&self) -> bool {
        matches!(self.values, Values::U8(_)) && self.channels == 3
    }

    /// Returns one channel of the view; `values` are the whole image's.
    pub(super) fn channel<T>(&self, values: &'a [T], c: usize) -> Plane<'a, T> {
        let (start, step) = if self.is_rgb() { (c, 3) } else { (c * self.plane, 1) };
        Plane {
            values: &values[self.first + start..],
            width: self.width,
            height: self.height,
            row: self.row,
            step,
        }
    }

    /// Returns the rectangle of this size with its upper left corner at (left, top).
    pub(super) fn part(self, left: usize, top: usize, width: usize, height: usize) -> Self {
        assert!(
            left + width <= self.width && top + height <= self.height,
            "{width}x{height} at {left},{top} of {}x{}",
            self.width,
            self.height
        );
        let first = self.first + top * self.row + if self.is_rgb() { 3 * left } else { left };
        Self { first, width, height, ..self }
    }

    /// Returns the memory that [`View::to_raster`] takes for the values, in bytes.
    pub(super) fn value_bytes(&self) -> usize {
        let each = match self.values {
            Values::U8(_) => 1,
            Values::F32(_) => 4,
        };
        self.width * self.height * self.channels * each
    }

    pub(super) fn to_raster(self) -> Raster {
        let mut raster = Raster::default();
        self.copy_to(&mut raster);
        raster
    }

    /// Copies the view into a raster, whose memory is used again.
    pub(super) fn copy_to(&self, raster: &mut Raster) {
        (raster.width, raster.height) = (self.width as u32, self.height as u32);
        raster.channels = self.channels;
        match self.values {
            Values::U8(values) => self.gather(values, raster.values.u8()),
            Values::F32(values) => self.gather(values, raster.values.f32()),
        }
    }

    fn gather<T: Copy>(&self, values: &[T], all: &mut Vec<T>) {
        let (planes, length) = if self.is_rgb() { (1, 3 * self.width) } else { (self.channels, self.width) };
        all.clear();
        all.reserve(self.width * self.height * self.channels);
        for plane in 0..planes {
            for y in 0..self.height {
                all.extend_from_slice(&values[self.first + plane * self.plane + y * self.row..][..length]);
            }
        }
    }
}

/// A decoded mask or map: a class or a number for every pixel, row by row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Labels<T = u16> {
    /// In pixels, like the height.
    pub width: u32,
    pub height: u32,
    /// `width * height` values.
    pub values: Vec<T>,
}

impl<T: Copy> Labels<T> {
    /// Writes the labels with the placement of their image; pixels outside of it become `outside`.
    pub(super) fn write<U: Copy + From<T>>(&self, placement: Placement, outside: U, out: &mut [U]) {
        let (width, height) = (self.width as usize, self.height as usize);
        let (values, row, step) = (&self.values[..], width, 1);
        Plane { values, width, height, row, step }.write(placement, outside, out, U::from);
    }
}
