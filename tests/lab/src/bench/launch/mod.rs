//! The launcher beside torchrun: what is launched, and by whom.

mod command;
mod line;
mod lines;
mod notes;
mod run;

/// The workers of every launch that is more than a start.
const WORKERS: u32 = 4;

/// The worker that dies where one does; `launch-bench` knows it too.
const DYING: u32 = 1;

/// Lines that each of them prints.
const LINES: u32 = 200_000;

/// What is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Job {
    /// So many workers that end at once.
    NoOp(u32),
    /// One worker dies, and the others note when they are told to stop.
    Death,
    /// One worker dies, and all are started again.
    Restart,
    /// All workers print as fast as they can, to the terminal and into log files.
    Lines,
}

/// Who launches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum By {
    Dtrain,
    Torchrun,
    /// The processes alone, started by a shell, each writing to a file.
    Nobody,
}

impl Job {
    /// In file names and in the JSON.
    pub(super) fn name(self) -> String {
        match self {
            Self::NoOp(workers) => format!("no-op-{workers}"),
            Self::Death => "death".to_owned(),
            Self::Restart => "restart".to_owned(),
            Self::Lines => "lines".to_owned(),
        }
    }

    /// The heading of its table.
    pub(super) fn title(self) -> String {
        match self {
            Self::NoOp(1) => "1 worker that ends at once".to_owned(),
            Self::NoOp(workers) => format!("{workers} workers that end at once"),
            Self::Death => {
                format!("death of one of {WORKERS} workers until the last of the others has its SIGTERM")
            }
            Self::Restart => {
                format!("death of one of {WORKERS} workers until the last of all has started again")
            }
            Self::Lines => format!("{WORKERS} workers that print {LINES} lines each"),
        }
    }

    /// How often it is launched in a round. torchrun takes seconds each time.
    fn launches(self, by: By) -> u32 {
        match (self, by) {
            (Self::Lines, _) | (Self::NoOp(_), By::Torchrun) => 1,
            (Self::NoOp(_), _) => 20,
            (Self::Restart, By::Torchrun) => 3,
            (Self::Restart, _) => 20,
            (Self::Death, By::Torchrun) => 5,
            (Self::Death, _) => 100,
        }
    }
}

impl By {
    /// In file names and in the JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Dtrain => "dtrain",
            Self::Torchrun => "torchrun",
            Self::Nobody => "alone",
        }
    }

    /// For people.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Dtrain => "dtrain launch",
            Self::Torchrun => "torchrun",
            Self::Nobody => "the workers alone",
        }
    }
}
