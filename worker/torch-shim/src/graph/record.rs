//! The clean-up after a failed capture.
//!
//! libtorch's own end of a capture cleans up only if CUDA has accepted the work. Otherwise, or after a
//! capture that fails at its start, the random generator still counts as capturing, so that the next dropout
//! throws; both allocators continue to serve the stream from the pool; and that memory is never returned.

use crate::error::ShimError;

/// An allocator with pools for graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Allocator {
    /// The caching allocator of the device.
    Device,
    /// The allocator of pinned host memory.
    Pinned,
}

/// The operations on libtorch for one capture.
pub(super) trait Recorder {
    /// Starts the capture. If it fails, any part of the start may have been done.
    fn begin(&mut self) -> Result<(), ShimError>;
    /// Ends the capture. If it fails, any part of the end may have been done.
    fn end(&mut self) -> Result<(), ShimError>;
    /// Returns whether the end came far enough that dropping the graph returns its memory.
    fn has_ended(&self) -> bool;
    /// Stops the allocator from serving the capture from the pool; an error if it did not serve it. With
    /// `release`, the capture gives up its use of the pool.
    fn end_allocation(&mut self, allocator: Allocator, release: bool) -> Result<(), ShimError>;
    /// Resets the generator to its state without a capture.
    fn reset_generator(&mut self) -> Result<(), ShimError>;
}

/// Runs `body` inside a capture. If any part fails or `body` panics, restores libtorch's state.
pub(super) fn record<T, E: From<ShimError>>(
    recorder: &mut impl Recorder,
    body: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    if let Err(error) = recorder.begin() {
        clean_up(recorder, false);
        return Err(error.into());
    }
    let mut unfinished = Unfinished(Some(recorder));
    let value = body()?;
    unfinished.end()?;
    Ok(value)
}

/// A started capture. Dropping it, after an error or a panic, ends it and cleans up.
struct Unfinished<'a, R: Recorder>(Option<&'a mut R>);

impl<R: Recorder> Unfinished<'_, R> {
    fn end(&mut self) -> Result<(), ShimError> {
        let Some(recorder) = self.0.take() else {
            return Ok(());
        };
        let ended = recorder.end();
        if !recorder.has_ended() {
            clean_up(recorder, true);
        }
        ended
    }
}

impl<R: Recorder> Drop for Unfinished<'_, R> {
    fn drop(&mut self) {
        // The caller returns the earlier error.
        let _ = self.end();
    }
}

