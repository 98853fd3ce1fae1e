//! One of NCCL's communicators: made, used, and ended without ever blocking for good.

use std::ffi::c_char;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use cudarc::nccl::sys::{ncclComm_t, ncclConfig_t, ncclUniqueId};

use super::Invitation;
use super::api::{self, Api, Code, IN_PROGRESS, REMOTE_ERROR, SUCCESS, SYSTEM_ERROR};
use super::pause::pause;
use crate::{CollectiveError, Operation};

/// This rank's end of a group of ranks.
///
/// Every call holds the lock, and none takes long: the communicator does not block. So whoever watches over it can always end
/// it, which also ends what runs on the device. One that is merely dropped stays to the end of the process: freeing it would wait
/// for peers that may be gone.
pub(super) struct Communicator {
    api: &'static Api,
    size: usize,
    state: Mutex<State>,
}

struct State {
    /// Null once it has ended.
    raw: ncclComm_t,
    /// Why it has ended before its time.
    failure: Option<CollectiveError>,
}

// SAFETY: NCCL's communicators may be used from any thread, by one at a time, which the lock sees to.
unsafe impl Send for State {}

impl Communicator {
    /// Connects the ranks that hold `invitation`; `connecting` says who this is and how long it waits for the
    /// others. The current device of the calling thread becomes the communicator's.
    pub(super) fn connect(
        api: &'static Api,
        invitation: &Invitation,
        size: usize,
        connecting: Operation,
    ) -> Result<Self, CollectiveError> {
        let id = ncclUniqueId { internal: invitation.map(|byte| byte as c_char) };
        let mut config = api::config(api.version, size);
        let mut raw = std::ptr::null_mut();
        // SAFETY: the places are valid during the call; NCCL copies the settings.
        let code = unsafe {
            (api.functions.comm_init)(&mut raw, size as i32, id, connecting.rank as i32, &mut config)
        };
        Self::made(api, size, raw, code, connecting)
    }

    /// A communicator of the same ranks whose operations are independent of this one's. Every rank calls it.
    pub(super) fn split(&self, connecting: Operation) -> Result<Self, CollectiveError> {
        let mut state = self.state();
        live(&state, connecting)?;
        // A thread of NCCL's writes the result some time after the call. Where that thread is given up on, nobody knows when: the
        // places stay for good.
        let places = Box::into_raw(Box::new(SplitPlaces {
            made: std::ptr::null_mut(),
            config: api::config(self.api.version, self.size),
        }));
        // SAFETY: the communicator is live, by the lock; the places live until NCCL has done with them, see below; every rank has
        // color 0. The references of raw pointers are not made: NCCL's thread may write meanwhile.
        let begun = unsafe {
            (self.api.functions.comm_split)(
                state.raw,
                0,
                connecting.rank as i32,
                &raw mut (*places).made,
                &raw mut (*places).config,
            )
        };
        // Without blocking, success says that the split has begun. This communicator is in progress until it has ended.
        self.settle(&mut state, begun, connecting)?;
        // SAFETY: the places come from the box above, and are taken back once. This communicator is not in progress, which NCCL says
        // after its thread has stored the result and without looking at the places again.
        let places = unsafe { Box::from_raw(places) };
        drop(state);
        Self::made(self.api, self.size, places.made, SUCCESS, connecting)
    }

