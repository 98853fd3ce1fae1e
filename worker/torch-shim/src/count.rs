//! How many operations a piece of work is made of: on a GPU each of them is a kernel that the host has to start.

use std::ffi::c_void;
use std::marker::PhantomData;

use crate::error::{ShimError, checked};
use crate::ffi;

/// Operations of a thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Operations {
    /// Those that compute: views, fresh memory and what is composed of others are not among them.
    pub kernels: u64,
    /// Those by which the host reads a value, for which a GPU would be waited for.
    pub reads: u64,
}

/// Counts the operations of this thread while it lives, those of backward passes on the CPU among them.
#[derive(Debug)]
pub struct Counting {
    mode: *mut c_void,
    counted: Box<ffi::DtOperations>,
    /// The count is the thread's.
    _not_send: PhantomData<*const ()>,
}

impl Counting {
    /// Begins to count.
    ///
    /// # Errors
    /// Where this thread counts already, or is within [`crate::symbolic`].
    pub fn begin() -> Result<Self, ShimError> {
        let mut counted = Box::<ffi::DtOperations>::default();
        let mut mode = std::ptr::null_mut();
        let into: *mut ffi::DtOperations = &mut *counted;
        checked("count operations", |error| {
            // SAFETY: mode is a valid place, and what is counted into lives until dt_count_leave.
            unsafe { ffi::dt_count_enter(into, &mut mode, error) }
        })?;
        Ok(Self {
            mode,
            counted,
            _not_send: PhantomData,
        })
    }

    /// What was counted so far.
    pub fn so_far(&self) -> Operations {
        let counted: *const ffi::DtOperations = &*self.counted;
        // SAFETY: it lives, and only this thread writes to it, within calls of libtorch.
        let ffi::DtOperations { kernels, reads } = unsafe { counted.read_volatile() };
        Operations { kernels, reads }
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        // SAFETY: the mode was made by begin on this thread, and is freed once.
        unsafe { ffi::dt_count_leave(self.mode) }
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
        drop(counting);
        let other = Counting::begin().unwrap();
        let _ = x.neg();
        assert_eq!(other.so_far().kernels, 1);
    }
}
