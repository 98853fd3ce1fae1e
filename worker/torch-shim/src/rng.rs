//! The state of libtorch's default random generators, to save and restore; and random numbers that depend on the sample
//! and not on the micro-batch.

use std::ops::Range;

use tch::{Device, Tensor};

use crate::error::{ShimError, create, create_tensor, try_call};
use crate::ffi::{self, Owned, SamplesHandle};
use crate::tensor::device_index;

/// Returns the device's generator state, an opaque `uint8` vector on the CPU.
pub fn state(device: Device) -> Result<Tensor, ShimError> {
    let op = "read the generator state";
    let device = device_index(op, device)?;
    create_tensor(op, |out, error| ffi::dt_rng_get_state(device, out, error))
}

/// Seeds the default generators of all devices. A device that has failed is an error.
pub fn seed(seed: u64) -> Result<(), ShimError> {
    try_call("seed the generators", |error| ffi::dt_rng_seed(seed, error))
}

/// Restores a state from [`state`]: the same random numbers follow.
pub fn set_state(device: Device, state: &Tensor) -> Result<(), ShimError> {
    let op = "set the generator state";
    let device = device_index(op, device)?;
    try_call(op, |error| ffi::dt_rng_set_state(device, state.into(), error))
}

/// A micro-batch whose dropout and other random operations on this thread draw by sample, while this value lives: see
/// [`dropout`]. Regions nest. Backward, also on other threads, uses what its forward pass drew.
#[derive(Debug)]
#[must_use = "the region ends with it"]
pub struct BySample(#[expect(dead_code, reason = "the region ends with it")] Owned<SamplesHandle>);

impl BySample {
    /// Enters the micro-batch of the samples at `places` of a step. `key` decides the step's random numbers.
    pub fn enter(key: u64, places: &Range<usize>) -> Result<Self, ShimError> {
        let places: Vec<i64> = places.clone().map(|place| place as i64).collect();
        create("enter a micro-batch", |before, error| {
            // SAFETY: the pointer and the length are those of `places`, which is read during the call.
            unsafe { ffi::dt_samples_enter(key, places.as_ptr(), places.len(), before, error) }
        })
        .map(Self)
    }

    /// Enters a region without samples, in which libtorch's generator draws.
    pub fn off() -> Result<Self, ShimError> {
        Self::enter(0, &(0..0))
    }

    /// Enters a region of the samples at these rows of the present micro-batch, if there is one: the others are left out.
    pub fn select(rows: &[i64]) -> Result<Self, ShimError> {
        create("select samples", |before, error| {
            // SAFETY: the pointer and the length are those of `rows`, which is read during the call.
            unsafe { ffi::dt_samples_select(rows.as_ptr(), rows.len(), before, error) }
        })
        .map(Self)
    }
}

/// Drops elements of `x` (any float dtype) with probability `p`, and divides the others by 1 - `p` (Srivastava et al. 2014).
///
/// In a region of [`BySample`], whether an element is dropped depends on the step's key, `operation` (a number that no
/// other operation of the network has), the sample's place in the step, and the element's number in its sample. The
/// samples are dimension `dim` of `x`, which has equally many rows for each; the rows of a sample are neighbours. Backward draws
/// again, and keeps no mask. Elsewhere libtorch's generator draws, as in `torch.nn.functional.dropout`.
///
/// # Errors
/// A probability beyond 0 to 1, or rows that are not equally many for each sample.
pub fn dropout(x: &Tensor, p: f64, operation: u32, dim: usize) -> Result<Tensor, ShimError> {
    create_tensor("draw a dropout", |out, error| {
        ffi::dt_dropout(x.into(), p, operation.into(), dim as i64, out, error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of Random123 for Philox4x32-10, those of the four words of the counter and the two of the key.
    #[test]
    fn philox_gives_its_known_answers() {
        type Words = ([u32; 4], [u32; 2], [u32; 4]);
        const ANSWERS: [Words; 3] = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        for ([a, b, c, d], [low, high], expected) in ANSWERS {
            let mut numbers = [0; 4];
            ffi::dt_philox(join(low, high), join(a, b), c, d, &mut numbers);
            assert_eq!(numbers, expected);
        }
    }
}
