//! Random trainings and their faults. A seed repeats them.

use std::fmt::{self, Display};
use std::time::Duration;

/// A training that is disturbed.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) nodes: usize,
    /// Whether the run continues with one node less.
    pub(super) is_elastic: bool,
    /// Whether a node that comes takes part at once, by a checkpoint and a restart.
    pub(super) admits: bool,
    /// Whether the nodes share the run directory.
    pub(super) is_shared: bool,
    /// For each node, the seconds by which its monotonic clock is ahead.
    pub(super) clocks: Vec<i64>,
    pub(super) faults: Vec<Fault>,
}

/// A fault of one node; node 0 leads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fault {
    pub(super) kind: Kind,
    pub(super) node: usize,
    /// The time since the start of the training or the last fault.
    pub(super) pause: Duration,
    /// The time until its end, if it has one.
    pub(super) lasting: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
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
}

/// After the end of a fault, the time in which it may end an attempt: that of the fence, on a busy machine.
const EFFECT: Duration = Duration::from_secs(6);

/// Processes of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Worker,
    /// The process that the user started; it guards the launcher.
    Guardian,
    Launcher,
    /// Both.
    Agent,
    /// Also the workers.
    Everything,
}

const TARGETS: [Target; 5] =
    [Target::Worker, Target::Guardian, Target::Launcher, Target::Agent, Target::Everything];

impl Plan {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let nodes = 2 + random.below(2) as usize;
        let faults = (0..2 + random.below(5)).map(|_| Fault::random(nodes, &mut random)).collect();
        let is_elastic = random.below(2) == 0;
        Self {
            seed,
            nodes,
            is_elastic,
            admits: is_elastic && random.below(2) == 0,
            is_shared: random.below(2) == 0,
            clocks: (0..nodes).map(|_| [0, 0, 40, 1_000_000][random.below(4) as usize]).collect(),
            faults,
        }
    }

    /// Returns the value of `--nnodes`.
    pub(super) fn nnodes(&self) -> String {
        match self.is_elastic {
            true => format!("{}:{}", self.nodes - 1, self.nodes),
            false => self.nodes.to_string(),
        }
    }

    /// Returns the micro-batch: all numbers of nodes divide the batch of 12 into the same micro-batches.
    pub(super) fn micro_batch(&self) -> usize {
        if self.nodes == 2 { 6 } else { 2 }
    }

    /// Returns whether sums over all micro-batches have the same order for every number of nodes.
    pub(super) fn is_exact(&self) -> bool {
        // A sum of two terms has one order: one rank takes two micro-steps, or two ranks take one each.
        self.nodes == 2 || !self.is_elastic
    }
}

impl Fault {
    fn random(nodes: usize, random: &mut Random) -> Self {
        let target = TARGETS[random.below(5) as usize];
        // Signals and the network alike.
        let kind = match random.below(10) {
            0 | 1 => Kind::Kill(target),
            2 | 3 => Kind::Freeze(target),
            4 => Kind::Terminate,
            5 => Kind::Reset,
            6 => Kind::Reject,
            7 => Kind::Cut,
            8 => Kind::Lossy,
            _ => Kind::Flapping,
        };
        Self {
            kind,
            node: random.below(nodes as u64) as usize,
            pause: Duration::from_millis(random.below(3500)),
            lasting: Duration::from_millis(200 + random.below(2800)),
        }
    }

    /// Returns the time since the injection after which the fault has no effect.
    pub(super) fn effect(&self) -> Duration {
        EFFECT + if self.lasts() { self.lasting } else { Duration::ZERO }
    }

    pub(super) fn lasts(&self) -> bool {
        !matches!(self.kind, Kind::Kill(_) | Kind::Terminate | Kind::Reset)
    }

    /// Returns whether the leader may name this node: a leader that stood still, or has no network, loses others.
    pub(super) fn explains(&self, node: usize) -> bool {
        let is_worker = matches!(self.kind, Kind::Kill(Target::Worker) | Kind::Freeze(Target::Worker));
        self.node == node || (self.node == 0 && !is_worker)
    }
}

impl Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = if self.is_shared { "shared" } else { "separate" };
        write!(f, "seed {}: --nnodes {}, {files} files", self.seed, self.nnodes())?;
        if self.admits {
            f.write_str(", admit=checkpoint")?;
        }
        if self.clocks.iter().any(|ahead| *ahead != 0) {
            write!(f, ", clocks {:?}", self.clocks)?;
        }
        Ok(())
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on n{}", self.kind, self.node)?;
        if self.lasts() { write!(f, " for {:?}", self.lasting) } else { Ok(()) }
    }
}

impl Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (signal, target) = match self {
            Self::Kill(target) => ("SIGKILL", target),
            Self::Freeze(target) => ("SIGSTOP", target),
            Self::Terminate => return f.write_str("SIGTERM of the agent"),
            Self::Reset => return f.write_str("connections reset"),
            Self::Reject => return f.write_str("TCP rejected"),
            Self::Cut => return f.write_str("silent partition"),
            Self::Lossy => return f.write_str("lossy link"),
            Self::Flapping => return f.write_str("flapping link"),
        };
        let target = match target {
            Target::Worker => "a worker",
            Target::Guardian => "the guardian",
            Target::Launcher => "the launcher",
            Target::Agent => "guardian and launcher",
            Target::Everything => "the whole node",
        };
        write!(f, "{signal} of {target}")
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
