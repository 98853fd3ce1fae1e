//! Trying again where memory was refused.

use std::time::Duration;

use dtrain_torch_shim::memory::empty_cache;
use tch::{Device, TchError};

use super::panics::shielded;
use crate::OutOfMemory;

/// Pauses between the tries. What another thread or process holds may be free after one of them.
const PAUSES: [Duration; 3] = [Duration::ZERO, Duration::from_millis(10), Duration::from_millis(40)];

/// Runs `operation`, and where memory is refused empties the cache of `device` and runs it again, up to four times in all. For
/// operations that either happen or change nothing, of this rank alone: after the ranks have decided to commit a step, there
/// is no way back. Other errors are returned at once.
pub(crate) fn patiently<T, E: OutOfMemory + From<TchError>>(
    device: Device,
    mut operation: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let mut attempt = || shielded(&mut operation)?;
    for pause in PAUSES {
        match attempt() {
            Err(error) if error.is_out_of_memory() => {
                // A cache that cannot be emptied leaves the next try as it was.
                let _ = empty_cache(device);
                std::thread::sleep(pause);
            }
            other => return other,
        }
    }
    attempt()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tch::{Kind, Tensor};

    fn refused() -> TchError {
        Tensor::f_zeros([1 << 50], (Kind::Float, Device::Cpu)).unwrap_err()
    }

    /// Fails so often, and returns how often it was tried.
    fn fails(times: usize, error: fn() -> TchError) -> Result<usize, usize> {
        let mut tries = 0;
        let outcome = patiently(Device::Cpu, || {
            tries += 1;
            if tries <= times { Err(error()) } else { Ok(()) }
        });
        outcome.map(|()| tries).map_err(|_| tries)
    }

    #[test]
    fn a_refusal_is_tried_again_and_not_for_ever() {
        assert_eq!(fails(0, refused), Ok(1));
        assert_eq!(fails(3, refused), Ok(4));
        assert_eq!(fails(4, refused), Err(4));
    }

    #[test]
    fn another_failure_is_not_tried_again() {
        let wrong_shape = || Tensor::from_slice(&[1f32]).f_view([3]).unwrap_err();
        assert_eq!(fails(1, wrong_shape), Err(1));
    }
}
