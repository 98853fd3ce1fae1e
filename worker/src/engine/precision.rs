//! Automatic mixed precision: matrix products and convolutions in a shorter dtype, parameters and their updates in float32.

use dtrain_torch_shim::ShimError;
use dtrain_torch_shim::autocast::Autocast;
use tch::{Device, Kind};

use super::arena::Arena;
use super::error::TrainError;
use super::reducer::Reducer;

/// In which precision forward passes run.
#[derive(Debug)]
pub struct Precision {
    device: Device,
    /// The dtype of autocast regions, where there are any.
    autocast: Option<Kind>,
}

impl Precision {
    /// Everything in the parameters' own dtype.
    pub fn full(device: Device) -> Self {
        Self {
            device,
            autocast: None,
        }
    }

    /// Runs a forward pass. Backward runs outside: it takes the dtypes of the recorded graph.
    pub(super) fn run<T>(&self, forward: impl FnOnce() -> T) -> Result<T, ShimError> {
        let _region = self
            .autocast
            .map(|kind| Autocast::enter(self.device, kind))
            .transpose()?;
        Ok(forward())
    }

    /// The factor of the next step's losses.
    pub(super) fn loss_scale(&self) -> f64 {
        1.0
    }

    pub(super) fn unscale(&mut self, _arena: &Arena, _reducer: &Reducer) -> Result<bool, TrainError> {
        Ok(true)
    }

    pub(super) fn update(&mut self, _finite: bool) {}
}
