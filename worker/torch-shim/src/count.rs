//! Counts of operations: on a GPU the host launches a kernel for each of them.

use std::cell::Cell;
use std::rc::Rc;

use crate::error::{ShimError, create};
use crate::ffi;
pub use crate::ffi::Operations;

/// Counts the operations of this thread while it lives, including those of backward passes on the CPU.
#[derive(Debug)]
pub struct OperationCounter {
    /// Dropped before the counts.
    _mode: ffi::Owned<ffi::CountingMode>,
    /// libtorch also writes to it, on this thread. A box would require exclusive access.
    counts: Rc<Cell<Operations>>,
}

impl OperationCounter {
    /// Starts counting. An error if this thread already counts, or inside [`crate::symbolic`].
    pub fn start() -> Result<Self, ShimError> {
        let counts = Rc::<Cell<Operations>>::default();
        let mode = create("count operations", |out, error| {
            // SAFETY: the counts live until the mode is freed, do not move with this value, and are accessed
            // only through shared cells on this thread.
            unsafe { ffi::dt_count_enter(counts.as_ptr(), out, error) }
        })?;
        Ok(Self { _mode: mode, counts })
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> Operations {
        self.counts.get()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tch::{Device, Kind, Tensor};

    #[test]
    fn kernels_and_reads_are_counted_and_views_are_not() {
        let x = Tensor::ones([4, 4], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let counting = OperationCounter::start().unwrap();
        let view = x.view([16]).narrow(0, 0, 8);
        assert_eq!(counting.counts(), Operations::default());
        let negative = view.neg();
        assert_eq!(counting.counts(), Operations { kernels: 1, reads: 0 });
        let sum = negative.sum(Kind::Float);
        let forward = counting.counts();
        assert!(forward.kernels > 1 && forward.reads == 0, "{forward:?}");
        assert_eq!(sum.double_value(&[]), -8.0);
        assert_eq!(counting.counts().reads, 1);
        sum.backward();
        let all = counting.counts();
        assert!(all.kernels > forward.kernels, "{all:?}");
        assert!(OperationCounter::start().is_err());
        let moved = Box::new(counting);
        let _ = x.neg();
        assert_eq!(moved.counts().kernels, all.kernels + 1);
        drop(moved);
        let other = OperationCounter::start().unwrap();
        let _ = x.neg();
        assert_eq!(other.counts().kernels, 1);
    }
}
