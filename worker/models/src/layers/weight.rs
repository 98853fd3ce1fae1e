//! The parameters that products are computed with.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dtrain_torch_shim::autocast::shadowed;
use tch::Tensor;

use super::super::error::ModelError;

/// Where a trainer puts the values of a parameter in autocast's dtype, so that they need not be cast in every forward pass. It keeps
/// them up to date, or takes them away.
#[derive(Debug, Clone, Default)]
pub struct Shadow(Arc<Mutex<Option<Tensor>>>);

impl Shadow {
    /// Puts these values in place, of the parameter's shape.
    pub fn set(&self, values: Option<Tensor>) {
        *self.lock() = values;
    }

    /// Whether values are in place.
    pub fn is_set(&self) -> bool {
        self.lock().is_some()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Tensor>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A parameter that products are computed with.
#[derive(Debug)]
pub struct Weight {
    pub(crate) leaf: Tensor,
    pub(crate) shadow: Shadow,
}

impl Weight {
    /// What a product takes: the parameter, or its shadow in autocast, whose gradient is the parameter's.
    pub fn get(&self) -> Result<Tensor, ModelError> {
        match &*self.shadow.lock() {
            Some(shadow) => Ok(shadowed(&self.leaf, shadow)?),
            None => Ok(self.leaf.shallow_clone()),
        }
    }
}
