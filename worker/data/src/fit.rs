//! From an image of any size to one of the data set's size.

use dtrain_recipe::Resize;
use dtrain_resize::{Filter, Part, Pixel, Rectangle, Resizer, resize};

use super::decode::Extent;
use super::error::{Result, SampleError};
use super::raster::{Labels, Raster, Values, View};

/// The visible part of an image, and its size in the result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Frame {
    part: Part,
    /// Width and height of the result.
    target: (u32, u32),
    filter: Filter,
}

impl Frame {
    /// Selects the part of an image of the size `source` (width, height) for `target` pixels. For squares, `crop` is
    /// `Resize(size / fraction)` and `CenterCrop(size)` of torchvision, and `stretch` scales both sides to that size.
    pub fn new(resize: Resize, fraction: f64, source: (u32, u32), target: (u32, u32)) -> Result<Self> {
        Self::placed(resize, fraction, source, target, None)
    }

    /// As [`Frame::new`], with the part of the scaled image at `place`, from left and top, each from 0 to below 1; without it in the centre.
    pub(super) fn placed(
        resize: Resize,
        fraction: f64,
        source: (u32, u32),
        target: (u32, u32),
        place: Option<[f64; 2]>,
    ) -> Result<Self> {
        let all = Self::rectangle((0, 0), source, target);
        match resize {
            Resize::Stretch if fraction == 1.0 => Ok(all),
            Resize::Crop | Resize::Stretch => {
                let crop = Crop::new(resize, fraction, source, target);
                Ok(place.map_or(crop, |place| crop.at(place)).frame(source))
            }
            Resize::None if source == target => Ok(all),
            Resize::None => Err(SampleError::Size(source, target)),
        }
    }

    /// Selects a rectangle of whole pixels: its corner (left, top), its size, and its size in the result. It is
    /// `resized_crop` of torchvision.
    pub fn rectangle(corner: (u32, u32), size: (u32, u32), target: (u32, u32)) -> Self {
        let part = Part {
            left: f64::from(corner.0),
            top: f64::from(corner.1),
            width: f64::from(size.0),
            height: f64::from(size.1),
            cut: Rectangle { left: corner.0, top: corner.1, width: size.0, height: size.1 },
        };
        Self { part, target, filter: Filter::default() }
    }

    /// Returns the pixels that it needs of a file; with `may_scale` of a smaller version if that still has the target's size.
    pub(super) fn extent(&self, may_scale: bool) -> Extent {
        let part = (self.part.width, self.part.height);
        let denominator = if may_scale { Extent::denominator_for(part, self.target) } else { 1 };
        Extent { denominator, part: Some(self.scaled(denominator).part.cut) }
    }

    /// Returns the frame of the same image decoded at one part of its size, where each pixel is that many.
    pub(super) fn scaled(self, denominator: u32) -> Self {
        let by = f64::from(denominator);
        let Rectangle { left, top, width, height } = self.part.cut;
        let span = |start: u32, length: u32| {
            let first = start / denominator;
            (first, (start + length).div_ceil(denominator) - first)
        };
        let ((left, width), (top, height)) = (span(left, width), span(top, height));
        let part = Part {
            left: self.part.left / by,
            top: self.part.top / by,
            width: self.part.width / by,
            height: self.part.height / by,
            cut: Rectangle { left, top, width, height },
        };
        Self { part, ..self }
    }

    /// Returns the frame of what was cut out of the image before.
    pub(super) fn of_cut(self) -> Self {
        let cut = Rectangle { left: 0, top: 0, ..self.part.cut };
        let (left, top) = (f64::from(self.part.cut.left), f64::from(self.part.cut.top));
        let part = Part { left: self.part.left - left, top: self.part.top - top, cut, ..self.part };
        Self { part, ..self }
    }

    /// Interpolates by `filter`, not bilinearly.
    pub fn by(self, filter: Filter) -> Self {
        Self { filter, ..self }
    }

    fn exact(&self) -> Option<(usize, usize)> {
        let Part { left, top, width, height, .. } = self.part;
        let same = (width, height) == (f64::from(self.target.0), f64::from(self.target.1));
        (same && left.fract() == 0.0 && top.fract() == 0.0).then_some((left as usize, top as usize))
    }
}

/// Resizes images with antialiasing, as torchvision does. Holds the working memory of one thread.
#[derive(Debug, Default)]
pub struct Fitter {
    resizer: Resizer,
    values: Values,
}

impl Fitter {
    /// Returns the part of the image in the frame, which must be made for this image's size.
    pub fn fit<'a>(&'a mut self, image: &'a Raster, frame: Frame) -> Result<View<'a>> {
        let (width, height) = (frame.target.0 as usize, frame.target.1 as usize);
        let view = image.view();
        if let Some((left, top)) = frame.exact() {
            return Ok(view.part(left, top, width, height));
        }
        let length = width * height * image.channels;
        let (pixel, from, to): (_, &[u8], &mut [u8]) = match &image.values {
            Values::U8(from) => {
                let to = self.values.u8();
                to.resize(length, 0);
                (if view.is_rgb() { Pixel::Rgb } else { Pixel::Grey }, from, to)
            }
            Values::F32(from) => {
                let to = self.values.f32();
                to.resize(length, 0.0);
                (Pixel::F32, bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to))
            }
        };
        let (source, plane) = (view.plane * pixel.size(), width * height * pixel.size());
        for (from, to) in from.chunks_exact(source).zip(to.chunks_exact_mut(plane)) {
            let (from, to) = ((from, (image.width, image.height)), (to, frame.target));
            resize(&mut self.resizer, pixel, from, to, (frame.part, frame.filter))
                .map_err(|reason| SampleError::Damaged(format!("cannot be resized: {reason}")))?;
        }
        Ok(View::whole(&self.values, width, height, image.channels))
    }

    /// Returns the memory held, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        self.values.held_bytes() + self.resizer.size_of_internal_buffers()
    }
}

