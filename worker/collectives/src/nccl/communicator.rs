//! An NCCL communicator that is created, used and ended without blocking indefinitely.

use std::ffi::c_char;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use cudarc::nccl::sys::{ncclComm_t, ncclConfig_t, ncclUniqueId};

use super::UniqueId;
use super::api::{self, Api, Code, IN_PROGRESS, REMOTE_ERROR, SUCCESS, SYSTEM_ERROR};
use super::pause::pause;
use crate::{CollectiveError, Operation};

/// This rank's end of a group of ranks.
///
/// Every call holds the lock, but briefly, because the communicator does not block. So the watchdog can
/// always end it, which also ends its kernels on the device. A dropped communicator stays until the process
/// ends: freeing it would wait for peers that may be gone.
pub(super) struct Communicator {
    api: &'static Api,
    size: usize,
    state: Mutex<State>,
}

struct State {
    /// Null after it has ended.
    raw: ncclComm_t,
    /// Why it ended early.
    failure: Option<CollectiveError>,
}

// SAFETY: a communicator may be used from any thread, by one thread at a time; the lock ensures that.
unsafe impl Send for State {}

impl Communicator {
    /// Connects the ranks with `unique_id`; `connecting` has this rank and the time-out. The
    /// communicator uses the calling thread's current device.
    pub(super) fn connect(
        api: &'static Api,
        unique_id: &UniqueId,
        size: usize,
        connecting: Operation,
    ) -> Result<Self, CollectiveError> {
        let id = ncclUniqueId { internal: unique_id.map(|byte| byte as c_char) };
        let mut config = api::config(api.version, size);
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointers are valid during the call, and NCCL copies the settings.
        let code = unsafe {
            (api.functions.comm_init)(&mut raw, size as i32, id, connecting.rank as i32, &mut config)
        };
        Self::from_raw(api, size, raw, code, connecting)
    }

    /// Splits off a communicator of the same ranks with independent operations. Every rank calls it.
    pub(super) fn split(&self, connecting: Operation) -> Result<Self, CollectiveError> {
        let mut state = self.state();
        check_open(&state, connecting)?;
        // NCCL's thread writes the result some time later; after a time-out the time is unknown, so the
        // buffers leak.
        let buffers = Box::into_raw(Box::new(SplitBuffers {
            communicator: std::ptr::null_mut(),
            config: api::config(self.api.version, self.size),
        }));
        // SAFETY: the communicator is live, by the lock. The buffers live until NCCL has finished with them,
        // see below. Every rank has color 0. No references are made, as NCCL's thread may write meanwhile.
        let started = unsafe {
            (self.api.functions.comm_split)(
                state.raw,
                0,
                connecting.rank as i32,
                &raw mut (*buffers).communicator,
                &raw mut (*buffers).config,
            )
        };
        // Success only means that the split has started. This communicator is in progress until its end.
        self.finish_call(&mut state, started, connecting)?;
        // SAFETY: the pointer comes from the box above and is taken back once. This communicator is no longer
        // in progress: NCCL's thread has stored the result and does not use the buffers again.
        let buffers = unsafe { Box::from_raw(buffers) };
        drop(state);
        Self::from_raw(self.api, self.size, buffers.communicator, SUCCESS, connecting)
    }

