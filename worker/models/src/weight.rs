//! Parameters of matrix products and convolutions.

use std::sync::{Arc, Mutex, MutexGuard};

use dtrain_torch_shim::autocast::substitute_shadow;
use dtrain_torch_shim::frozen::Frozen;
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
    /// Of a weight that is held in fewer bytes, the factors of its rows, if it has any.
    pub(crate) frozen: Option<Option<Tensor>>,
}

impl Weight {
    /// Returns the weight if it is held in fewer bytes.
    pub(crate) fn frozen(&self) -> Option<Frozen<'_>> {
        let scale = self.frozen.as_ref()?.as_ref();
        Some(Frozen { weight: &self.leaf, scale })
    }

    /// Returns the operand of a product: the parameter, or its shadow, whose gradient the parameter gets.
    pub fn get(&self) -> Result<Tensor, ModelError> {
        match &*self.shadow.lock() {
            Some(shadow) => Ok(substitute_shadow(&self.leaf, shadow)?),
            None => Ok(self.leaf.shallow_clone()),
        }
    }
}
