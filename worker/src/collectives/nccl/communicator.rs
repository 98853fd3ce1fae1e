//! One of NCCL's communicators: made, used, and ended without ever blocking for good.

use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cudarc::nccl::sys::{ncclComm_t, ncclUniqueId};

use super::api::{self, Api, Code, IN_PROGRESS, REMOTE_ERROR, SUCCESS, SYSTEM_ERROR};
use crate::collectives::CollectiveError;
use crate::collectives::error::Operation;

/// How often a call that NCCL goes on with by itself is asked after.
const POLL: Duration = Duration::from_micros(200);

/// This rank's end of a group of ranks.
///
/// Every call holds the lock, and none takes long: the communicator does not block. So whoever watches over it can always end
/// it, which also ends what runs on the device. One that is merely dropped stays to the end of the process: freeing it would wait
/// for peers that may be gone.
pub(super) struct Communicator {
    api: Arc<Api>,
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
    /// Connects the ranks that hold `id`; `connecting` says who this is and how long it waits for the others. The current device
    /// of the calling thread becomes the communicator's.
    ///
    /// # Errors
    /// `TimedOut` where a rank does not come; NCCL's words otherwise.
    pub(super) fn connect(
        api: Arc<Api>,
        id: ncclUniqueId,
        size: usize,
        connecting: Operation,
    ) -> Result<Self, CollectiveError> {
        let mut config = api::config(api.version);
        let mut raw = std::ptr::null_mut();
        // SAFETY: the places are valid during the call; NCCL copies the settings.
        let code = unsafe {
            (api.functions.comm_init)(&mut raw, size as i32, id, connecting.rank as i32, &mut config)
        };
        Self::made(api, raw, code, connecting)
    }

    /// A communicator of the same ranks whose operations are independent of this one's. Every rank calls it.
    ///
    /// # Errors
    /// As [`Communicator::connect`].
    pub(super) fn split(&self, connecting: Operation) -> Result<Self, CollectiveError> {
        let mut config = api::config(self.api.version);
        // NCCL fills it in after the call has returned.
        let place = AtomicPtr::new(std::ptr::null_mut());
        self.call(connecting, |api, comm| {
            // SAFETY: comm is live, by the lock; the places outlive what NCCL does with them, as `call` waits for its end; every
            // rank has color 0.
            unsafe {
                (api.functions.comm_split)(comm, 0, connecting.rank as i32, place.as_ptr(), &mut config)
            }
        })?;
        Self::made(Arc::clone(&self.api), place.into_inner(), SUCCESS, connecting)
    }

    fn made(
        api: Arc<Api>,
        raw: ncclComm_t,
        code: Code,
        connecting: Operation,
    ) -> Result<Self, CollectiveError> {
        let made = Self {
            api,
            state: Mutex::new(State { raw, failure: None }),
        };
        let mut state = made.state();
        match state.raw.is_null() && (code == SUCCESS || code == IN_PROGRESS) {
            true => {
                let words = "no communicator was made".into();
                return Err(Fault { code: SUCCESS, words }.of(connecting));
            }
            false => made.settle(&mut state, code, connecting)?,
        }
        drop(state);
        Ok(made)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives NCCL something to do. `start` is called with a live communicator.
    ///
    /// # Errors
    /// What NCCL says; what has ended the communicator before.
    pub(super) fn call(
        &self,
        operation: Operation,
        start: impl FnOnce(&Api, ncclComm_t) -> Code,
    ) -> Result<(), CollectiveError> {
        let mut state = self.state();
        live(&state, operation)?;
        let code = start(&self.api, state.raw);
        self.settle(&mut state, code, operation)
    }

    /// Whether it still works.
    ///
    /// # Errors
    /// What has ended it.
    pub(super) fn health(&self) -> Result<(), CollectiveError> {
        match &self.state().failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(()),
        }
    }

    /// Asks whether something has gone wrong that no call has said, such as the death of a peer: what it is.
    pub(super) fn asynchronous(&self) -> Option<Fault> {
        let state = self.state();
        if state.raw.is_null() {
            return None;
        }
        match self.progress(&state) {
            SUCCESS | IN_PROGRESS => None,
            code => Some(Fault {
                code,
                words: self.api.words(code, state.raw),
            }),
        }
    }

    /// Ends it at once, also on the device, where kernels that wait for peers stop waiting; what they leave is garbage. `reason`
    /// is what everybody is told from now on.
    pub(super) fn abort(&self, reason: CollectiveError) {
        let mut state = self.state();
        self.end(&mut state, reason);
    }

    /// Ends it in good order: no operation is in flight, and every rank calls it.
    ///
    /// # Errors
    /// As [`Communicator::call`].
    pub(super) fn close(&self, closing: Operation) -> Result<(), CollectiveError> {
        // SAFETY: comm is live, by the lock.
        self.call(closing, |api, comm| unsafe {
            (api.functions.comm_finalize)(comm)
        })?;
        let mut state = self.state();
        let raw = std::mem::replace(&mut state.raw, std::ptr::null_mut());
        // SAFETY: raw was live and, since it is taken out, is destroyed once.
        match unsafe { (self.api.functions.comm_destroy)(raw) } {
            SUCCESS | IN_PROGRESS => Ok(()),
            code => Err(Fault {
                code,
                words: self.api.words(code, std::ptr::null_mut()),
            }
            .of(closing)),
        }
    }

    /// Waits until NCCL has taken what it was given, and ends the communicator where it does not.
    fn settle(&self, state: &mut State, code: Code, operation: Operation) -> Result<(), CollectiveError> {
        let begun = Instant::now();
        let mut code = code;
        while code == IN_PROGRESS {
            if begun.elapsed() > operation.timeout {
                let late = operation.timed_out();
                self.end(state, late.clone());
                return Err(late);
            }
            std::thread::sleep(POLL);
            code = self.progress(state);
        }
        if code == SUCCESS {
            return Ok(());
        }
        let words = self.api.words(code, state.raw);
        let error = Fault { code, words }.of(operation);
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
                tracing::debug!(
                    "aborting a communicator: {}",
                    self.api.words(code, std::ptr::null_mut())
                );
            }
        }
    }
}

fn live(state: &State, operation: Operation) -> Result<(), CollectiveError> {
    match &state.failure {
        Some(failure) => Err(failure.clone()),
        None if state.raw.is_null() => Err(Fault {
            code: SUCCESS,
            words: "the group was closed before".into(),
        }
        .of(operation)),
        None => Ok(()),
    }
}

/// What NCCL says has gone wrong.
pub(super) struct Fault {
    code: Code,
    words: String,
}

impl Fault {
    pub(super) fn of(self, operation: Operation) -> CollectiveError {
        let Operation {
            op, rank, sequence, ..
        } = operation;
        let message = format!("NCCL: {}", self.words);
        match self.code {
            SYSTEM_ERROR | REMOTE_ERROR => CollectiveError::PeerLost {
                op,
                rank,
                sequence,
                message,
            },
            _ => CollectiveError::Backend {
                op,
                rank,
                sequence,
                message,
            },
        }
    }
}
