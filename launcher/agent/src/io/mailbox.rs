//! Commands to a thread that waits for sockets.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A queue of commands. Its descriptor is readable when commands may have come.
#[derive(Debug)]
pub(super) struct Mailbox<C> {
    shared: Arc<Shared<C>>,
}

#[derive(Debug)]
struct Shared<C> {
    commands: Mutex<Vec<C>>,
    event: OwnedFd,
}

impl<C> Mailbox<C> {
    pub(super) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { shared: Arc::new(Shared { commands: Mutex::default(), event }) })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<C>> {
        self.shared.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, command: C) {
        let mut commands = self.lock();
        commands.push(command);
        if commands.len() == 1 {
            // Fails only at 2^64 - 1 unread events.
            let _ = rustix::io::write(&self.shared.event, &1_u64.to_ne_bytes());
        }
    }

    /// Removes all commands. Only one thread may call this.
    pub(super) fn take(&self) -> Vec<C> {
        // Fails if there are no events.
        let _ = rustix::io::read(&self.shared.event, &mut [0; 8]);
        mem::take(&mut *self.lock())
    }
}

impl<C> Clone for Mailbox<C> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<C> AsFd for Mailbox<C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }
}
