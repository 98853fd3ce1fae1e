//! Operations, the moments between them, and which stream they are on.

use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::check::Use;
use crate::counts::Kind;

/// The work of an operation. Graphs repeat it.
pub(crate) type Work = Arc<dyn Fn() + Send + Sync>;

/// An operation on a stream or in a graph.
#[derive(Clone)]
pub(crate) struct Op {
    pub(crate) name: Cow<'static, str>,
    pub(crate) kind: Option<Kind>,
    pub(crate) work: Work,
    /// The memory that it uses.
    pub(crate) uses: Vec<Use>,
    /// Whether a thread must run it, since it may block or take time.
    pub(crate) blocks: bool,
}

impl Op {
    pub(crate) fn new(name: &'static str, kind: Kind, work: impl Fn() + Send + Sync + 'static) -> Self {
        Self { name: name.into(), kind: Some(kind), work: Arc::new(work), uses: Vec::new(), blocks: false }
    }

    pub(crate) fn using(self, uses: Vec<Use>) -> Self {
        Self { uses, ..self }
    }

    pub(crate) fn blocking(self) -> Self {
        Self { blocks: true, ..self }
    }
}

/// Returns a new handle, for any object.
pub(crate) fn new_handle() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0x1000);
    NEXT.fetch_add(16, Ordering::Relaxed)
}

/// The state of a stream in captures.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key {
    /// The stream's handle; of the legacy stream, the device's ordinal.
    pub(crate) id: usize,
    /// The ordinal of the device.
    pub(crate) device: usize,
    /// Whether the legacy stream and this one wait for each other.
    pub(crate) is_blocking: bool,
}

impl Key {
    pub(crate) fn is_legacy(&self) -> bool {
        self.id < 0x1000
    }
}

/// A moment that comes when the operations before it are done.
#[derive(Default)]
pub(crate) struct Moment {
    at: Mutex<Option<Instant>>,
    came: Condvar,
}

impl Moment {
    pub(crate) fn is_over(&self) -> bool {
        self.time().is_some()
    }

    pub(crate) fn wait(&self) {
        let at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.came.wait_while(at, |at| at.is_none()).unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the operation that ends the moment.
    pub(crate) fn into_op(self: Arc<Self>) -> Op {
        let work = Arc::new(move || {
            *self.at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            self.came.notify_all();
        });
        Op { name: "event".into(), kind: None, work, uses: Vec::new(), blocks: false }
    }

    pub(crate) fn time(&self) -> Option<Instant> {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
