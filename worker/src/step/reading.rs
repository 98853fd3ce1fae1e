//! Figures of a device that the host needs: the one thing for which the host waits within a step.

use dtrain_torch_shim::stream::{Event, Stream};
use tch::{Device, Kind, Tensor};

use crate::train_error::Result;

/// Figures on their way to the host. The device goes on with what it is given behind them.
#[derive(Debug)]
pub(super) struct Reading {
    values: Tensor,
    /// When they are there, where a device copies them.
    copied: Option<Event>,
}

impl Reading {
    /// Has the device copy `figures`, float64 and flat, to pinned memory, behind what it was given so far.
    pub(super) fn begin(figures: &Tensor) -> Result<Self> {
        let Device::Cuda(gpu) = figures.device() else {
            let values = figures.shallow_clone();
            return Ok(Self { values, copied: None });
        };
        let values = figures.f_to_device_(Device::Cpu, Kind::Double, true, false)?;
        let mut copied = Event::new()?;
        copied.record(Stream::current(gpu)?)?;
        Ok(Self { values, copied: Some(copied) })
    }

    /// Waits for them.
    pub(super) fn wait(self) -> Result<Vec<f64>> {
        #[cfg(test)]
        tests::WAITS.set(tests::WAITS.get() + 1);
        if let Some(copied) = &self.copied {
            copied.synchronize()?;
        }
        Ok(Vec::try_from(self.values)?)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    thread_local! {
        /// How often this thread has waited: on a GPU, so often would the host have waited for it.
        pub(in crate::step) static WAITS: Cell<u64> = const { Cell::new(0) };
    }
}
