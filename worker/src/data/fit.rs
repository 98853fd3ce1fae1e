//! From an RGB image of any size to a square of normalised floats.

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};

use super::error::SampleError;

/// `(x / 255 - mean) / std` for the three channels, as a table.
#[derive(Debug, Clone)]
pub struct Normalize {
    table: Box<[[f32; 256]; 3]>,
    mean: [f64; 3],
    std: [f64; 3],
}

impl Normalize {
    /// Mean and standard deviation of red, green and blue, for values from 0 to 1. `std` must not be 0 (the recipe
    /// checks it).
    pub fn new(mean: [f64; 3], std: [f64; 3]) -> Self {
        let channel = |c: usize| std::array::from_fn(|x| ((x as f64 / 255.0 - mean[c]) / std[c]) as f32);
        Self {
            table: Box::new([channel(0), channel(1), channel(2)]),
            mean,
            std,
        }
    }

    /// Writes a value from 0 to 1 of channel `c` as [`Normalize::write`] would.
    pub fn value(&self, c: usize, x: f32) -> f32 {
        ((f64::from(x) - self.mean[c]) / self.std[c]) as f32
    }

    /// Writes a square of `size * size` pixels into `out` as three planes (red, green, blue), each row by row;
    /// mirrored left to right if `flip`.
    ///
    /// # Panics
    /// If `out` does not hold `3 * size * size` values or the window is smaller than the square.
    pub fn write(&self, window: Window<'_>, size: usize, flip: bool, out: &mut [f32]) {
        assert_eq!(out.len(), 3 * size * size, "room for one image of {size}x{size}");
        let [reds, greens, blues] = &*self.table;
        let (red, rest) = out.split_at_mut(size * size);
        let (green, blue) = rest.split_at_mut(size * size);
        for y in 0..size {
            let row = &window.pixels[y * window.row_bytes..][..3 * size];
            let span = y * size..(y + 1) * size;
            let targets = red[span.clone()]
                .iter_mut()
                .zip(&mut green[span.clone()])
                .zip(&mut blue[span]);
            let put = |(((r, g), b), pixel): (((&mut f32, &mut f32), &mut f32), &[u8])| {
                *r = reds[usize::from(pixel[0])];
                *g = greens[usize::from(pixel[1])];
                *b = blues[usize::from(pixel[2])];
            };
            if flip {
                targets.zip(row.rchunks_exact(3)).for_each(put);
            } else {
                targets.zip(row.chunks_exact(3)).for_each(put);
            }
        }
    }
}

impl Default for Normalize {
    /// The figures of ImageNet, which torchvision's weights expect.
    fn default() -> Self {
        Self::new([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    }
}

/// Part of an RGB image: `pixels` starts at its upper left corner, rows are `row_bytes` apart.
#[derive(Debug, Clone, Copy)]
pub struct Window<'a> {
    /// From the first byte of the window on.
    pub pixels: &'a [u8],
    /// From one row to the next.
    pub row_bytes: usize,
}

/// Brings images to a square: the shorter side is scaled to the square's, the middle is cut out.
///
/// The sizes and offsets are those of torchvision's `Resize(size)` and `CenterCrop(size)`; the filter is bilinear
/// with antialiasing, as there. An image whose shorter side fits is only cut. Holds working memory, one for a thread.
#[derive(Debug)]
pub struct Fitter {
    resizer: Resizer,
    square: Vec<u8>,
}

impl Default for Fitter {
    fn default() -> Self {
        Self {
            resizer: Resizer::new(),
            square: Vec::new(),
        }
    }
}

impl Fitter {
    /// The square of `size` pixels from an RGB image of `width * height` pixels.
    ///
    /// # Errors
    /// [`SampleError::Damaged`] if the resampler refuses the image.
    ///
    /// # Panics
    /// If `rgb` does not hold the image or a size is 0.
    pub fn fit<'a>(
        &'a mut self,
        rgb: &'a [u8],
        (width, height): (u32, u32),
        size: usize,
    ) -> Result<Window<'a>, SampleError> {
        let plan = Plan::new(width, height, size);
        let row_bytes = 3 * width as usize;
        assert_eq!(
            rgb.len(),
            row_bytes * height as usize,
            "an RGB image of {width}x{height}"
        );
        if plan.scaled == (width, height) {
            let first = plan.top as usize * row_bytes + 3 * plan.left as usize;
            return Ok(Window {
                pixels: &rgb[first..],
                row_bytes,
            });
        }
        self.square.resize(3 * size * size, 0);
        // Only what the square shows is computed: the box that the cut would take, in the original's coordinates.
        let (left, box_width) = plan.source_span(width, plan.scaled.0, plan.left);
        let (top, box_height) = plan.source_span(height, plan.scaled.1, plan.top);
        let options = ResizeOptions::new()
            .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
            .crop(left, top, box_width, box_height);
        let refused = |reason: String| SampleError::Damaged {
            reason: format!("it cannot be resized: {reason}"),
        };
        let source =
            ImageRef::new(width, height, rgb, PixelType::U8x3).map_err(|error| refused(error.to_string()))?;
        let mut target = Image::from_slice_u8(plan.size, plan.size, &mut self.square, PixelType::U8x3)
            .map_err(|error| refused(error.to_string()))?;
        self.resizer
            .resize(&source, &mut target, &options)
            .map_err(|error| refused(error.to_string()))?;
        Ok(Window {
            pixels: &self.square,
            row_bytes: 3 * size,
        })
    }

    /// Memory held, in bytes.
    pub fn held_bytes(&self) -> usize {
        self.square.capacity() + self.resizer.size_of_internal_buffers()
    }
}

/// The size after scaling and where the square lies in it, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plan {
    size: u32,
    scaled: (u32, u32),
    left: u32,
    top: u32,
}

impl Plan {
    fn new(width: u32, height: u32, size: usize) -> Self {
        assert!(
            width > 0 && height > 0 && size > 0,
            "{width}x{height} to {size}: no side may be 0"
        );
        let size = size as u32;
        // The longer side is rounded down.
        let longer = |long: u32, short: u32| {
            (u64::from(size) * u64::from(long) / u64::from(short)).min(u64::from(u32::MAX)) as u32
        };
        let scaled = if width <= height {
            (size, longer(height, width))
        } else {
            (longer(width, height), size)
        };
        Self {
            size,
            scaled,
            left: half_to_even(scaled.0 - size),
            top: half_to_even(scaled.1 - size),
        }
    }

    /// Start and length, in the original, of the part of a side that the square shows.
    fn source_span(&self, side: u32, scaled: u32, offset: u32) -> (f64, f64) {
        let factor = f64::from(side) / f64::from(scaled);
        let start = f64::from(offset) * factor;
        // Rounding must not reach over the edge.
        (
            start,
            (f64::from(self.size) * factor).min(f64::from(side) - start),
        )
    }
}

/// Half of `n`, a half rounded to the even neighbour as Python's `round` does, so that cuts agree with torchvision's.
fn half_to_even(n: u32) -> u32 {
    if n % 4 == 3 { n / 2 + 1 } else { n / 2 }
}

#[cfg(test)]
mod tests;
