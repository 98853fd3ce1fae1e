//! How long a device, or the host where it computes, stood still for other ranks.

use std::time::Instant;

use dtrain_torch_shim::ShimError;
use dtrain_torch_shim::stream::{Event, Stream};
use tch::Device;

/// Measures from [`Stopwatch::start`] to [`Stopwatch::stop`]. On a GPU both are places in the stream that computes, and what lies
/// between them is what it waits for; the host waits for neither.
#[derive(Debug)]
pub(super) enum Stopwatch {
    Host(Instant, f64),
    Device { gpu: usize, start: Event, stop: Event },
}

impl Stopwatch {
    pub(super) fn start(device: Device) -> Result<Self, ShimError> {
        let Device::Cuda(gpu) = device else {
            return Ok(Self::Host(Instant::now(), 0.0));
        };
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

    /// The milliseconds in between, when the host has waited for something that the device did later.
    ///
    pub(super) fn ms(&self) -> Result<f64, ShimError> {
        match self {
            Self::Host(_, ms) => Ok(*ms),
            Self::Device { start, stop, .. } => stop.ms_since(start),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_time_on_a_host_ends_with_the_stop() {
        let mut watch = Stopwatch::start(Device::Cpu).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        watch.stop().unwrap();
        let ms = watch.ms().unwrap();
        std::thread::sleep(Duration::from_millis(5));
        assert!(ms >= 5.0);
        assert_eq!(watch.ms().unwrap(), ms);
    }
}
