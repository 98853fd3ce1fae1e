//! Figures of a device for the host. Within a step, the host waits for the device only here.

use std::time::Instant;

use dtrain_torch_shim::ShimError;
use dtrain_torch_shim::stream::{Event, Stream};
use tch::{Device, Kind, Tensor};

use crate::step::error::Result;

/// Figures on their way to the host. The device continues with later work.
#[derive(Debug)]
pub(super) struct Reading {
    values: Tensor,
    /// The end of the copy from a device.
    copied: Option<Event>,
}

impl Reading {
    /// Starts a copy of `figures`, float64 and flat, to pinned memory, after the work queued so far.
    pub(super) fn begin(figures: &Tensor) -> Result<Self> {
        let Device::Cuda(gpu) = figures.device() else {
            let values = figures.shallow_clone();
            return Ok(Self { values, copied: None });
        };
        let values = figures.f_to_device_(Device::Cpu, Kind::Double, true, false)?;
        Ok(Self { values, copied: Some(Stream::current(gpu)?.record_event()?) })
    }

    pub(super) fn wait(self) -> Result<Vec<f64>> {
        #[cfg(test)]
        tests::WAITS.set(tests::WAITS.get() + 1);
        if let Some(copied) = &self.copied {
            copied.synchronize()?;
        }
        Ok(Vec::try_from(self.values)?)
    }
}

/// Measures from [`Stopwatch::start`] to [`Stopwatch::stop`]. On a GPU these are events in the computing
/// stream; the time includes its waits. The host does not wait.
#[derive(Debug)]
pub(super) enum Stopwatch {
    Host(Instant, f64),
    Device { gpu: usize, start: Event, stop: Event },
}

impl Stopwatch {
    pub(super) fn start(device: Device) -> Result<Self, ShimError> {
        let Device::Cuda(gpu) = device else { return Ok(Self::Host(Instant::now(), 0.0)) };
        let (mut start, stop) = (Event::timed()?, Event::timed()?);
        start.record(Stream::current(gpu)?)?;
        Ok(Self::Device { gpu, start, stop })
    }

    pub(super) fn stop(&mut self) -> Result<(), ShimError> {
        match self {
            Self::Host(begun, ms) => *ms = begun.elapsed().as_secs_f64() * 1e3,
            Self::Device { gpu, stop, .. } => stop.record(Stream::current(*gpu)?)?,
        }
        Ok(())
    }

    /// Returns the milliseconds between. On a GPU, first wait for work that was queued later.
    pub(super) fn ms(&self) -> Result<f64, ShimError> {
        match self {
            Self::Host(_, ms) => Ok(*ms),
            Self::Device { start, stop, .. } => stop.ms_since(start),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;

    thread_local! {
        /// How often this thread has waited; on a GPU, the host would wait as often.
        pub(in crate::step) static WAITS: Cell<u64> = const { Cell::new(0) };
    }

    #[test]
    fn a_stopped_stopwatch_keeps_its_time() {
        let mut watch = Stopwatch::start(Device::Cpu).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        watch.stop().unwrap();
        let ms = watch.ms().unwrap();
        std::thread::sleep(Duration::from_millis(5));
        assert!(ms >= 5.0);
        assert_eq!(watch.ms().unwrap(), ms);
    }
}
