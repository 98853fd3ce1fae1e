//! The transform of a block to half its size, 4 x 4 pixels: libjpeg's `jidctred.c`, for all columns and then all rows at once,
//! so that the compiler makes vectors of them.

/// Bits after the point of the factors, and of the values between the two passes.
const FACTOR_BITS: u32 = 13;
const PASS_BITS: u32 = 2;

/// Returns the four values of each lane from its eight coefficients, of which the fifth has no part in them.
#[inline(always)]
fn four<const LANES: usize>(of: &[[i32; LANES]; 8], shift: u32) -> [[i32; LANES]; 4] {
    let mut out = [[0; LANES]; 4];
    for lane in 0..LANES {
        let times = |at: usize, factor: i32| of[at][lane].wrapping_mul(factor);
        // Factors as libjpeg's: 1.847759065 and so on, times 2 to the power of 13.
        let first = times(0, 2 << FACTOR_BITS);
        let even = times(2, 15137).wrapping_add(times(6, -6270));
        let inner = times(7, -1730)
            .wrapping_add(times(5, 11893))
            .wrapping_add(times(3, -17799))
            .wrapping_add(times(1, 8697));
        let outer = times(7, -4176)
            .wrapping_add(times(5, -4926))
            .wrapping_add(times(3, 7373))
            .wrapping_add(times(1, 20995));
        let (high, low) = (first.wrapping_add(even), first.wrapping_sub(even));
        let rounded = |value: i32| value.wrapping_add(1 << (shift - 1)) >> shift;
        out[0][lane] = rounded(high.wrapping_add(outer));
        out[1][lane] = rounded(low.wrapping_add(inner));
        out[2][lane] = rounded(low.wrapping_sub(inner));
        out[3][lane] = rounded(high.wrapping_sub(outer));
    }
    out
}

/// Returns 4 x 4 pixels, row by row, of coefficients and their quantities.
#[inline(always)]
pub(super) fn half(block: &[i16; 64], quantities: &[u16; 64]) -> [u8; 16] {
    let mut columns = [[0; 8]; 8];
    for (row, column) in columns.iter_mut().enumerate() {
        for (x, value) in column.iter_mut().enumerate() {
            *value = i32::from(block[8 * row + x]) * i32::from(quantities[8 * row + x]);
        }
    }
    let rows = four(&columns, FACTOR_BITS - PASS_BITS + 1);
    let mut turned = [[0; 4]; 8];
    for (y, row) in rows.iter().enumerate() {
        for (x, &value) in row.iter().enumerate() {
            turned[x][y] = value;
        }
    }
    let columns = four(&turned, FACTOR_BITS + PASS_BITS + 3 + 1);
    let mut pixels = [0; 16];
    for (x, column) in columns.iter().enumerate() {
        for (y, &value) in column.iter().enumerate() {
            pixels[4 * y + x] = value.wrapping_add(128).clamp(0, 255) as u8;
        }
    }
    pixels
}

#[cfg(test)]
mod tests {
    use libjpeg_turbo_rs::decode::idct_scaled::idct_4x4;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pixels_are_those_of_libjpeg(
            values in prop::collection::vec(-64i16..64, 64), quantities in prop::collection::vec(1u16..16, 64), kept in 1usize..=64
        ) {
            let mut block = [0; 64];
            block[..kept].copy_from_slice(&values[..kept]);
            let quantities: [u16; 64] = quantities.try_into().unwrap_or([1; 64]);
            let mut expected = [0; 16];
            idct_4x4(&block, &quantities, &mut expected);
            prop_assert_eq!(half(&block, &quantities), expected);
        }
    }
}
