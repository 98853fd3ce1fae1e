//! Signals to the launchers: a stop of the run, or one node that leaves it.

use super::state::{Leader, MemberId, OWN, Phase};
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
        let is_leaving = self.leaving.contains(&from);
        // Batch systems send a signal to all nodes, one after the other: only a node's second one is a second request.
        // A node that leaves kills only its own workers.
        if again && is_leaving && self.asked.is_none() || self.asked.is_some() && !again {
            return;
        }
        if self.can_leave(from, signal, now) {
            return self.let_leave(from, now);
        }
        self.leaving.clear();
        self.asked.get_or_insert(signal);
        self.restarts.on_event(&Event::Stop { signal, again });
        let reason = StopReason::Asked { signal, again };
        match self.phase {
            Phase::Joining(_) => self.finish(Ending::StoppedEarly { signal }),
            Phase::Proposed { .. } | Phase::Trying { .. } | Phase::Running { .. } => {
                self.drain(reason, Some(from));
            }
            Phase::Draining { .. } => self.stop_others(reason, Some(from)),
            Phase::Pausing { .. } => self.phase = Phase::Pausing { until: now },
            Phase::Decided => {}
        }
    }

    /// Returns whether a signal to this node concerns only this node: there are enough others, and no other node was
    /// signalled within a lease. Signals to several nodes are a request to stop the run.
    fn can_leave(&self, member: MemberId, signal: i32, now: Duration) -> bool {
        let is_alone = self.left_at.is_none_or(|at| at.saturating_add(self.policy.times.length) <= now);
        let stays = |(id, _): &(MemberId, _)| *id != member && !self.leaving.contains(id);
        let is_enough = || self.here().filter(stays).count() >= *self.policy.nodes.start();
        let is_first = self.asked.is_none() && !matches!(self.phase, Phase::Decided);
        self.policy.nodes_may_leave && signal == TERM && member != OWN && is_first && is_alone && is_enough()
    }

    /// Lets a node leave: after a checkpoint of all nodes if it has workers, else at once.
    fn let_leave(&mut self, member: MemberId, now: Duration) {
        self.left_at = Some(now);
        self.leaving.insert(member);
        match self.phase {
            _ if self.peers.get(&member).is_none_or(|peer| peer.part.is_none()) => self.dismiss(),
            Phase::Proposed { .. } | Phase::Trying { .. } => self.drain(StopReason::Regroup, None),
            Phase::Running { .. } => {
                let host = self.peers.get(&member).map_or_else(String::new, |peer| peer.name.clone());
                let reason = match self.policy.requeue_code {
                    Some(_) => StopReason::Admit,
                    None => StopReason::NodeLost { host },
                };
                self.drain(reason, Some(member));
            }
            Phase::Joining(_) | Phase::Draining { .. } | Phase::Pausing { .. } | Phase::Decided => {}
        }
    }

    /// Sends away the nodes that leave, and of which no worker runs.
    pub(super) fn dismiss(&mut self) {
        let status = match self.policy.requeue_code {
            Some(_) if self.has_checkpoint => ExitStatus::Requeue,
            _ => ExitStatus::Signal(TERM),
        };
        let has_part = |id: &MemberId| self.peers.get(id).is_some_and(|peer| peer.part.is_some());
        let (busy, idle) = std::mem::take(&mut self.leaving).into_iter().partition(has_part);
        self.leaving = busy;
        let idle: BTreeSet<MemberId> = idle;
        for member in idle {
            let Some(peer) = self.peers.remove(&member).filter(|peer| peer.lost.is_none()) else { continue };
            let reason = format!("{} left the run, which continues without it", peer.name);
            self.send(member, ToMember::Decided { code: status.code(), reason });
            self.actions.push(LeaderAction::Close { member });
            let reason = format!("it was stopped by {}", signals::name(TERM));
            self.tell(LeaderNotice::Left { host: peer.name, reason });
        }
    }
}