    fn from_raw(
        api: &'static Api,
        size: usize,
        raw: ncclComm_t,
        code: Code,
        connecting: Operation,
    ) -> Result<Self, CollectiveError> {
        let communicator = Self { api, size, state: Mutex::new(State { raw, failure: None }) };
        let mut state = communicator.state();
        if state.raw.is_null() && (code == SUCCESS || code == IN_PROGRESS) {
            return Err(connecting.failed("NCCL created no communicator".into()));
        }
        communicator.finish_call(&mut state, code, connecting)?;
        drop(state);
        Ok(communicator)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls NCCL with `start`, which gets a live communicator, and waits until NCCL has accepted the call.
    pub(super) fn call(
        &self,
        operation: Operation,
        start: impl FnOnce(&Api, ncclComm_t) -> Code,
    ) -> Result<(), CollectiveError> {
        let mut state = self.state();
        check_open(&state, operation)?;
        let code = start(self.api, state.raw);
        self.finish_call(&mut state, code, operation)
    }

    /// Returns the failure, if there was one.
    pub(super) fn health(&self) -> Result<(), CollectiveError> {
        self.state().failure.clone().map_or(Ok(()), Err)
    }

    /// Returns an asynchronous error of NCCL, such as the death of a peer, as an error of `operation`.
    pub(super) fn asynchronous_error(&self, operation: Operation) -> Option<CollectiveError> {
        let state = self.state();
        if state.raw.is_null() {
            return None;
        }
        match self.progress(&state) {
            SUCCESS | IN_PROGRESS => None,
            code => Some(self.error(code, state.raw, operation)),
        }
    }

    fn error(&self, code: Code, raw: ncclComm_t, operation: Operation) -> CollectiveError {
        let message = format!("NCCL: {}", self.api.describe(code, raw));
        match code {
            SYSTEM_ERROR | REMOTE_ERROR => CollectiveError::PeerLost(operation, message),
            _ => operation.failed(message),
        }
    }

    /// Ends the communicator immediately. On the device, kernels that wait for peers stop and leave undefined
    /// results. All later calls return `reason`.
    pub(super) fn abort(&self, reason: CollectiveError) {
        self.end(&mut self.state(), reason);
    }

    /// Closes the communicator. No operation may be in flight, and every rank must call it.
    pub(super) fn close(&self, closing: Operation) -> Result<(), CollectiveError> {
        // SAFETY: comm is live, by the lock.
        self.call(closing, |api, comm| unsafe { (api.functions.comm_finalize)(comm) })?;
        let mut state = self.state();
        let raw = std::mem::replace(&mut state.raw, std::ptr::null_mut());
        // SAFETY: raw was live and is taken out, so it is destroyed once.
        match unsafe { (self.api.functions.comm_destroy)(raw) } {
            SUCCESS | IN_PROGRESS => Ok(()),
            code => Err(self.error(code, std::ptr::null_mut(), closing)),
        }
    }

    /// Waits until NCCL has accepted a call, and ends the communicator after an error or a time-out. `code`
    /// is the call's result; even success may mean that the work has only started.
    fn finish_call(
        &self,
        state: &mut State,
        code: Code,
        operation: Operation,
    ) -> Result<(), CollectiveError> {
        let started = Instant::now();
        let error = loop {
            let now = match code {
                SUCCESS | IN_PROGRESS => self.progress(state),
                failed => failed,
            };
            match now {
                SUCCESS => return Ok(()),
                IN_PROGRESS => {}
                failed => break self.error(failed, state.raw, operation),
            }
            let waited = started.elapsed();
            if waited > operation.timeout {
                break operation.timed_out();
            }
            pause(waited, self.api.sleep);
        };
        self.end(state, error.clone());
        Err(error)
    }

    /// Returns the state of the communicator, which must not be null.
    fn progress(&self, state: &State) -> Code {
        let mut code = SUCCESS;
        // SAFETY: the communicator is live, and code is valid for writes.
        match unsafe { (self.api.functions.comm_async_error)(state.raw, &mut code) } {
            SUCCESS => code,
            failed => failed,
        }
    }

    fn end(&self, state: &mut State, reason: CollectiveError) {
        state.failure.get_or_insert(reason);
        let raw = std::mem::replace(&mut state.raw, std::ptr::null_mut());
        if !raw.is_null() {
            // SAFETY: raw was live and is taken out, so it is freed once.
            let code = unsafe { (self.api.functions.comm_abort)(raw) };
            if code != SUCCESS && code != IN_PROGRESS {
                tracing::debug!(
                    "aborting an NCCL communicator failed: {}",
                    self.api.describe(code, std::ptr::null_mut())
                );
            }
        }
    }
}

fn check_open(state: &State, operation: Operation) -> Result<(), CollectiveError> {
    match &state.failure {
        Some(failure) => Err(failure.clone()),
        None if state.raw.is_null() => Err(operation.failed("the NCCL group is already closed".into())),
        None => Ok(()),
    }
}

/// The buffers that NCCL reads and writes while it splits a communicator.
struct SplitBuffers {
    communicator: ncclComm_t,
    config: ncclConfig_t,
}
