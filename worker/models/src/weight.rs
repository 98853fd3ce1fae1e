//! Parameters of matrix products and convolutions.

use std::sync::{Arc, Mutex, MutexGuard};

use dtrain_torch_shim::autocast::substitute_shadow;
use tch::Tensor;

use super::error::ModelError;
use super::lock;

/// A slot for a parameter's values in autocast's dtype, so that forward passes need not cast them. The
/// trainer sets the values, and updates or removes them.
#[derive(Debug, Clone, Default)]
pub struct Shadow(Arc<Mutex<Option<Tensor>>>);

impl Shadow {
    /// Sets the values, of the parameter's shape, or removes them.
    pub fn set(&self, values: Option<Tensor>) {
        *self.lock() = values;
    }

    /// Returns whether values are set.
    pub fn is_set(&self) -> bool {
        self.lock().is_some()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Tensor>> {
        lock(&self.0)
    }
}

/// A parameter that products use.
#[derive(Debug)]
pub struct Weight {
    pub(crate) leaf: Tensor,
    pub(crate) shadow: Shadow,
}

impl Weight {
    /// Returns the operand of a product: the parameter, or its shadow, whose gradient the parameter gets.
    pub fn get(&self) -> Result<Tensor, ModelError> {
        match &*self.shadow.lock() {
            Some(shadow) => Ok(substitute_shadow(&self.leaf, shadow)?),
            None => Ok(self.leaf.shallow_clone()),
        }
    }
}
