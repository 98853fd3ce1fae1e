//! A thread that works on lines, and a queue of limited length in front of it.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use crate::Outcome;

/// Lines that wait for the thread.
const LENGTH: usize = 4096;
/// The wait for the thread at the end of a run.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the thread gets.
#[derive(Debug)]
pub(crate) enum Message {
    /// A line with its line break.
    Line(Arc<[u8]>),
    End(Outcome),
}

/// The sender's side.
#[derive(Debug)]
pub(crate) struct Queue {
    /// The setting whose thread it is, for warnings.
    name: &'static str,
    sender: SyncSender<Message>,
    /// Ends with the thread.
    done: Receiver<()>,
    /// Lines that were left out.
    lost: u64,
}

impl Queue {
    /// Starts a thread that does `work`. `name` is the setting that asks for it.
    pub(crate) fn start(
        name: &'static str,
        work: impl FnOnce(&Receiver<Message>) + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(LENGTH);
        let (alive, done) = sync_channel(0);
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            work(&receiver);
            drop(alive);
        })?;
        Ok(Self { name, sender, done, lost: 0 })
    }

    /// Adds a line, if there is room for it.
    pub(crate) fn send(&mut self, line: Arc<[u8]>) {
        // A thread that has ended has said why.
        if let Err(TrySendError::Full(_)) = self.sender.try_send(Message::Line(line)) {
            if self.lost == 0 {
                tracing::warn!("{} does not keep up: training continues, and lines are left out", self.name);
            }
            self.lost += 1;
        }
    }

    /// Ends the queue: the thread works on what is left.
    pub(crate) fn end(self, outcome: Outcome) -> Rest {
        if self.lost > 0 {
            tracing::warn!("{} was too slow for {} lines, which are left out", self.name, self.lost);
        }
        // Without room for it the thread finds the queue closed.
        let _ = self.sender.try_send(Message::End(outcome));
        Rest(self.done)
    }

    /// Ends the queue, and waits for the thread, but not for long.
    pub(crate) fn finish(self, outcome: Outcome) {
        let name = self.name;
        if !self.end(outcome).is_done_within(PATIENCE) {
            tracing::warn!("{name}: the last lines are not written after {} s", PATIENCE.as_secs());
        }
    }
}

/// The work on the rest of a queue.
#[derive(Debug)]
pub(crate) struct Rest(Receiver<()>);

impl Rest {
    /// Returns whether the thread ends within `patience`.
    pub(crate) fn is_done_within(&self, patience: Duration) -> bool {
        self.0.recv_timeout(patience) != Err(RecvTimeoutError::Timeout)
    }
}
