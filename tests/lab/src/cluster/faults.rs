//! The faults of a simulated cluster.

use dtrain_agent::cluster::member::MemberEvent;
use dtrain_agent::signals;

use super::node::SimNode;
use super::workers::How;
use super::world::{Step, World, ms};
use crate::random::Random;

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
    Asked { nodes: std::ops::Range<usize>, times: u64 },
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

impl World {
    pub(super) fn fault(&mut self, fault: Fault) {
        let long = ms(self.random.below(8000));
        match fault {
            Fault::Workers { node, how } => {
                let state = &self.nodes[node];
                let running = state.running.filter(|_| !state.is_stopping && !state.is_frozen);
                if let Some((_, attempt)) = running {
                    self.step(Step::WorkersEnd { node, attempt, how });
                }
            }
            Fault::NodeDies { node } => {
                let new = SimNode::new(&mut self.random);
                let old = std::mem::replace(&mut self.nodes[node], new);
                if old.ending.is_some() {
                    self.nodes[node].ending = old.ending;
                    return;
                }
                if let Some(connection) = old.connection {
                    self.after(ms(1), Step::Cut { connection, at_leader: true, at_member: false });
                }
                self.after(long, Step::Return { node });
            }
            Fault::Reset { node, at_leader, at_member } => {
                if let Some(connection) = self.nodes[node].connection {
                    self.after(ms(at_leader), Step::Cut { connection, at_leader: true, at_member: false });
                    self.after(ms(at_member), Step::Cut { connection, at_leader: false, at_member: true });
                }
            }
            Fault::Partition { node } => {
                self.nodes[node].is_cut_off = true;
                self.after(long, Step::Heal { node });
            }
            Fault::Freeze { node } => {
                if !self.nodes[node].is_frozen {
                    self.nodes[node].is_frozen = true;
                    self.after(long, Step::Thaw { node });
                }
            }
            Fault::Leaves { node } if !self.nodes[node].is_frozen => {
                self.tell_member(node, MemberEvent::Leaving { reason: "its disk is full".to_owned() });
            }
            Fault::Asked { nodes, times } => {
                for node in nodes.flat_map(|node| std::iter::repeat_n(node, times as usize)) {
                    self.ask(node);
                }
            }
            Fault::Leaves { .. } => {}
        }
    }

    /// Asks a launcher to stop, which asks its own workers first.
    fn ask(&mut self, node: usize) {
        let signal = signals::TERM;
        if !self.nodes[node].is_frozen {
            let delay = ms(self.random.below(3000));
            self.end_workers(node, delay, How::Asked { signal });
            self.tell_member(node, MemberEvent::Asked { signal });
        }
    }
}
