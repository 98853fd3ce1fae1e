//! A gigabyte of state written beside a training and read again: dtrain, PyTorch, and the disk alone.

mod disk;
mod read;
mod run;
mod tables;

pub(super) use tables::tables;

/// Optimizer steps of a training.
const STEPS: u64 = 48;
/// A checkpoint after every so many: the first meets memory that was never touched, the last no step that goes on beside it.
const EVERY: u64 = 12;
/// Tokens of the one window that is a step.
const CONTEXT: u64 = 32;

/// One thing that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Saving {
    /// A training with checkpoints, on so many threads.
    Beside(By, u32),
    /// A file as large as a checkpoint, written and synced with nothing beside; measured with those of so many threads.
    Disk(u32),
    /// A worker of dtrain that is killed, and started again by the launcher.
    Restart,
}

/// Who trains and saves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum By {
    Dtrain,
    /// `async_save` as it is without any setting.
    Async,
    /// The same with memory for the copy that is kept from one call to the next.
    AsyncKept,
    /// `torch.save`, which blocks.
    Save,
}

impl By {
    /// In file names, in the JSON, and for checkpoint.py.
    fn name(self) -> &'static str {
        match self {
            Self::Dtrain => "dtrain",
            Self::Async => "async",
            Self::AsyncKept => "async-kept",
            Self::Save => "save",
        }
    }
}

impl Saving {
    /// In file names and in the JSON.
    pub(super) fn name(self) -> String {
        match self {
            Self::Beside(by, _) => format!("{}/{}", self.part(), by.name()),
            Self::Disk(_) => format!("{}/disk", self.part()),
            Self::Restart => format!("{}/dtrain", self.part()),
        }
    }

    /// For people.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Beside(By::Dtrain, _) => "dtrain",
            Self::Beside(By::Async, _) => "PyTorch async_save",
            Self::Beside(By::AsyncKept, _) => "PyTorch async_save, memory kept",
            Self::Beside(By::Save, _) => "PyTorch torch.save and fsync",
            Self::Disk(_) => "the disk alone, write and fsync",
            Self::Restart => "dtrain launch --max-restarts 1",
        }
    }

    /// What is run in turn.
    pub(super) fn part(self) -> String {
        match self {
            Self::Beside(_, threads) | Self::Disk(threads) => format!("checkpoint-{threads}-threads"),
            Self::Restart => "checkpoint-restart".to_owned(),
        }
    }
}
