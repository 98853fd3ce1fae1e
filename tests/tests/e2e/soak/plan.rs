//! Random trainings and their faults. A seed repeats them.

use std::fmt::{self, Display};
use std::time::Duration;

use dtrain_test_kit::faults::{Fault, Kind, Moment, Random, Target};

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

/// After the end of a fault, the time in which it may end an attempt: that of the fence, on a busy machine.
const EFFECT: Duration = Duration::from_secs(6);

const TARGETS: [Target; 5] =
    [Target::Worker, Target::Guardian, Target::Launcher, Target::Agent, Target::Everything];

impl Plan {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let nodes = 2 + random.below(2) as usize;
        let faults = (0..2 + random.below(5)).map(|_| draw(nodes, &mut random)).collect();
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

/// Draws a fault of one node.
fn draw(nodes: usize, random: &mut Random) -> Fault {
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
    Fault {
        kind,
        node: random.below(nodes as u64) as usize,
        moment: Moment::Pause(Duration::from_millis(random.below(3500))),
        lasting: Duration::from_millis(200 + random.below(2800)),
    }
}

/// Returns the time since the injection after which the fault has no effect.
pub(super) fn effect(fault: &Fault) -> Duration {
    EFFECT + if fault.lasts() { fault.lasting } else { Duration::ZERO }
}

/// Returns whether the leader may name this node: a leader that stood still, or has no network, loses others.
pub(super) fn explains(fault: &Fault, node: usize) -> bool {
    let is_worker = matches!(fault.kind, Kind::Kill(Target::Worker) | Kind::Freeze(Target::Worker));
    fault.node == node || (fault.node == 0 && !is_worker)
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
