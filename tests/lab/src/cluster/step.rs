//! What can happen in a simulated cluster.

use std::ops::Range;
use std::time::Duration;

use dtrain_agent::cluster::message::{StopReason, ToLeader, ToMember};
use dtrain_agent::cluster::trial::FailedTry;
use dtrain_test_kit::faults::Random;

/// An event of the world, at a time.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// The node's member connects to the leader.
    Connect { node: usize },
    /// A message reaches the leader.
    ToLeader { connection: u64, message: ToLeader },
    /// A message reaches the member.
    ToMember { connection: u64, message: ToMember },
    /// Both sides, or one, see the end of a connection.
    Cut { connection: u64, at_leader: bool, at_member: bool },
    /// A timer of the node, or of the leader (`None`), which a later one may have replaced.
    Wake { node: Option<usize>, number: u64 },
    /// The node is prepared for an epoch.
    Prepared { node: usize, epoch: u64, logs: u32 },
    /// The node has tried to reach others.
    Tried { node: usize, epoch: u64, failures: Vec<(usize, FailedTry)> },
    /// The workers of an attempt end.
    WorkersEnd { node: usize, attempt: u64, how: How },
    /// A fault begins.
    Fault(Fault),
    /// The guardian of a killed launcher tells the leader.
    Gone { instance: u64 },
    /// A partition ends.
    Heal { node: usize },
    /// A freeze ends.
    Thaw { node: usize },
    /// The node's agent starts, late or again.
    Return { node: usize },
}

/// How workers end.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum How {
    Done,
    Failed,
    PortTaken,
    Hung,
    Requeued,
    Asked { signal: i32 },
    Stopped(StopReason),
    Killed,
}

#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// The workers of a node end so.
    Workers { node: usize, how: How },
    /// The agent and its workers die at once, and the agent is started again later.
    NodeDies { node: usize },
    /// The connection is reset. One side may see it much later.
    Reset { node: usize, at_leader: u64, at_member: u64 },
    /// Nothing arrives on either side for some time.
    Partition { node: usize },
    /// No process of the node runs for some time.
    Freeze { node: usize },
    /// The node's agent ends.
    Leaves { node: usize },
    /// The launchers of these nodes are asked to stop, perhaps twice.
    Asked { nodes: Range<usize>, times: u64 },
}

impl Fault {
    pub(super) fn any(random: &mut Random, nodes: usize) -> Self {
        let node = random.below(nodes as u64) as usize;
        // The leader's own node loses no connection to itself.
        let other = 1 + random.below((nodes as u64 - 1).max(1)) as usize;
        let other = other.min(nodes - 1);
        let late = if random.below(2) == 0 { 1 } else { 5000 };
        match random.below(16) {
            0 | 1 => Self::NodeDies { node: other },
            2 => Self::Reset { node: other, at_leader: 1, at_member: late },
            3 => Self::Reset { node: other, at_leader: late, at_member: 1 },
            4 | 5 => Self::Partition { node: other },
            6 | 7 => Self::Freeze { node },
            8 => Self::Workers { node, how: How::Requeued },
            9 => Self::Workers { node, how: How::Hung },
            10 => Self::Workers { node, how: How::PortTaken },
            11 if random.below(4) == 0 => Self::Leaves { node },
            12 if random.below(4) == 0 => {
                let nodes = if random.below(2) == 0 { 0..nodes } else { node..node + 1 };
                Self::Asked { nodes, times: 1 + random.below(2) }
            }
            _ => Self::Workers { node, how: How::Failed },
        }
    }
}

pub(super) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}
