//! What a capture leaves where it fails: nothing.
//!
//! libtorch's own end of a capture cleans up only where CUDA has taken the work down. Otherwise the generator of random numbers still
//! counts as capturing, so that the next dropout throws; both allocators go on to give the graphs' memory to the stream; and that
//! memory is never given back. A capture that begins and fails on the way leaves the same.

use crate::error::ShimError;

/// The two that keep memory apart for graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    /// The caching allocator of the device.
    Device,
    /// That of the host's pinned memory.
    Pinned,
}

/// What is done to libtorch for one capture.
pub(super) trait Recorder {
    /// From here on work is written down. Where it fails it may have done any part of that.
    fn begin(&mut self) -> Result<(), ShimError>;
    /// The end. Where it fails it may have done any part of that.
    fn end(&mut self) -> Result<(), ShimError>;
    /// Whether the end came so far that dropping the graph gives its memory back.
    fn has_ended(&self) -> bool;
    /// The allocator gives no more memory of the pool's to the capture; an error where it did not. With
    /// `release` the capture does not use the pool any more.
    fn leave(&mut self, memory: Memory, release: bool) -> Result<(), ShimError>;
    /// The generator is told that no capture is under way.
    fn calm_generator(&mut self) -> Result<(), ShimError>;
}

/// Runs `body` between the beginning and the end of a capture; where one of the three fails, or `body` panics, libtorch is as before.
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

/// A capture under way: it is ended, and cleaned up after, also where it is left by an error or a panic.
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
        // The error that matters came before.
        let _ = self.end();
    }
}

/// `begun` says that the capture had begun, and so had both allocators.
fn clean_up(recorder: &mut impl Recorder, begun: bool) {
    for memory in [Memory::Device, Memory::Pinned] {
        // Each takes part from its beginning to its end, and counts the pool's captures from the former.
        let took_part = recorder.leave(memory, false).is_ok();
        if took_part || begun {
            // Neither failure changes the error that is told, which came before.
            let _ = recorder.leave(memory, true);
        }
    }
    let _ = recorder.calm_generator();
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::error::ErrorKind;

    /// Where a step of libtorch's fails, in its order.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Fails {
        AtOnce,
        AfterGenerator,
        AfterDevice,
        AfterPinned,
        Never,
    }

    #[derive(Debug, Default, Clone, Copy, PartialEq)]
    struct Allocator {
        allocates: bool,
        users: i32,
    }

    /// libtorch as its source has it: what begins and ends in which order, and what of it throws.
    struct Libtorch {
        begins: Fails,
        /// `AfterGenerator` is here: both allocators have ended, and the generator has not.
        ends: Fails,
        generator_captures: bool,
        allocators: [Allocator; 2],
        has_ended: bool,
    }

    fn thrown(words: &str) -> Result<(), ShimError> {
        Err(ShimError::new("capture", ErrorKind::Device, words))
    }

    impl Libtorch {
        fn new(begins: Fails, ends: Fails) -> Self {
            // Another graph uses the pool.
            let allocators = [Allocator { allocates: false, users: 1 }; 2];
            Self { begins, ends, generator_captures: false, allocators, has_ended: false }
        }

        fn of(&mut self, memory: Memory) -> &mut Allocator {
            &mut self.allocators[memory as usize]
        }

        fn start(&mut self, memory: Memory) {
            let allocator = self.of(memory);
            (allocator.allocates, allocator.users) = (true, allocator.users + 1);
        }

        /// The graph is dropped.
        fn dropped(mut self) -> Self {
            if std::mem::take(&mut self.has_ended) {
                self.allocators.iter_mut().for_each(|allocator| allocator.users -= 1);
            }
            self
        }
    }

    impl Recorder for Libtorch {
        fn begin(&mut self) -> Result<(), ShimError> {
            if self.begins == Fails::AtOnce {
                return thrown("another capture is under way");
            }
            self.generator_captures = true;
            if self.begins == Fails::AfterGenerator {
                return thrown("the default stream");
            }
            self.start(Memory::Device);
            if self.begins == Fails::AfterDevice {
                return thrown("no memory for a list");
            }
            self.start(Memory::Pinned);
            match self.begins {
                Fails::AfterPinned => thrown("CUDA begins no capture"),
                _ => Ok(()),
            }
        }

        fn end(&mut self) -> Result<(), ShimError> {
            if self.ends == Fails::AtOnce {
                return thrown("operation failed due to a previous error during capture");
            }
            self.leave(Memory::Device, false)?;
            if self.ends == Fails::AfterDevice {
                return thrown("no memory for a list");
            }
            self.leave(Memory::Pinned, false)?;
            if self.ends == Fails::AfterGenerator {
                return thrown("Invalid capture.");
            }
            (self.generator_captures, self.has_ended) = (false, true);
            match self.ends {
                Fails::AfterPinned => thrown("the graph cannot be instantiated"),
                _ => Ok(()),
            }
        }

        fn has_ended(&self) -> bool {
            self.has_ended
        }

        fn leave(&mut self, memory: Memory, release: bool) -> Result<(), ShimError> {
            if release {
                self.of(memory).users -= 1;
                return Ok(());
            }
            match std::mem::take(&mut self.of(memory).allocates) {
                true => Ok(()),
                false => thrown("endAllocatePool: not currently recording to mempool_id"),
            }
        }

        fn calm_generator(&mut self) -> Result<(), ShimError> {
            self.generator_captures = false;
            Ok(())
        }
    }

    const ALL: [Fails; 5] =
        [Fails::AtOnce, Fails::AfterGenerator, Fails::AfterDevice, Fails::AfterPinned, Fails::Never];

    fn is_as_before(libtorch: &Libtorch) -> bool {
        let idle = Allocator { allocates: false, users: 1 };
        !libtorch.generator_captures && libtorch.allocators == [idle; 2]
    }

    #[test]
    fn a_capture_that_fails_anywhere_leaves_libtorch_as_it_was() {
        for begins in ALL {
            for ends in ALL {
                for body in [Ok(()), thrown("not while capturing")] {
                    let fails = begins != Fails::Never || ends != Fails::Never || body.is_err();
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
    fn the_memory_of_a_capture_that_was_taken_is_the_graphs_until_it_is_dropped() {
        let mut libtorch = Libtorch::new(Fails::Never, Fails::Never);
        record(&mut libtorch, || Ok::<_, ShimError>(())).unwrap();
        assert!(libtorch.allocators.iter().all(|allocator| allocator.users == 2));
        assert!(is_as_before(&libtorch.dropped()));
    }

    #[test]
    fn a_panic_in_a_capture_leaves_libtorch_as_it_was() {
        let mut libtorch = Libtorch::new(Fails::Never, Fails::AtOnce);
        let panics = std::panic::AssertUnwindSafe(|| {
            record(&mut libtorch, || -> Result<(), ShimError> { panic!("made to fail") })
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        assert!(is_as_before(&libtorch.dropped()));
    }

    #[test]
    fn the_first_error_is_the_one_that_is_told() {
        let mut libtorch = Libtorch::new(Fails::Never, Fails::AtOnce);
        let error = record(&mut libtorch, || thrown("not while capturing")).unwrap_err();
        assert_eq!(error.message, "not while capturing");
    }
}
