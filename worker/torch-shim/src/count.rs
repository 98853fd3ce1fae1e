//! How many operations a piece of work is made of: on a GPU each of them is a kernel that the host has to start.

use std::cell::Cell;
use std::rc::Rc;

use crate::error::{ShimError, made};
use crate::ffi;
pub use crate::ffi::Operations;

/// Counts the operations of this thread while it lives, those of backward passes on the CPU among them.
#[derive(Debug)]
pub struct Counting {
    /// Before what is counted into.
    _mode: ffi::Owned<ffi::CountingMode>,
    /// libtorch writes to it too, on this thread alone. A box would claim it for Rust.
    counted: Rc<Cell<Operations>>,
}

impl Counting {
    /// Begins to count. An error where this thread counts already, or is within [`crate::symbolic`].
    pub fn begin() -> Result<Self, ShimError> {
        let counted = Rc::<Cell<Operations>>::default();
        let mode = made("count operations", |out, error| {
            // SAFETY: what is counted into lives until the mode is freed, keeps its place when this value is moved, and is read and
            // written through shared cells alone, on this thread.
            unsafe { ffi::dt_count_enter(counted.as_ptr(), out, error) }
        })?;
        Ok(Self { _mode: mode, counted })
    }

    /// What was counted so far.
    pub fn so_far(&self) -> Operations {
        self.counted.get()
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
        let counting = Counting::begin().unwrap();
        let view = x.view([16]).narrow(0, 0, 8);
        assert_eq!(counting.so_far(), Operations::default());
        let negative = view.neg();
        assert_eq!(counting.so_far(), Operations { kernels: 1, reads: 0 });
        let sum = negative.sum(Kind::Float);
        let forward = counting.so_far();
        assert!(forward.kernels > 1 && forward.reads == 0, "{forward:?}");
        assert_eq!(sum.double_value(&[]), -8.0);
        assert_eq!(counting.so_far().reads, 1);
        sum.backward();
        let all = counting.so_far();
        assert!(all.kernels > forward.kernels, "{all:?}");
        assert!(Counting::begin().is_err());
        let moved = Box::new(counting);
        let _ = x.neg();
        assert_eq!(moved.so_far().kernels, all.kernels + 1);
        drop(moved);
        let other = Counting::begin().unwrap();
        let _ = x.neg();
        assert_eq!(other.so_far().kernels, 1);
    }
}
