//! Tasks on a separate thread, beside the training.

use std::thread::{Builder, JoinHandle};

use super::error::CheckpointError;

/// The progress of a task; its number is part of the status of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Done,
    Working,
    Failed,
}

/// A running task. Dropping it waits for its end: a checkpoint that is almost written is worth the wait.
pub(super) struct BackgroundTask<T> {
    thread: Option<JoinHandle<Result<T, CheckpointError>>>,
    outcome: Option<Result<T, CheckpointError>>,
}

impl<T: Send + 'static> BackgroundTask<T> {
    /// Starts `task` on a thread. If no thread can be started, the task has failed.
    pub(super) fn begin(task: impl FnOnce() -> Result<T, CheckpointError> + Send + 'static) -> Self {
        let cannot_start = CheckpointError::io("start a thread for", "checkpoints");
        match Builder::new().name("checkpoint".to_owned()).spawn(task) {
            Ok(thread) => Self { thread: Some(thread), outcome: None },
            Err(error) => Self { thread: None, outcome: Some(Err(cannot_start(error))) },
        }
    }

    pub(super) fn progress(&mut self) -> Progress {
        if self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return Progress::Working;
        }
        self.join();
        match self.outcome {
            Some(Ok(_)) => Progress::Done,
            _ => Progress::Failed,
        }
    }

    pub(super) fn finish(mut self) -> Result<T, CheckpointError> {
        self.join();
        self.outcome.take().unwrap_or(Err(CheckpointError::Writer))
    }
}

impl<T> BackgroundTask<T> {
    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.outcome = Some(thread.join().unwrap_or(Err(CheckpointError::Writer)));
        }
    }
}

impl<T> Drop for BackgroundTask<T> {
    fn drop(&mut self) {
        self.join();
    }
}

/// Lowers the priority of the calling thread, in favour of the training if cores are few.
pub(super) fn lower_priority() {
    const NICE: i32 = 10;
    let thread = rustix::thread::gettid();
    if let Err(error) = rustix::process::setpriority_process(Some(thread), NICE) {
        tracing::debug!("cannot lower the priority of a checkpoint thread: {error}");
    }
}
