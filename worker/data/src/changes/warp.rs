//! Images, masks and maps seen through a map of the plane, as torchvision's `affine` and `perspective`.
//!
//! Places are whole numbers of 2^-32 pixels, and colours are mixed in whole numbers. So processors with
//! the same sines and cosines give the same pixels.

use std::fmt;

use dtrain_recipe::changes::PixelFilter;

use super::values::vectorized;

/// The fraction of a place, in bits.
const BITS: u32 = 32;

/// The source of each pixel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Map {
    /// From the middle of the result to places from the middle of the source: `x = m0 x + m1 y + m2, y = m3 x + m4 y + m5`.
    Affine([f64; 6]),
    /// From the corner of the result: `x = (m0 x + m1 y + m2) / (m6 x + m7 y + 1)`, and y with m3 to m5.
    Perspective([f64; 8]),
}

/// A map, and how pixels of images are found; those of masks and maps are the nearest ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Warp {
    pub(super) map: Map,
    /// Whether the four pixels around a place are mixed.
    pub(super) is_smooth: bool,
}

/// A pixel that can be mixed with others. The default is black.
pub(super) trait Blend: Copy + Default + fmt::Debug {
    /// Returns the pixel as a number with room for products; black is 0.
    fn wide(self) -> u64;

    /// Mixes the pixels of two rows; `x` and `y` are the fractions of the place, of 2^32.
    fn blend(rows: [[u64; 2]; 2], x: u32, y: u32) -> Self;
}

impl Warp {
    pub(super) fn new(map: Map, filter: PixelFilter) -> Self {
        Self { map, is_smooth: filter == PixelFilter::Bilinear }
    }

    /// Mixes the pixels around each place. Those outside of the image are black. `wide` is memory.
    pub(super) fn smooth<T: Blend>(
        &self,
        values: &[T],
        size: (usize, usize),
        wide: &mut Vec<u64>,
        out: &mut [T],
    ) {
        let (width, height) = size;
        // A black border saves a test of each pixel.
        let row = width + 2;
        wide.clear();
        wide.resize(row * (height + 2), 0);
        vectorized!({
            for (wide, values) in wide.chunks_exact_mut(row).skip(1).zip(values.chunks_exact(width.max(1))) {
                wide[1..].iter_mut().zip(values).for_each(|(wide, value)| *wide = value.wide());
            }
            self.each(size, out, |(x, y)| {
                let fraction = (x as u32, y as u32);
                // Places before the border are large numbers here.
                let (x, y) = (((x >> BITS) + 1) as u64, ((y >> BITS) + 1) as u64);
                if x > width as u64 || y > height as u64 {
                    return T::default();
                }
                let start = y as usize * row + x as usize;
                match (&wide[start..], &wide[start + row..]) {
                    (&[left, right, ..], &[low_left, low_right, ..]) => {
                        T::blend([[left, right], [low_left, low_right]], fraction.0, fraction.1)
                    }
                    _ => T::default(),
                }
            });
        });
    }

    /// Takes the nearest pixel of each place, or `outside`.
    pub(super) fn nearest<T: Copy>(&self, values: &[T], size: (usize, usize), outside: T, out: &mut [T]) {
        let half = 1 << (BITS - 1);
        vectorized!({
            self.each(size, out, |(x, y)| {
                index((x + half) >> BITS, (y + half) >> BITS, size).map_or(outside, |at| values[at])
            });
        });
    }

    /// Makes a pixel of each place.
    #[inline(always)]
    fn each<T>(&self, size: (usize, usize), out: &mut [T], pixel: impl Fn((i64, i64)) -> T) {
        let mut places = vec![(0, 0); size.0];
        for (y, row) in out.chunks_exact_mut(size.0.max(1)).enumerate() {
            match self.map {
                Map::Affine(map) => affine_row(map, y, size, &mut places),
                Map::Perspective(map) => perspective_row(map, y, &mut places),
            }
            row.iter_mut().zip(&places).for_each(|(out, &place)| *out = pixel(place));
        }
    }
}

/// Returns the index of a pixel, if it is one.
#[inline(always)]
fn index(x: i64, y: i64, (width, height): (usize, usize)) -> Option<usize> {
    let (x, y) = (usize::try_from(x).ok()?, usize::try_from(y).ok()?);
    (x < width && y < height).then(|| y * width + x)
}

