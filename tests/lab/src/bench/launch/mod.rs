//! The launcher compared with torchrun: workloads and launchers, on one node and as agents of several.

mod agents;
mod command;
mod line;
mod lines;
mod notes;
mod run;

/// Workers of every launch except start-up.
const WORKERS: u32 = 4;

/// The worker that dies; `launch-bench` has the same constant.
const DYING: u32 = 1;

/// The time after which a killed agent counts as unnoticed.
const NEVER_MS: u64 = 15_000;

/// Lines per worker.
const LINES: u32 = 200_000;

/// What the workers of a launch do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Workload {
    /// This many workers that end immediately.
    NoOp(u32),
    /// One worker dies; the others note the time of their SIGTERM.
    Death,
    /// One worker dies, and all are restarted.
    Restart,
    /// All workers print at full speed, to the terminal and into log files.
    Lines,
    /// This many agents with one worker each, on this machine: until the last worker has started.
    Agents(u32),
    /// Two agents, and a worker of one of them dies: all are restarted.
    RemoteRestart,
    /// Two agents, and one of them is killed.
    LostAgent,
}

/// The launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Launcher {
    Dtrain,
    Torchrun,
    /// No launcher: a shell starts the processes, each writing to a file.
    Nobody,
}

impl Workload {
    /// Returns the name for files and JSON.
    pub(super) fn name(self) -> String {
        match self {
            Self::NoOp(workers) => format!("no-op-{workers}"),
            Self::Death => "death".to_owned(),
            Self::Restart => "restart".to_owned(),
            Self::Lines => "lines".to_owned(),
            Self::Agents(agents) => format!("agents-{agents}"),
            Self::RemoteRestart => "remote-restart".to_owned(),
            Self::LostAgent => "lost-agent".to_owned(),
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
            Self::Agents(agents) => format!("{agents} agents with one worker each"),
            Self::RemoteRestart => format!("one of {WORKERS} workers of two agents dies"),
            Self::LostAgent => {
                format!("one of two agents is killed ({NEVER_MS} ms: the other did not notice)")
            }
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
            (Self::Agents(_) | Self::LostAgent | Self::RemoteRestart, Launcher::Torchrun) => 1,
            (Self::Agents(_) | Self::LostAgent, _) => 5,
            (Self::RemoteRestart, _) => 20,
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
