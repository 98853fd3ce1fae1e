//! Loops over the values of an image.

use super::super::raster::{Raster, Values};

/// Pixels that change at once, so that the compiler uses vector instructions.
pub(super) const BLOCK: usize = 64;

/// Red, green and blue of the pixels of a block.
pub(super) type Block = [[f32; BLOCK]; 3];

/// A value of an image. Bytes are from 0 to 255, other values have no bounds.
pub(super) trait Value: Copy {
    fn wide(self) -> f32;

    /// Returns the nearest value.
    fn near(value: f32) -> Self;

    /// Returns the value without its fraction, if it can have none.
    fn cut(value: f32) -> Self;
}

impl Value for u8 {
    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from(self)
    }

    #[inline(always)]
    fn near(value: f32) -> Self {
        Self::cut(value + 0.5)
    }

    /// Adds a large number, which leaves the nearest whole number in the lowest bits: vector instructions have no cast with
    /// bounds. Fractions within 0.00002 of the next byte become it.
    #[inline(always)]
    fn cut(value: f32) -> Self {
        const LARGE: f32 = (3 << 22) as f32;
        let value = if value > 0.0 { value } else { 0.0 };
        let value = if value < 255.0 { value } else { 255.0 };
        ((value - 0.49998) + LARGE).to_bits() as u8
    }
}

impl Value for f32 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }

    #[inline(always)]
    fn near(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn cut(value: f32) -> Self {
        value
    }
}

/// Runs a loop with the instructions for eight numbers at once, if the processor has them. The results are the same.
///
/// A macro, since each of the two places needs a separate closure: the compiler then moves it to where the instructions are known.
/// Functions that the loop calls are `inline(always)` for the same reason.
macro_rules! vectorized {
    ($work:expr) => {{
        #[cfg(target_arch = "x86_64")]
        let has_instructions = std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("bmi2");
        #[cfg(not(target_arch = "x86_64"))]
        let has_instructions = false;
        if has_instructions {
            #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,bmi2"))]
            unsafe fn run<R>(work: impl FnOnce() -> R) -> R {
                work()
            }
            // SAFETY: the processor has the instructions.
            unsafe { run(|| $work) }
        } else {
            $work
        }
    }};
}

pub(super) use vectorized;

/// A change of the colours of a block's pixels; bytes are numbers from 0 to 255 here, and lose their fractions afterwards.
pub(super) trait OfBlock {
    /// Must be inlined, to where the instructions of the processor are known.
    fn change(&self, block: &mut Block, is_of_bytes: bool);
}

/// Changes each value by itself.
pub(super) fn each(image: &mut Raster, byte: impl Fn(u8) -> u8, number: impl Fn(f32) -> f32) {
    match &mut image.values {
        Values::U8(values) => {
            let table: [u8; 256] = std::array::from_fn(|value| byte(value as u8));
            values.iter_mut().for_each(|value| *value = table[usize::from(*value)]);
        }
        Values::F32(values) => values.iter_mut().for_each(|value| *value = number(*value)),
    }
}

/// Changes the bytes of each channel by a table, which `table` makes from the histogram of the channel.
pub(super) fn look_up(
    values: &mut [u8],
    (channels, is_rgb): (usize, bool),
    table: impl Fn([u32; 256]) -> [u8; 256],
) {
    if is_rgb {
        let mut counts = [[0; 256]; 3];
        let pixels: &mut [[u8; 3]] = bytemuck::cast_slice_mut(values);
        for pixel in pixels.iter() {
            counts.iter_mut().zip(pixel).for_each(|(counts, &value)| counts[usize::from(value)] += 1);
        }
        let tables = counts.map(table);
        for pixel in pixels {
            pixel.iter_mut().zip(&tables).for_each(|(value, table)| *value = table[usize::from(*value)]);
        }
        return;
    }
    let plane = values.len() / channels.max(1);
    for values in values.chunks_exact_mut(plane.max(1)) {
        let mut counts = [0; 256];
        values.iter().for_each(|&value| counts[usize::from(value)] += 1);
        let table = table(counts);
        values.iter_mut().for_each(|value| *value = table[usize::from(*value)]);
    }
}