/// A place outside of every image, in pixels.
const FAR: f64 = (1 << 18) as f64;

/// Returns a place as a whole number; places far away stay outside of every image.
///
/// The sum with a large number has the place in its lowest bits: vector instructions have no cast to numbers of 64 bits.
#[inline(always)]
fn fixed(place: f64) -> i64 {
    // The last bit of numbers from 2^20 to 2^21 is 2^-32.
    const LARGE: f64 = (3 << 19) as f64;
    let place = if place > -FAR { place } else { -FAR };
    let place = if place < FAR { place } else { FAR };
    (place + LARGE).to_bits() as i64 - LARGE.to_bits() as i64
}

#[inline(always)]
fn affine_row(m: [f64; 6], y: usize, (width, height): (usize, usize), places: &mut [(i64, i64)]) {
    let (middle_x, middle_y) = ((width as f64 - 1.0) / 2.0, (height as f64 - 1.0) / 2.0);
    let (left, down) = (-middle_x, y as f64 - middle_y);
    let first_x = fixed(m[0] * left + m[1] * down + m[2] + middle_x);
    let first_y = fixed(m[3] * left + m[4] * down + m[5] + middle_y);
    // Steps of many thousands of pixels leave every image at once.
    let limit = FAR / width.max(1) as f64;
    let (step_x, step_y) = (fixed(m[0].clamp(-limit, limit)), fixed(m[3].clamp(-limit, limit)));
    for (x, place) in (0..).zip(places) {
        *place = (first_x + x * step_x, first_y + x * step_y);
    }
}

#[inline(always)]
fn perspective_row(m: [f64; 8], y: usize, places: &mut [(i64, i64)]) {
    let y = y as f64 + 0.5;
    let (start_x, start_y, start) = (m[1] * y + m[2], m[4] * y + m[5], m[7] * y + 1.0);
    for (x, place) in places.iter_mut().enumerate() {
        let x = x as f64 + 0.5;
        let scale = 1.0 / (m[6] * x + start);
        *place = (fixed((m[0] * x + start_x) * scale - 0.5), fixed((m[3] * x + start_y) * scale - 0.5));
    }
}

impl Blend for [u8; 3] {
    /// The three colours are parts of 21 bits.
    #[inline(always)]
    fn wide(self) -> u64 {
        u64::from(self[0]) | u64::from(self[1]) << 21 | u64::from(self[2]) << 42
    }

    /// Mixes the three colours at once, with weights of 1024ths.
    #[inline(always)]
    fn blend(rows: [[u64; 2]; 2], x: u32, y: u32) -> Self {
        const EACH: u64 = 1 | 1 << 21 | 1 << 42;
        let weight = |fraction: u32| u64::from(((fraction >> 21) + 1) >> 1);
        let (x, y) = (weight(x), weight(y));
        // A difference may borrow from the next part, and the sum pays it back.
        let between = |left: u64, right: u64, weight: u64, half: u64| {
            (left << 10).wrapping_add(right.wrapping_sub(left).wrapping_mul(weight)) + EACH * half
        };
        // 18 bits become 11: values of eighths, so that the second product has 21 bits.
        let [upper, lower] = rows.map(|[left, right]| (between(left, right, x, 64) >> 7) & (EACH * 0x7ff));
        let sum = between(upper, lower, y, 4096);
        [13, 34, 55].map(|shift| (sum >> shift) as u8)
    }
}

impl Blend for u8 {
    #[inline(always)]
    fn wide(self) -> u64 {
        u64::from(self)
    }

    #[inline(always)]
    fn blend(rows: [[u64; 2]; 2], x: u32, y: u32) -> Self {
        <[u8; 3]>::blend(rows, x, y)[0]
    }
}

impl Blend for f32 {
    #[inline(always)]
    fn wide(self) -> u64 {
        u64::from(self.to_bits())
    }

    #[inline(always)]
    fn blend(rows: [[u64; 2]; 2], x: u32, y: u32) -> Self {
        let [x, y] = [x, y].map(|fraction| (fraction >> 8) as f32 / (1 << 24) as f32);
        let [upper, lower] = rows.map(|row| {
            let [left, right] = row.map(|bits| f32::from_bits(bits as u32));
            left * (1.0 - x) + right * x
        });
        upper * (1.0 - y) + lower * y
    }
}
