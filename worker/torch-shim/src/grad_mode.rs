//! The thread's setting whether operations are recorded for backward.

use crate::ffi;
use std::marker::PhantomData;

/// Restores the calling thread's mode on drop, unlike `tch::no_grad` also after a panic. Stays on its thread.
#[derive(Debug)]
pub struct GradMode(bool, PhantomData<*const ()>);

impl GradMode {
    /// Saves the present mode.
    pub fn save() -> Self {
        Self(ffi::dt_grad_mode(), PhantomData)
    }

    /// Sets the mode until the drop.
    pub fn set(enabled: bool) -> Self {
        let before = Self::save();
        ffi::dt_grad_mode_set(enabled);
        before
    }
}

impl Drop for GradMode {
    fn drop(&mut self) {
        ffi::dt_grad_mode_set(self.0);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tch::Tensor;

    fn records() -> bool {
        let leaf = Tensor::from_slice(&[1f32]).set_requires_grad(true);
        (&leaf + &leaf).requires_grad()
    }

    #[test]
    fn a_panic_restores_the_gradient_mode() {
        assert!(records());
        let panicked = std::panic::catch_unwind(|| {
            let _mode = GradMode::save();
            tch::no_grad(|| panic!("on purpose"))
        });
        assert!(panicked.is_err() && records());
        tch::no_grad(|| {
            drop(GradMode::save());
            assert!(!records());
        });
    }
}
