//! Random faults of trainings: what happens to which processes, where and when. A seed repeats them.
//!
//! Every harness draws its own mixture and injects it by its own means. A fault is printed with all that repeats it.

use std::fmt;
use std::time::Duration;

/// SplitMix64, by Steele, Lea and Flood.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Numbers that this seed repeats.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns any number.
    #[expect(clippy::should_implement_trait, reason = "the numbers have no end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to `bound` - 1; `bound` must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// Returns a number in [0, 1).
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A fault of a training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fault {
    /// What happens.
    pub kind: Kind,
    /// When.
    pub moment: Moment,
    /// Node 0 leads.
    pub node: usize,
    /// The time until its end, if it has one.
    pub lasting: Duration,
}

/// The moment of a fault.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Moment {
    /// This time after the start of the training or the last fault.
    Pause(Duration),
    /// After these steps of the attempt; 0: as soon as the workers are started.
    Steps(u64),
    /// `delay` after the write of a checkpoint began, for this step or a later one.
    Write {
        /// The first step that counts.
        step: u64,
        /// The time since the write began.
        delay: Duration,
    },
    /// After this share of the whole run's duration.
    Share(f64),
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// SIGKILL.
    Kill(Target),
    /// SIGSTOP, and SIGCONT at the end.
    Freeze(Target),
    /// SIGTERM of the agent.
    Terminate,
    /// All TCP connections are reset once.
    Reset,
    /// All TCP packets are answered with a reset.
    Reject,
    /// All packets are lost.
    Cut,
    /// A fifth of the packets is lost.
    Lossy,
    /// The node is cut off several times a second.
    Flapping,
    /// By a job of higher priority, with a grace time.
    Preemption,
    /// The same without a grace time: Slurm sends SIGTERM, and 5 s later SIGKILL.
    PreemptionAtOnce,
    /// Slurm requeues the job, and all its processes get SIGKILL at this moment.
    Requeue,
    /// By the time limit of one minute.
    TimeLimit,
    /// Slurm gives up a node whose daemon was killed.
    Daemon,
    /// By the signal that comes before the time limit.
    Signal,
}

/// Processes of a training, or of one of its nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// Any one.
    Worker,
    /// All of them.
    Workers,
    /// The process that the user started; it guards the launcher.
    Guardian,
    /// The process that watches the workers.
    Launcher,
    /// Guardian and launcher.
    Agent,
    /// Also the workers.
    Everything,
}

impl Fault {
    /// A fault of the whole training, without an end.
    pub fn new(kind: Kind, moment: Moment) -> Self {
        Self { kind, moment, node: 0, lasting: Duration::ZERO }
    }

    /// Returns whether the fault has an end.
    pub fn lasts(&self) -> bool {
        use Kind::{Cut, Flapping, Freeze, Lossy, Reject};
        matches!(self.kind, Freeze(_) | Reject | Cut | Lossy | Flapping)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on n{}, {}", self.kind, self.node, self.moment)?;
        if self.lasts() { write!(f, ", for {:?}", self.lasting) } else { Ok(()) }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pause(pause) => write!(f, "{pause:?} after the last fault"),
            Self::Steps(steps) => write!(f, "after {steps} steps"),
            Self::Write { step, delay } => write!(f, "{delay:?} into the checkpoint of step {step}"),
            Self::Share(share) => write!(f, "after {share:.3} of the run"),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill(target) => return write!(f, "SIGKILL of {target}"),
            Self::Freeze(target) => return write!(f, "SIGSTOP of {target}"),
            Self::Terminate => "SIGTERM of the agent",
            Self::Reset => "connections reset",
            Self::Reject => "TCP rejected",
            Self::Cut => "silent partition",
            Self::Lossy => "lossy link",
            Self::Flapping => "flapping link",
            Self::Preemption => "preempted with a grace time",
            Self::PreemptionAtOnce => "preempted without a grace time",
            Self::Requeue => "requeued and killed",
            Self::TimeLimit => "time limit",
            Self::Daemon => "daemon of a node killed",
            Self::Signal => "SIGUSR1",
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Worker => "one worker",
            Self::Workers => "all workers",
            Self::Guardian => "the guardian",
            Self::Launcher => "the launcher",
            Self::Agent => "guardian and launcher",
            Self::Everything => "the whole node",
        })
    }
}
