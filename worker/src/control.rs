//! The worker's control socket: answers `dtrain gpu clear` while the training goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::memory_report::host_memory;
use dtrain_common::control::{Answer, Ask, Listener, ask, folders};
use dtrain_torch_shim::{ShimError, memory};
use tch::Device;

use crate::device;

/// A question only wakes the thread so that it ends; nobody waits for its answer.
const WAKE: Duration = Duration::from_millis(100);

/// A socket that is answered on a thread of its own, until this is dropped.
#[derive(Debug)]
pub(crate) struct Control {
    socket: Option<Socket>,
}

#[derive(Debug)]
struct Socket {
    path: std::path::PathBuf,
    ended: Arc<AtomicBool>,
}

impl Control {
    /// Begins to listen for the rank on `device`. Where that is not possible the training goes on without: it is told to those
    /// who look for it.
    pub(crate) fn listen(rank: usize, device: Device) -> Self {
        let listener = match Listener::open(&folders()) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::debug!(
                    "no control socket, so `dtrain gpu clear` will not find this worker: {error}"
                );
                return Self { socket: None };
            }
        };
        let path = listener.path().to_owned();
        let ended = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&ended);
        let serve = move || {
            // Freed blocks go back to CUDA from this thread, which else would begin with a context on GPU 0.
            if let Err(error) = device::enter(device) {
                tracing::debug!("no control socket: {error}");
                return;
            }
            while !over.load(Ordering::Acquire) {
                if let Err(error) = listener.serve(|ask| answer(ask, rank, device)) {
                    tracing::debug!("the control socket: {error}");
                    // Out of file descriptors, say: it must not take a core.
                    thread::sleep(WAKE);
                }
            }
        };
        match thread::Builder::new().name("control".to_owned()).spawn(serve) {
            Ok(_) => Self {
                socket: Some(Socket { path, ended }),
            },
            Err(error) => {
                tracing::debug!("no thread for the control socket: {error}");
                Self { socket: None }
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Some(Socket { path, ended }) = self.socket.take() {
            ended.store(true, Ordering::Release);
            // The thread waits for a question. With this one it finds that it is over, and removes the socket.
            if let Err(error) = ask(&path, Ask::Memory, WAKE) {
                tracing::debug!("the control socket at its end: {error}");
            }
            let _ = std::fs::remove_file(path);
        }
    }
}

fn answer(question: Ask, rank: usize, device: Device) -> Result<Answer, String> {
    let before = held(device).map_err(|error| error.to_string())?;
    if question == Ask::Clear {
        memory::empty_cache(device).map_err(|error| error.to_string())?;
    }
    let after = held(device).map_err(|error| error.to_string())?;
    Ok(Answer {
        freed: before.1.saturating_sub(after.1),
        allocated: after.0,
        reserved: after.1,
        device: device::name(device),
        rank,
    })
}

/// What tensors use, and what the process holds for them. On a CPU that is its resident memory; where tensors are not accounted
/// for, they are taken to use all of it.
fn held(device: Device) -> Result<(u64, u64), ShimError> {
    let usage = memory::usage(device)?;
    if device != Device::Cpu {
        return Ok((usage.allocated, usage.reserved));
    }
    let resident = host_memory().map_or(usage.reserved, |memory| memory.reserved);
    let allocated = if usage.allocated > 0 {
        usage.allocated
    } else {
        resident
    };
    Ok((allocated, resident))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use dtrain_common::control::workers;

    #[test]
    fn a_worker_answers_until_its_end() {
        let control = Control::listen(3, Device::Cpu);
        let path = control.socket.as_ref().unwrap().path.clone();
        let here = || workers(&folders()).iter().any(|(_, found)| *found == path);
        assert!(here());
        let answer = ask(&path, Ask::Clear, Duration::from_secs(20)).unwrap();
        assert_eq!((answer.rank, answer.device.as_str()), (3, "CPU"));
        assert!(answer.reserved > 0 && answer.allocated > 0, "{answer:?}");
        let answer = ask(&path, Ask::Memory, Duration::from_secs(20)).unwrap();
        assert_eq!(answer.freed, 0);
        drop(control);
        assert!(!here());
    }
}