/// Changes the colours of an image of three channels, block by block; bytes lose their fractions. Other images stay.
pub(super) fn each_block(image: &mut Raster, by: &impl OfBlock) {
    if image.channels != 3 {
        return;
    }
    let mut block = [[0.0; BLOCK]; 3];
    vectorized!(match &mut image.values {
        Values::U8(values) => {
            let mut bytes = [[0u8; BLOCK]; 3];
            for pixels in bytemuck::cast_slice_mut::<u8, [u8; 3]>(values).chunks_mut(BLOCK) {
                let [red, green, blue] = &mut bytes;
                for (((pixel, r), g), b) in pixels.iter().zip(red).zip(green).zip(blue) {
                    [*r, *g, *b] = *pixel;
                }
                for (block, bytes) in block.iter_mut().zip(&bytes) {
                    block.iter_mut().zip(bytes).for_each(|(value, &byte)| *value = f32::from(byte));
                }
                by.change(&mut block, true);
                for (block, bytes) in block.iter().zip(&mut bytes) {
                    bytes.iter_mut().zip(block).for_each(|(byte, &value)| *byte = u8::cut(value));
                }
                let [red, green, blue] = &bytes;
                for (((pixel, &r), &g), &b) in pixels.iter_mut().zip(red).zip(green).zip(blue) {
                    *pixel = [r, g, b];
                }
            }
        }
        Values::F32(values) => {
            let plane = values.len() / 3;
            for start in (0..plane).step_by(BLOCK) {
                let length = BLOCK.min(plane - start);
                for (c, block) in block.iter_mut().enumerate() {
                    block[..length].copy_from_slice(&values[c * plane + start..][..length]);
                }
                by.change(&mut block, false);
                for (c, block) in block.iter().enumerate() {
                    values[c * plane + start..][..length].copy_from_slice(&block[..length]);
                }
            }
        }
    });
}

/// Returns the brightness of a colour, as torchvision's `rgb_to_grayscale`; that of bytes has no fraction.
///
/// The brightness of bytes has four decimal places. So the nearest whole number of a little less than a half below it is its whole
/// part; a large number takes the fraction away.
#[inline(always)]
pub(super) fn grey([red, green, blue]: [f32; 3], is_of_bytes: bool) -> f32 {
    // Half more than 2^23, so that the sum of a grey below a half has no steps of a half.
    const LARGE: f32 = (3 << 22) as f32;
    let grey = red * 0.2989 + green * 0.587 + blue * 0.114;
    if is_of_bytes { (grey - 0.49995) + LARGE - LARGE } else { grey }
}

/// Calls `change` with the values of each plane, (its width, its height), and the values from one pixel to the next of its row.
pub(super) fn each_plane<T: Value>(
    values: &mut [T],
    (width, height): (usize, usize),
    is_rgb: bool,
    change: impl Fn(&mut [T], (usize, usize), usize),
) {
    if is_rgb {
        change(values, (width, height), 3);
        return;
    }
    for plane in values.chunks_exact_mut((width * height).max(1)) {
        change(plane, (width, height), 1);
    }
}

#[cfg(test)]
mod grey_of_bytes {
    use super::grey;

    /// torchvision cuts the weighted sum of bytes to a whole number.
    #[test]
    fn has_no_fraction() {
        for red in (0..=255).step_by(5) {
            for green in (0..=255).step_by(3) {
                for blue in 0..=255 {
                    let exact = (red * 2989 + green * 5870 + blue * 1140) / 10_000;
                    let found = grey([red, green, blue].map(|value| value as f32), true);
                    assert_eq!(found, exact as f32, "{red} {green} {blue}");
                }
            }
        }
    }
}
