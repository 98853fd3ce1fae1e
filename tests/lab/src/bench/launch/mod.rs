//! The launcher compared with torchrun: jobs and launchers.

mod command;
mod line;
mod lines;
mod notes;
mod run;

/// Workers of every launch except start-up.
const WORKERS: u32 = 4;

/// The worker that dies; `launch-bench` has the same constant.
const DYING: u32 = 1;

/// Lines per worker.
const LINES: u32 = 200_000;

/// The job of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Job {
    /// This many workers that end immediately.
    NoOp(u32),
    /// One worker dies; the others note the time of their SIGTERM.
    Death,
    /// One worker dies, and all are restarted.
    Restart,
    /// All workers print at full speed, to the terminal and into log files.
    Lines,
}

/// The launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Launcher {
    Dtrain,
    Torchrun,
    /// No launcher: a shell starts the processes, each writing to a file.
    Nobody,
}

impl Job {
    /// Returns the name for files and JSON.
    pub(super) fn name(self) -> String {
        match self {
            Self::NoOp(workers) => format!("no-op-{workers}"),
            Self::Death => "death".to_owned(),
            Self::Restart => "restart".to_owned(),
            Self::Lines => "lines".to_owned(),
        }
    }

    /// Returns the heading of its table.
    pub(super) fn title(self) -> String {
        match self {
            Self::NoOp(1) => "1 worker that ends immediately".to_owned(),
            Self::NoOp(workers) => format!("{workers} workers that end immediately"),
            Self::Death => {
                format!("one of {WORKERS} workers dies: until the last other worker receives SIGTERM")
            }
            Self::Restart => {
                format!("one of {WORKERS} workers dies: until all have restarted")
            }
            Self::Lines => format!("{WORKERS} workers that print {LINES} lines each"),
        }
    }

    /// Returns the launches per round. torchrun takes seconds each time.
    fn launches(self, launcher: Launcher) -> u32 {
        match (self, launcher) {
            (Self::Lines, _) | (Self::NoOp(_), Launcher::Torchrun) => 1,
            (Self::NoOp(_), _) => 20,
            (Self::Restart, Launcher::Torchrun) => 3,
            (Self::Restart, _) => 20,
            (Self::Death, Launcher::Torchrun) => 5,
            (Self::Death, _) => 100,
        }
    }
}

impl Launcher {
    /// Returns the name for files and JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Dtrain => "dtrain",
            Self::Torchrun => "torchrun",
            Self::Nobody => "alone",
        }
    }

    /// Returns the name for people.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Dtrain => "dtrain launch",
            Self::Torchrun => "torchrun",
            Self::Nobody => "the workers alone",
        }
    }
}
