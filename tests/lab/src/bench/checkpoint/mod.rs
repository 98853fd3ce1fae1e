//! Writes a gigabyte of state during a training and reads it again: dtrain, PyTorch, and the disk alone.

mod disk;
mod read;
mod run;
mod tables;

pub(super) use tables::tables;

/// Optimizer steps of a training.
const STEPS: u64 = 48;
/// Steps between checkpoints. The first checkpoint touches new memory, and no step follows the last one.
const EVERY: u64 = 12;
/// Tokens of a step, which is one window.
const CONTEXT: u64 = 32;

/// A case of this benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CheckpointCase {
    /// A training with checkpoints, on this many threads.
    DuringTraining(Saver, u32),
    /// A file as large as a checkpoint, written and synced alone, in the part with this many threads.
    Disk(u32),
    /// A dtrain worker that is killed and restarted by the launcher.
    Restart,
}

/// The program that trains and saves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Saver {
    Dtrain,
    /// `async_save` with default settings.
    Async,
    /// `async_save` that keeps the memory of its copy between calls.
    AsyncKept,
    /// `torch.save`, which blocks.
    Save,
}

impl Saver {
    /// Returns the name for files, JSON and checkpoint.py.
    fn name(self) -> &'static str {
        match self {
            Self::Dtrain => "dtrain",
            Self::Async => "async",
            Self::AsyncKept => "async-kept",
            Self::Save => "save",
        }
    }
}

impl CheckpointCase {
    /// Returns the name for files and JSON.
    pub(super) fn name(self) -> String {
        match self {
            Self::DuringTraining(saver, _) => format!("{}/{}", self.part(), saver.name()),
            Self::Disk(_) => format!("{}/disk", self.part()),
            Self::Restart => format!("{}/dtrain", self.part()),
        }
    }

    /// Returns the name for people.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::DuringTraining(Saver::Dtrain, _) => "dtrain",
            Self::DuringTraining(Saver::Async, _) => "PyTorch async_save",
            Self::DuringTraining(Saver::AsyncKept, _) => "PyTorch async_save, memory kept",
            Self::DuringTraining(Saver::Save, _) => "PyTorch torch.save and fsync",
            Self::Disk(_) => "the disk alone, write and fsync",
            Self::Restart => "dtrain launch --max-restarts 1",
        }
    }

    /// Returns the part: its cases run in turn.
    pub(super) fn part(self) -> String {
        match self {
            Self::DuringTraining(_, threads) | Self::Disk(threads) => format!("checkpoint-{threads}-threads"),
            Self::Restart => "checkpoint-restart".to_owned(),
        }
    }
}
