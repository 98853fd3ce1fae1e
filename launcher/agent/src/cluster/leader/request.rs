//! Signals to the launchers: a stop of the run, or one node that leaves it.

use super::state::{Leader, MemberId, OWN, Peer, Phase};
use super::{Ending, LeaderAction, LeaderNotice};
use crate::cluster::message::{StopReason, ToMember};
use crate::local::Event;
use crate::signals::{self, TERM};
use dtrain_common::exit::ExitStatus;
use std::collections::BTreeSet;
use std::time::Duration;

impl Leader {
    /// Handles a signal to the launcher of a node.
    pub(super) fn asked(&mut self, from: MemberId, signal: i32, again: bool, now: Duration) {
        // A node that leaves kills only its own workers, and repeats its signal when it connects anew.
        if self.asked.is_none() && self.is_leaving(from) {
            return self.dismiss();
        }
        // Batch systems send a signal to all nodes, one after the other: only a node's second one is a second request.
        if !again && self.asked.is_some_and(|first| signals::is_same_request(first, signal)) {
            return;
        }
        if self.can_leave(from, signal, now) {
            return self.let_leave(from, now);
        }
        self.leaving.clear();
        self.asked = Some(signal);
        self.restarts.on_event(&Event::Stop { signal, again });
        let reason = StopReason::Asked { signal, again };
        match self.phase {
            Phase::Joining(_) => self.finish(Ending::StoppedEarly { signal }),
            Phase::Proposed { .. } | Phase::Trying { .. } | Phase::Running { .. } => {
                self.drain(reason, Some(from));
            }
            Phase::Draining { .. } => {
                self.is_soft_stop = false;
                self.stop_others(reason, Some(from));
            }
            Phase::Pausing { .. } => self.phase = Phase::Pausing { until: now },
            Phase::Decided => {}
        }
    }

    /// Returns whether a signal to this node concerns only this node: there are enough others, and no other node was
    /// signalled within a lease. Signals to several nodes are a request to stop the run.
    fn can_leave(&self, member: MemberId, signal: i32, now: Duration) -> bool {
        let is_alone = self.lease_of_leave(now).is_zero();
        let others = self.here().filter(|(id, _)| *id != member && !self.is_leaving(*id)).count();
        let is_enough = || others >= *self.policy.nodes.start();
        let is_first = self.asked.is_none() && !matches!(self.phase, Phase::Decided);
        self.policy.nodes_may_leave && signal == TERM && member != OWN && is_first && is_alone && is_enough()
    }

    /// Lets a node leave: after a checkpoint of all nodes if it has workers, else at once.
    fn let_leave(&mut self, member: MemberId, now: Duration) {
        let Some(peer) = self.peers.get(&member) else { return };
        let (host, has_part) = (peer.name.clone(), peer.part.is_some());
        self.left_at = Some(now);
        self.leaving.insert(peer.node.instance);
        match self.phase {
            _ if !has_part => self.dismiss(),
            Phase::Proposed { .. } | Phase::Trying { .. } => self.drain(StopReason::Regroup, None),
            Phase::Running { .. } => {
                let reason = match self.policy.requeue_code {
                    Some(_) => StopReason::Admit,
                    None => StopReason::NodeLost { host },
                };
                self.drain(reason, Some(member));
            }
            Phase::Joining(_) | Phase::Draining { .. } | Phase::Pausing { .. } | Phase::Decided => {}
        }
    }

    /// Returns whether the node of this connection was asked to leave, perhaps over an earlier connection.
    pub(super) fn is_leaving(&self, member: MemberId) -> bool {
        self.peers.get(&member).is_some_and(|peer| self.leaving.contains(&peer.node.instance))
    }

    /// Returns the rest of the lease within which a signal to another node means that the run stops.
    pub(super) fn lease_of_leave(&self, now: Duration) -> Duration {
        let over = self.left_at.map(|at| at.saturating_add(self.policy.times.length));
        over.unwrap_or_default().saturating_sub(now)
    }

    /// Sends away the nodes that leave, and of which no worker runs. A lost one is sent away when it connects again.
    pub(super) fn dismiss(&mut self) {
        let status = match self.policy.requeue_code {
            Some(_) if self.has_checkpoint => ExitStatus::Requeue,
            _ => ExitStatus::Signal(TERM),
        };
        let parts = self.peers.values().filter(|peer| peer.part.is_some());
        let busy: BTreeSet<u64> = parts.map(|peer| peer.node.instance).collect();
        let is_idle =
            |(id, peer): &(MemberId, &Peer)| self.is_leaving(*id) && !busy.contains(&peer.node.instance);
        let idle: Vec<MemberId> = self.here().filter(is_idle).map(|(id, _)| id).collect();
        for member in idle {
            let Some(peer) = self.peers.remove(&member) else { continue };
            self.leaving.remove(&peer.node.instance);
            let reason = format!("{} left the run, which continues without it", peer.name);
            self.send(member, ToMember::Decided { code: status.code(), reason });
            self.actions.push(LeaderAction::Close { member });
            let reason = format!("it was stopped by {}", signals::name(TERM));
            self.tell(LeaderNotice::Left { host: peer.name, reason });
        }
    }
}