    fn made(
        api: &'static Api,
        size: usize,
        raw: ncclComm_t,
        code: Code,
        connecting: Operation,
    ) -> Result<Self, CollectiveError> {
        let made = Self { api, size, state: Mutex::new(State { raw, failure: None }) };
        let mut state = made.state();
        if state.raw.is_null() && (code == SUCCESS || code == IN_PROGRESS) {
            return Err(connecting.failed("NCCL: no communicator was made".into()));
        }
        made.settle(&mut state, code, connecting)?;
        drop(state);
        Ok(made)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives NCCL something to do. `start` is called with a live communicator.
    pub(super) fn call(
        &self,
        operation: Operation,
        start: impl FnOnce(&Api, ncclComm_t) -> Code,
    ) -> Result<(), CollectiveError> {
        let mut state = self.state();
        live(&state, operation)?;
        let code = start(self.api, state.raw);
        self.settle(&mut state, code, operation)
    }

    /// Whether it still works.
    pub(super) fn health(&self) -> Result<(), CollectiveError> {
        self.state().failure.clone().map_or(Ok(()), Err)
    }

    /// Asks whether something has gone wrong that no call has said, such as the death of a peer: what it is, in `operation`.
    pub(super) fn asynchronous(&self, operation: Operation) -> Option<CollectiveError> {
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
        let message = format!("NCCL: {}", self.api.words(code, raw));
        match code {
            SYSTEM_ERROR | REMOTE_ERROR => CollectiveError::PeerLost(operation, message),
            _ => operation.failed(message),
        }
    }

    /// Ends it at once, also on the device, where kernels that wait for peers stop waiting; what they leave is garbage. `reason`
    /// is what everybody is told from now on.
    pub(super) fn abort(&self, reason: CollectiveError) {
        self.end(&mut self.state(), reason);
    }

    /// Ends it in good order: no operation is in flight, and every rank calls it.
    pub(super) fn close(&self, closing: Operation) -> Result<(), CollectiveError> {
        // SAFETY: comm is live, by the lock.
        self.call(closing, |api, comm| unsafe { (api.functions.comm_finalize)(comm) })?;
        let mut state = self.state();
        let raw = std::mem::replace(&mut state.raw, std::ptr::null_mut());
        // SAFETY: raw was live and, since it is taken out, is destroyed once.
        match unsafe { (self.api.functions.comm_destroy)(raw) } {
            SUCCESS | IN_PROGRESS => Ok(()),
            code => Err(self.error(code, std::ptr::null_mut(), closing)),
        }
    }

    /// Waits until NCCL has taken what it was given, and ends the communicator where it does not. `code` is what the call has
    /// answered: success, too, may say only that something was begun.
    fn settle(&self, state: &mut State, code: Code, operation: Operation) -> Result<(), CollectiveError> {
        let begun = Instant::now();
        let code = loop {
            let now = match code {
                SUCCESS | IN_PROGRESS => self.progress(state),
                failed => failed,
            };
            if now != IN_PROGRESS {
                break now;
            }
            let waited = begun.elapsed();
            if waited > operation.timeout {
                let late = operation.timed_out();
                self.end(state, late.clone());
                return Err(late);
            }
            pause(waited, self.api.sleep);
        };
        if code == SUCCESS {
            return Ok(());
        }
        let error = self.error(code, state.raw, operation);
        self.end(state, error.clone());
        Err(error)
    }

    /// How the communicator stands. It is not null.
    fn progress(&self, state: &State) -> Code {
        let mut code = SUCCESS;
        // SAFETY: the communicator is live and code a valid place.
        match unsafe { (self.api.functions.comm_async_error)(state.raw, &mut code) } {
            SUCCESS => code,
            failed => failed,
        }
    }

    fn end(&self, state: &mut State, reason: CollectiveError) {
        state.failure.get_or_insert(reason);
        let raw = std::mem::replace(&mut state.raw, std::ptr::null_mut());
        if !raw.is_null() {
            // SAFETY: raw was live and, since it is taken out, is freed once.
            let code = unsafe { (self.api.functions.comm_abort)(raw) };
            if code != SUCCESS && code != IN_PROGRESS {
                tracing::debug!("aborting a communicator: {}", self.api.words(code, std::ptr::null_mut()));
            }
        }
    }
}

fn live(state: &State, operation: Operation) -> Result<(), CollectiveError> {
    match &state.failure {
        Some(failure) => Err(failure.clone()),
        None if state.raw.is_null() => Err(operation.failed("NCCL: the group was closed before".into())),
        None => Ok(()),
    }
}

/// What NCCL reads and writes while it splits a communicator.
struct SplitPlaces {
    made: ncclComm_t,
    config: ncclConfig_t,
}