/// Restores libtorch's state. With `started`, the capture had started, so both allocators took part.
fn clean_up(recorder: &mut impl Recorder, started: bool) {
    for allocator in [Allocator::Device, Allocator::Pinned] {
        // An allocator that serves the capture also counts it as a user of the pool.
        let took_part = recorder.end_allocation(allocator, false).is_ok();
        if took_part || started {
            // Errors are ignored: the caller returns an earlier one.
            let _ = recorder.end_allocation(allocator, true);
        }
    }
    let _ = recorder.reset_generator();
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::error::ErrorKind;

    /// The point at which a step of libtorch fails, in order.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum FailAt {
        AtOnce,
        AfterGenerator,
        AfterDevice,
        AfterPinned,
        Never,
    }

    #[derive(Debug, Default, Clone, Copy, PartialEq)]
    struct PoolUse {
        allocates: bool,
        users: i32,
    }

    /// A model of libtorch's source: the order of its steps, and which of them throw.
    struct Libtorch {
        begins: FailAt,
        /// `AfterGenerator` means here that both allocators have ended and the generator has not.
        ends: FailAt,
        generator_captures: bool,
        allocators: [PoolUse; 2],
        has_ended: bool,
    }

    fn thrown(message: &str) -> Result<(), ShimError> {
        Err(ShimError::new("capture", ErrorKind::Device, message))
    }

    impl Libtorch {
        fn new(begins: FailAt, ends: FailAt) -> Self {
            // Another graph also uses the pool.
            let allocators = [PoolUse { allocates: false, users: 1 }; 2];
            Self { begins, ends, generator_captures: false, allocators, has_ended: false }
        }

        fn of(&mut self, allocator: Allocator) -> &mut PoolUse {
            &mut self.allocators[allocator as usize]
        }

        fn start(&mut self, allocator: Allocator) {
            let pool = self.of(allocator);
            (pool.allocates, pool.users) = (true, pool.users + 1);
        }

        /// Drops the graph.
        fn dropped(mut self) -> Self {
            if std::mem::take(&mut self.has_ended) {
                self.allocators.iter_mut().for_each(|allocator| allocator.users -= 1);
            }
            self
        }
    }

    impl Recorder for Libtorch {
        fn begin(&mut self) -> Result<(), ShimError> {
            if self.begins == FailAt::AtOnce {
                return thrown("another capture is under way");
            }
            self.generator_captures = true;
            if self.begins == FailAt::AfterGenerator {
                return thrown("the default stream");
            }
            self.start(Allocator::Device);
            if self.begins == FailAt::AfterDevice {
                return thrown("no memory for a list");
            }
            self.start(Allocator::Pinned);
            match self.begins {
                FailAt::AfterPinned => thrown("CUDA begins no capture"),
                _ => Ok(()),
            }
        }

        fn end(&mut self) -> Result<(), ShimError> {
            if self.ends == FailAt::AtOnce {
                return thrown("operation failed due to a previous error during capture");
            }
            self.end_allocation(Allocator::Device, false)?;
            if self.ends == FailAt::AfterDevice {
                return thrown("no memory for a list");
            }
            self.end_allocation(Allocator::Pinned, false)?;
            if self.ends == FailAt::AfterGenerator {
                return thrown("Invalid capture.");
            }
            (self.generator_captures, self.has_ended) = (false, true);
            match self.ends {
                FailAt::AfterPinned => thrown("the graph cannot be instantiated"),
                _ => Ok(()),
            }
        }

        fn has_ended(&self) -> bool {
            self.has_ended
        }

        fn end_allocation(&mut self, allocator: Allocator, release: bool) -> Result<(), ShimError> {
            if release {
                self.of(allocator).users -= 1;
                return Ok(());
            }
            match std::mem::take(&mut self.of(allocator).allocates) {
                true => Ok(()),
                false => thrown("endAllocatePool: not currently recording to mempool_id"),
            }
        }

        fn reset_generator(&mut self) -> Result<(), ShimError> {
            self.generator_captures = false;
            Ok(())
        }
    }

    const ALL: [FailAt; 5] =
        [FailAt::AtOnce, FailAt::AfterGenerator, FailAt::AfterDevice, FailAt::AfterPinned, FailAt::Never];

    fn is_as_before(libtorch: &Libtorch) -> bool {
        let idle = PoolUse { allocates: false, users: 1 };
        !libtorch.generator_captures && libtorch.allocators == [idle; 2]
    }

    #[test]
    fn a_failed_capture_restores_libtorchs_state() {
        for begins in ALL {
            for ends in ALL {
                for body in [Ok(()), thrown("not while capturing")] {
                    let fails = begins != FailAt::Never || ends != FailAt::Never || body.is_err();
                    let mut libtorch = Libtorch::new(begins, ends);
                    let outcome = record(&mut libtorch, || body.clone());
                    assert_eq!(outcome.is_err(), fails, "{begins:?}, {ends:?}");
                    let left = libtorch.dropped();
                    assert!(is_as_before(&left), "{begins:?}, {ends:?}: {:?}", left.allocators);
                }
            }
        }
    }

    #[test]
    fn a_graph_holds_its_pool_until_dropped() {
        let mut libtorch = Libtorch::new(FailAt::Never, FailAt::Never);
        record(&mut libtorch, || Ok::<_, ShimError>(())).unwrap();
        assert!(libtorch.allocators.iter().all(|allocator| allocator.users == 2));
        assert!(is_as_before(&libtorch.dropped()));
    }

    #[test]
    fn a_panic_in_a_capture_restores_libtorchs_state() {
        let mut libtorch = Libtorch::new(FailAt::Never, FailAt::AtOnce);
        let panics = std::panic::AssertUnwindSafe(|| {
            record(&mut libtorch, || -> Result<(), ShimError> { panic!("made to fail") })
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        assert!(is_as_before(&libtorch.dropped()));
    }

    #[test]
    fn the_first_error_is_returned() {
        let mut libtorch = Libtorch::new(FailAt::Never, FailAt::AtOnce);
        let error = record(&mut libtorch, || thrown("not while capturing")).unwrap_err();
        assert_eq!(error.message, "not while capturing");
    }
}
