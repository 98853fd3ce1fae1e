//! The worker's control socket: answers `dtrain gpu clear` during the training.

use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use dtrain_common::control::{Listener, Request, Response, folders};
use dtrain_torch_shim::{ShimError, memory};
use tch::Device;

use crate::device;

/// Pause after a failed request.
const PAUSE: Duration = Duration::from_millis(100);

/// The control socket. A thread answers it until the process ends; dropping this removes the socket's path.
pub(crate) struct Control {
    path: PathBuf,
}

impl Control {
    /// Listens for `rank` on `device`. If that fails, the training runs without a control socket.
    pub(crate) fn listen(rank: usize, device: Device) -> Option<Self> {
        let listening = Self::try_listen(rank, device);
        let message = "cannot open the control socket, so `dtrain gpu clear` cannot find this worker";
        listening.inspect_err(|error| tracing::debug!("{message}: {error}")).ok()
    }

    fn try_listen(rank: usize, device: Device) -> io::Result<Self> {
        let listener = Listener::open(&folders())?;
        let path = listener.path().to_owned();
        let serve = move || {
            // `empty_cache` runs on this thread, which would otherwise create a context on GPU 0.
            if let Err(error) = device::enter(device) {
                return tracing::debug!("cannot serve the control socket: {error}");
            }
            loop {
                if let Err(error) =
                    listener.serve(|ask| answer(ask, rank, device).map_err(|error| error.to_string()))
                {
                    tracing::debug!("control socket: {error}");
                    // A repeated error, such as no free file descriptors, must not keep a core busy.
                    thread::sleep(PAUSE);
                }
            }
        };
        thread::Builder::new().name("control".to_owned()).spawn(serve)?;
        Ok(Self { path })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn answer(question: Request, rank: usize, device: Device) -> Result<Response, ShimError> {
    let before = held(device)?;
    if question == Request::Clear {
        memory::empty_cache(device)?;
    }
    let after = held(device)?;
    Ok(Response {
        freed: before.1.saturating_sub(after.1),
        allocated: after.0,
        reserved: after.1,
        device: device::name(device),
        rank,
    })
}

/// Returns the bytes of tensors, and the bytes that the process holds. On a CPU, the process holds its
/// resident memory; if tensors are not counted, this is returned for both.
fn held(device: Device) -> Result<(u64, u64), ShimError> {
    let usage = memory::usage(device)?;
    if device != Device::Cpu {
        return Ok((usage.allocated, usage.reserved));
    }
    let resident = resident().unwrap_or(usage.reserved);
    let allocated = if usage.allocated == 0 { resident } else { usage.allocated };
    Ok((allocated, resident))
}

fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use dtrain_common::control::{request, workers};

    #[test]
    fn a_worker_answers_until_it_ends() {
        let control = Control::listen(3, Device::Cpu).unwrap();
        let path = control.path.clone();
        let is_listed = || workers(&folders()).iter().any(|(_, found)| *found == path);
        assert!(is_listed());
        let answer = request(&path, Request::Clear, Duration::from_secs(20)).unwrap();
        assert_eq!((answer.rank, answer.device.as_str()), (3, "CPU"));
        assert!(answer.reserved > 0 && answer.allocated > 0, "{answer:?}");
        let answer = request(&path, Request::Memory, Duration::from_secs(20)).unwrap();
        assert_eq!(answer.freed, 0);
        drop(control);
        assert!(!is_listed());
    }
}
