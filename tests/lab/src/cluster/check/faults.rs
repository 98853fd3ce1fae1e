//! The faults of the model.

use dtrain_agent::cluster::member::MemberEvent;
use dtrain_agent::signals;

use super::model::{Model, NODES};
use super::node::Side;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A worker fails, and its node stops the others.
    WorkerFails { node: usize },
    /// The agent dies; another process kills its workers.
    Crash { node: usize, returns: bool },
    /// The connection is reset. `drops`: with all messages on their way.
    Reset { node: usize, drops: bool },
    /// Nothing arrives on either side.
    Cut { node: usize },
    /// No process of the node runs.
    Freeze { node: usize },
    /// The launcher of the node is asked to stop.
    Ask { node: usize },
    /// The node's agent ends.
    Leave { node: usize },
    /// The node does not reach another one, if it tries at once.
    CannotReach { node: usize },
    /// The next preparation takes longer.
    Slow { node: usize },
}

impl Model {
    /// Returns the faults that are possible.
    pub(super) fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        // Before the first fault, the last two nodes are alike.
        let nodes = if self.had_fault { NODES } else { NODES - 1 };
        for node in 0..nodes {
            let state = &self.nodes[node];
            if state.member.is_none() || state.frozen.is_some() {
                continue;
            }
            if state.workers.is_some_and(|workers| workers.stopped.is_none() && workers.killed.is_none()) {
                faults.push(Fault::WorkerFails { node });
            }
            faults.extend([Fault::Freeze { node }, Fault::Ask { node }, Fault::Leave { node }]);
            if state.workers.is_none() && !state.cannot_reach {
                faults.push(Fault::CannotReach { node });
            }
            if !state.is_slow {
                faults.push(Fault::Slow { node });
            }
            if node == 0 {
                continue;
            }
            faults.extend([true, false].map(|returns| Fault::Crash { node, returns }));
            if state.cut.is_none() {
                faults.push(Fault::Cut { node });
                if state.links.iter().any(|link| link.at_member == Side::Open) {
                    faults.extend([true, false].map(|drops| Fault::Reset { node, drops }));
                }
            }
        }
        faults
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        self.faults_left -= 1;
        self.had_fault = true;
        let now = self.now;
        match fault {
            Fault::WorkerFails { node } => self.worker_fails(node),
            Fault::Crash { node, returns } => {
                let state = &mut self.nodes[node];
                (state.member, state.wants_connection, state.is_preparing) = (None, false, false);
                state.trying = None;
                state.returns = returns.then_some(now + 1);
                state.close_at_member();
                state.kill(now);
            }
            Fault::Reset { node, drops } => {
                if let Some(link) = self.nodes[node].own_link() {
                    (link.at_leader, link.at_member) = match link.at_leader {
                        Side::Closed => (Side::Closed, Side::Ending),
                        _ => (Side::Ending, Side::Ending),
                    };
                    if drops {
                        link.to_leader.clear();
                        link.to_member.clear();
                    }
                }
            }
            Fault::Cut { node } => self.nodes[node].cut = Some(now),
            Fault::Freeze { node } => self.nodes[node].frozen = Some(now),
            Fault::Ask { node } => {
                self.nodes[node].was_asked = true;
                if let Some(workers) = &mut self.nodes[node].workers {
                    workers.asked = true;
                    workers.stopped.get_or_insert(now);
                }
                self.tell_member(node, MemberEvent::Asked { signal: signals::TERM, again: false });
            }
            Fault::Leave { node } => {
                self.tell_member(node, MemberEvent::Leaving { reason: "its disk is full".to_owned() });
            }
            Fault::CannotReach { node } => self.nodes[node].cannot_reach = true,
            Fault::Slow { node } => self.nodes[node].is_slow = true,
        }
    }
}
