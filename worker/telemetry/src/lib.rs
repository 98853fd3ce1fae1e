//! The lines of `metrics.jsonl` for other programs: TensorBoard's event files, and the standard input of a command.
//!
//! Both have a thread and a queue of limited length. A training never waits for them; what they cannot take is left out.

mod command;
mod queue;
mod tensorboard;

use std::io;
use std::path::Path;
use std::sync::Arc;

use dtrain_common::run_dir::RunDir;
use serde::Serialize;

use crate::command::Command;
use crate::queue::Queue;
pub use crate::tensorboard::{Experiment, Rates, SAMPLES, Sample};

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All steps are taken.
    Complete,
    /// Stopped; another launch continues the run.
    Stopped,
    /// An error ended it.
    Failed,
}

/// Takes the lines of a run. Dropping it means [`Outcome::Failed`].
#[derive(Debug, Default)]
pub struct Telemetry {
    board: Option<Queue>,
    command: Option<Command>,
}

impl Telemetry {
    /// Writes the lines as events of TensorBoard into the run directory. First the event files of earlier attempts are replaced by
    /// one with the present first `length` bytes of metrics.jsonl.
    #[must_use]
    pub fn with_tensorboard(mut self, run_dir: &RunDir, length: u64, experiment: Experiment) -> Self {
        match tensorboard::start(run_dir.clone(), length, experiment) {
            Ok(board) => self.board = Some(board),
            Err(error) => tracing::warn!("log.tensorboard: cannot start a thread: {error}"),
        }
        self
    }

    /// Starts a shell command that gets the lines on its standard input.
    #[must_use]
    pub fn with_command(mut self, command: &str, run_dir: &Path) -> Self {
        match Command::start(command, run_dir) {
            Ok(command) => self.command = Some(command),
            Err(error) => {
                tracing::warn!("log.command: cannot start the shell: {error}; training continues without it")
            }
        }
        self
    }

    /// Passes a line on.
    pub fn record(&mut self, line: &impl Serialize) {
        if self.board.is_none() && self.command.is_none() {
            return;
        }
        // A line has been written before.
        let Ok(mut bytes) = serde_json::to_vec(line) else { return };
        bytes.push(b'\n');
        let bytes: Arc<[u8]> = bytes.into();
        if let Some(board) = &mut self.board {
            board.send(Arc::clone(&bytes));
        }
        if let Some(command) = &mut self.command {
            command.send(bytes);
        }
    }

    /// Ends the run: writes the rest, and gives the command some seconds to end.
    pub fn finish(mut self, outcome: Outcome) {
        self.end(outcome);
    }

    fn end(&mut self, outcome: Outcome) {
        if let Some(board) = self.board.take() {
            board.finish(outcome);
        }
        if let Some(command) = self.command.take() {
            command.finish(outcome);
        }
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        self.end(Outcome::Failed);
    }
}

/// Removes the event files of earlier attempts: the run may have other steps now.
///
/// # Errors
/// The folder cannot be read, or a file cannot be removed.
pub fn remove_event_files(run_dir: &RunDir) -> io::Result<()> {
    tensorboard::remove_files(run_dir.root())
}
