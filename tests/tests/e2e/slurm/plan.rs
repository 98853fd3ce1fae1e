//! Random interruptions. A seed repeats them.

use std::fmt::{self, Display};

/// How an attempt ends before the training does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// By a job of higher priority, with a grace time.
    Preemption,
    /// The same without a grace time: Slurm sends SIGTERM, and 5 s later SIGKILL.
    PreemptionAtOnce,
    /// Slurm requeues the job, and all its processes get SIGKILL at this moment.
    Kill,
    /// By the time limit of one minute.
    TimeLimit,
    /// Slurm gives up a node whose daemon was killed.
    Daemon,
    /// All processes of a node are killed.
    Node,
    /// By the signal that comes before the time limit.
    Signal,
}

/// An interruption.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fault {
    pub(super) kind: Kind,
    /// Steps of the attempt before it; 0: as soon as the workers are started.
    pub(super) after: u64,
}

impl Kind {
    /// Returns whether the run has time for a checkpoint.
    pub(super) fn has_grace(self) -> bool {
        matches!(self, Self::Preemption | Self::TimeLimit | Self::Signal)
    }
}

impl Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Preemption => "preempted with a grace time",
            Self::PreemptionAtOnce => "preempted without a grace time",
            Self::Kill => "requeued and killed",
            Self::TimeLimit => "time limit",
            Self::Daemon => "daemon of a node killed",
            Self::Node => "node killed",
            Self::Signal => "SIGUSR1",
        })
    }
}

/// The interruptions of a run, without an end.
pub(super) struct Plan {
    random: Random,
}

impl Plan {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: Random(seed) }
    }
}

impl Iterator for Plan {
    type Item = Fault;

    fn next(&mut self) -> Option<Fault> {
        // Slurm looks at time limits twice a minute, so these attempts last longest.
        let kind = match self.random.below(8) {
            0..=2 => Kind::Preemption,
            3 | 4 => Kind::PreemptionAtOnce,
            5 | 6 => Kind::Kill,
            _ => Kind::TimeLimit,
        };
        Some(Fault { kind, after: self.random.below(26) })
    }
}

/// SplitMix64, by Steele, Lea and Flood.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}