/// Returns the part of a mask or map in the frame: each pixel is the one under its centre.
pub fn fit_labels<T: Copy>(mask: &Labels<T>, frame: Frame) -> Labels<T> {
    let (width, height) = frame.target;
    let place = |start: f64, length: f64, pixels: u32, side: u32| -> Vec<usize> {
        let step = length / f64::from(pixels);
        let last = side.saturating_sub(1) as usize;
        (0..pixels).map(|at| ((start + (f64::from(at) + 0.5) * step) as usize).min(last)).collect()
    };
    let part = frame.part;
    let columns = place(part.left, part.width, width, mask.width);
    let rows = place(part.top, part.height, height, mask.height);
    let mut values = Vec::with_capacity(columns.len() * rows.len());
    for row in rows {
        let row = &mask.values[row * mask.width as usize..][..mask.width as usize];
        values.extend(columns.iter().map(|&column| row[column]));
    }
    Labels { width, height, values }
}

/// Returns the values of an image of the size `source` from those in its frame: each pixel is the one at its centre, or `outside`
/// of the frame. It is the way back from [`fit_labels`].
pub fn unfit_labels<T: Copy>(labels: &Labels<T>, frame: Frame, source: (u32, u32), outside: T) -> Labels<T> {
    let place = |start: f64, length: f64, pixels: u32, side: u32| -> Vec<Option<usize>> {
        let of = |at: u32| {
            let there = (f64::from(at) + 0.5 - start) / length * f64::from(pixels);
            (there >= 0.0 && there < f64::from(pixels)).then_some(there as usize)
        };
        (0..side).map(of).collect()
    };
    let (part, (width, height)) = (frame.part, frame.target);
    let columns = place(part.left, part.width, width, source.0);
    let rows = place(part.top, part.height, height, source.1);
    let mut values = Vec::with_capacity(columns.len() * rows.len());
    for row in rows {
        let row = row.map(|row| &labels.values[row * width as usize..][..width as usize]);
        let value = |column: &Option<usize>| row.zip(*column).map_or(outside, |(row, column)| row[column]);
        values.extend(columns.iter().map(value));
    }
    Labels { width: source.0, height: source.1, values }
}

/// The size after scaling, and the position of the target in it, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Crop {
    target: (u32, u32),
    scaled: (u32, u32),
    left: u32,
    top: u32,
}

impl Crop {
    fn new(resize: Resize, fraction: f64, (width, height): (u32, u32), target: (u32, u32)) -> Self {
        assert!(
            width > 0 && height > 0 && target.0 > 0 && target.1 > 0,
            "{width}x{height} to {}x{}: no side may be 0",
            target.0,
            target.1
        );
        // The longer side is rounded down.
        let longer = |side: u32, long: u32, short: u32| {
            (u64::from(side) * u64::from(long) / u64::from(short)).min(u64::from(u32::MAX)) as u32
        };
        // As timm, rounded down.
        let whole = |side: u32| ((f64::from(side) / fraction) as u32).max(side);
        let shorter = (whole(target.0), whole(target.1));
        let is_tall = u64::from(width) * u64::from(shorter.1) <= u64::from(height) * u64::from(shorter.0);
        let scaled = match resize {
            Resize::Stretch => shorter,
            _ if is_tall => (shorter.0, longer(shorter.0, height, width)),
            _ => (longer(shorter.1, width, height), shorter.1),
        };
        Self {
            target,
            scaled,
            left: half_to_even(scaled.0 - target.0),
            top: half_to_even(scaled.1 - target.1),
        }
    }

    /// Returns the crop at another place: each of the possible ones has an equal part of the numbers from 0 to 1.
    fn at(self, [left, top]: [f64; 2]) -> Self {
        let of = |place: f64, scaled: u32, target: u32| (place * (f64::from(scaled - target) + 1.0)) as u32;
        let (scaled, target) = (self.scaled, self.target);
        Self { left: of(left, scaled.0, target.0), top: of(top, scaled.1, target.1), ..self }
    }

    /// Returns the box of the crop, in the original's coordinates.
    fn frame(&self, source: (u32, u32)) -> Frame {
        let span = |side: u32, scaled: u32, offset: u32, length: u32| {
            let factor = f64::from(side) / f64::from(scaled);
            let start = f64::from(offset) * factor;
            // Rounding must not exceed the edge.
            (start, (f64::from(length) * factor).min(f64::from(side) - start))
        };
        let (left, width) = span(source.0, self.scaled.0, self.left, self.target.0);
        let (top, height) = span(source.1, self.scaled.1, self.top, self.target.1);
        let cut = Rectangle { left: 0, top: 0, width: source.0, height: source.1 };
        let part = Part { left, top, width, height, cut };
        Frame { part, target: self.target, filter: Filter::default() }
    }
}

/// Halves `n` and rounds to even as Python's `round`, so that crops agree with torchvision's.
fn half_to_even(n: u32) -> u32 {
    if n % 4 == 3 { n / 2 + 1 } else { n / 2 }
}

#[cfg(test)]
mod tests;
