//! The images of a batch on the way to the device.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::mixing;
use super::normalize::Normalize;
use super::plane::Placement;
use super::raster::{Values, View};

/// Images of one shape, in planes. The device normalises 8-bit images, which makes the transfer four times
/// smaller. If an image has another depth, all are normalised here.
#[derive(Debug, Clone, PartialEq)]
pub struct Pixels {
    normalize: Arc<Normalize>,
    plane: usize,
    /// Values of [`Values::F32`] are normalised already.
    values: Values,
}

impl Pixels {
    /// Allocates `len` values of 8 bits, in planes of `plane`.
    pub(super) fn new(normalize: Arc<Normalize>, plane: usize, len: usize) -> Self {
        Self { normalize, plane, values: Values::U8(vec![0; len]) }
    }

    /// Allocates `len` values of the same kind of images.
    pub(super) fn sized(&self, len: usize) -> Self {
        Self::new(Arc::clone(&self.normalize), self.plane, len)
    }

    /// Returns the values; 8-bit values are not normalised yet.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// Returns the number of values of one channel of one image.
    pub fn plane(&self) -> usize {
        self.plane
    }

    pub fn normalize(&self) -> &Normalize {
        &self.normalize
    }

    /// Returns all values, normalised.
    pub fn to_f32(&self) -> Cow<'_, [f32]> {
        match &self.values {
            Values::F32(values) => Cow::Borrowed(values),
            Values::U8(values) => {
                let mut all = Vec::new();
                self.normalize.look_up(values, self.plane, &mut all);
                Cow::Owned(all)
            }
        }
    }

    /// Writes an image into a buffer for one image of the view's size; pixels from outside are black.
    pub(super) fn write(&mut self, view: View<'_>, placement: Placement) {
        let (plane, len) = (view.width * view.height, self.values.len());
        assert_eq!(view.channels, self.normalize.channels(), "channels of the image");
        assert_eq!(len, plane * view.channels, "room for one image");
        match view.values {
            Values::U8(values) => {
                let out = self.values.u8();
                out.resize(len, 0);
                for (c, out) in out.chunks_exact_mut(plane.max(1)).enumerate() {
                    view.channel(values, c).write(placement, 0, out, |x| x);
                }
            }
            Values::F32(_) => {
                let out = self.values.f32();
                out.resize(len, 0.0);
                self.normalize.write(view, placement, out);
            }
        }
    }

    /// Changes the length to `len` values of 8 bits, which must all be written.
    pub(super) fn resize(&mut self, len: usize) {
        self.values.u8().resize(len, 0);
    }

    /// Fills a range with 0, for missing values.
    pub(super) fn clear(&mut self, range: Range<usize>) {
        match &mut self.values {
            Values::U8(values) => values[range].fill(0),
            Values::F32(values) => values[range].fill(0.0),
        }
    }

    /// Replaces the images by `share` of them and the rest of those of `partner`, both normalised.
    pub(super) fn mean(&mut self, partner: &Pixels, share: f32) {
        let mut values = self.to_f32().into_owned();
        mixing::mean(&mut values, &partner.to_f32(), share);
        self.values = Values::F32(values);
    }

    /// Copies a rectangle of rows and columns of the images of `partner`, whose height and width are `size`.
    pub(super) fn paste(&mut self, partner: &Pixels, sides: &[Range<usize>; 2], size: [usize; 2]) {
        if let (Values::U8(own), Values::U8(partner)) = (&mut self.values, &partner.values) {
            return mixing::paste(own, partner, sides, size);
        }
        let mut values = self.to_f32().into_owned();
        mixing::paste(&mut values, &partner.to_f32(), sides, size);
        self.values = Values::F32(values);
    }

    /// Copies all of `from` into a range of the same length.
    pub(super) fn copy(&mut self, range: Range<usize>, from: &Pixels) {
        match (&mut self.values, &from.values) {
            (Values::U8(to), Values::U8(from)) => return to[range].copy_from_slice(from),
            (Values::U8(_), Values::F32(_)) => self.values = Values::F32(self.to_f32().into_owned()),
            (Values::F32(_), _) => {}
        }
        if let Values::F32(to) = &mut self.values {
            to[range].copy_from_slice(&from.to_f32());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_other_depths_change_the_whole_batch_and_no_value() {
        let normalize = Arc::new(Normalize::new(&[0.5], &[0.25]));
        let mut batch = Pixels::new(Arc::clone(&normalize), 2, 6);
        let image = |values| Pixels { normalize: Arc::clone(&normalize), plane: 2, values };
        let (bytes, floats) = (Values::U8(vec![0, 255]), Values::F32(vec![7.0, 9.0]));
        batch.copy(0..2, &image(bytes.clone()));
        assert!(matches!(batch.values(), Values::U8(_)));
        batch.copy(2..4, &image(floats));
        batch.copy(4..6, &image(bytes));
        assert_eq!(*batch.to_f32(), [-2.0, 2.0, 7.0, 9.0, -2.0, 2.0]);
        batch.clear(2..4);
        batch.resize(4);
        assert!(matches!(batch.values(), Values::U8(values) if values.len() == 4));
    }
}
