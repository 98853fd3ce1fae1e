//! The faults of a simulated cluster.

use dtrain_agent::cluster::member::MemberEvent;
use dtrain_agent::signals;

use super::node::SimNode;
use super::step::{Fault, How, Step, ms};
use super::world::World;

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
                    (self.nodes[node].ending, self.nodes[node].was_asked) = (old.ending, old.was_asked);
                    return;
                }
                if let Some(connection) = old.connection {
                    self.after(ms(1), Step::Cut { connection, at_leader: true, at_member: false });
                }
                // Unless the guardian died with the launcher. It may be faster than the end of the connection.
                if self.random.below(2) == 0 {
                    let delay = ms(self.random.below(50));
                    self.after(delay, Step::Gone { instance: old.instance });
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
                for node in nodes {
                    (0..times).for_each(|time| self.ask(node, time > 0));
                }
            }
            Fault::Leaves { .. } => {}
        }
    }

    /// Asks a launcher to stop, which asks its own workers first.
    fn ask(&mut self, node: usize, again: bool) {
        let signal = signals::TERM;
        if !self.nodes[node].is_frozen {
            let delay = ms(self.random.below(3000));
            self.end_workers(node, delay, How::Asked { signal });
            self.nodes[node].was_asked = true;
            self.tell_member(node, MemberEvent::Asked { signal, again });
        }
    }
}
