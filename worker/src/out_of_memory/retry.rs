//! Retries after a failed allocation.

use std::time::Duration;

use dtrain_torch_shim::memory::empty_cache;
use tch::{Device, TchError};

use super::panics::catch_torch_panic;
use crate::OutOfMemory;

/// Pauses between tries, in which other threads or processes may free memory.
const PAUSES: [Duration; 3] = [Duration::ZERO, Duration::from_millis(10), Duration::from_millis(40)];

/// Runs `operation`. If memory runs out, empties the cache of `device` and retries, with at most four tries.
/// Other errors are returned at once. `operation` must involve this rank only, and succeed or change nothing:
/// a step that the ranks have decided to commit cannot be dropped.
pub(crate) fn retry_on_oom<T, E: OutOfMemory + From<TchError>>(
    device: Device,
    mut operation: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let mut attempt = || catch_torch_panic(&mut operation)?;
    for pause in PAUSES {
        match attempt() {
            Err(error) if error.is_out_of_memory() => {
                // If the cache cannot be emptied, the next try is the same.
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
    use super::super::tests::{allocation_failure, other};
    use super::*;

    /// Fails `times` times, and returns the number of tries.
    fn fails(times: usize, error: fn() -> TchError) -> Result<usize, usize> {
        let mut tries = 0;
        let outcome = retry_on_oom(Device::Cpu, || {
            tries += 1;
            if tries <= times { Err(error()) } else { Ok(()) }
        });
        outcome.map(|()| tries).map_err(|_| tries)
    }

    #[test]
    fn a_failed_allocation_is_retried_three_times() {
        assert_eq!(fails(0, allocation_failure), Ok(1));
        assert_eq!(fails(3, allocation_failure), Ok(4));
        assert_eq!(fails(4, allocation_failure), Err(4));
    }

    #[test]
    fn another_failure_is_not_retried() {
        assert_eq!(fails(1, other), Err(1));
    }
}
