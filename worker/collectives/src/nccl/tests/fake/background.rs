//! The work of NCCL after a call has returned, and the counters for the tests.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::stream::{FakeStream, Kernel};
use super::{Code, Comm, IN_PROGRESS, SUCCESS};

thread_local! {
    /// The calls of the group that this thread has started.
    static GROUP: RefCell<Option<Vec<Call>>> = const { RefCell::new(None) };
    static LAUNCHES: Cell<usize> = const { Cell::new(0) };
    static SLEEPS: Cell<usize> = const { Cell::new(0) };
    static LAUNCHES_IMMEDIATELY: Cell<bool> = const { Cell::new(false) };
}

/// Returns the number of launches by this thread: operations or groups of them.
pub(in super::super) fn launches() -> usize {
    LAUNCHES.get()
}

/// Returns how often this thread has slept in a call.
pub(in super::super) fn sleeps() -> usize {
    SLEEPS.get()
}

/// Makes this thread's later calls launch before they return, although they report that they are in progress.
pub(in super::super) fn launch_immediately() {
    LAUNCHES_IMMEDIATELY.set(true);
}

pub(super) fn sleep(pause: Duration) {
    SLEEPS.set(SLEEPS.get() + 1);
    std::thread::sleep(pause);
}

/// The threads of a communicator.
#[derive(Default)]
pub(super) struct Background {
    running: Arc<AtomicUsize>,
}

impl Background {
    pub(super) fn is_busy(&self) -> bool {
        self.running.load(Ordering::SeqCst) > 0
    }

    pub(super) fn run(&self, body: impl FnOnce() + Send + 'static) {
        let running = Arc::clone(&self.running);
        running.fetch_add(1, Ordering::SeqCst);
        std::thread::spawn(move || {
            body();
            running.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

type Call = (&'static Comm, &'static FakeStream, Kernel);

pub(super) fn group_start() {
    GROUP.set(Some(Vec::new()));
}

pub(super) fn group_end() -> Code {
    launch(GROUP.take().expect("a group was started"))
}

/// Launches an operation, or adds it to the group that this thread has started.
pub(super) fn enqueue(comm: &'static Comm, stream: &'static FakeStream, kernel: Kernel) -> Code {
    let call = (comm, stream, kernel);
    let alone = GROUP.with_borrow_mut(|group| match group {
        Some(calls) => {
            calls.push(call);
            None
        }
        None => Some(call),
    });
    alone.map_or(SUCCESS, |call| launch(vec![call]))
}

fn launch(calls: Vec<Call>) -> Code {
    LAUNCHES.set(LAUNCHES.get() + 1);
    let Some(&(comm, ..)) = calls.first() else {
        return SUCCESS;
    };
    let enqueue_all = move || calls.into_iter().for_each(|(_, stream, kernel)| stream.enqueue(kernel));
    // A single rank blocks.
    let is_single = comm.size == 1;
    match is_single || LAUNCHES_IMMEDIATELY.get() {
        true => enqueue_all(),
        false => comm.background.run(enqueue_all),
    }
    if is_single { SUCCESS } else { IN_PROGRESS }
}
