//! The trial of the connections between the nodes, before the workers start.

use super::state::{Leader, MemberId, OWN, Peer, Phase};
use super::{Ending, LeaderAction, LeaderNotice};
use crate::cluster::message::{StopReason, ToMember};
use crate::cluster::trial::{FailedConnection, FailedTry, Place, targets};
use std::time::Duration;

/// A failed try, from and to nodes of these group ranks.
type Failed = (usize, usize, FailedTry);

impl Leader {
    /// Lets the nodes try each other, and starts the workers if no node listens.
    pub(super) fn try_connections(&mut self, now: Duration) {
        let places: Vec<Option<Place>> = self.by_rank(|_, peer| peer.part.as_ref()?.place.clone());
        // Agents on one machine may meet at its loopback address.
        if places.iter().flatten().all(|place| place.address.is_loopback()) {
            return self.start(now);
        }
        self.phase = Phase::Trying { since: now };
        for (rank, id) in self.by_rank(|id, _| id).into_iter().enumerate() {
            let targets = targets(rank, places.len()).into_iter();
            let places = targets.filter_map(|to| Some((to, places[to].clone()?))).collect();
            self.send(id, ToMember::Try { epoch: self.epoch, places });
        }
    }

    /// Starts the workers if all connections work. A node without which they work is left out, if there are enough
    /// others; else the run is over.
    pub(super) fn judge_trial(&mut self, now: Duration) {
        let tried = self.by_rank(|_, peer| peer.part.as_ref()?.failures.clone());
        let of_node = |(from, failures): (usize, Option<Vec<(usize, FailedTry)>>)| {
            failures.into_iter().flatten().map(move |(to, failure)| (from, to, failure))
        };
        let mut failures: Vec<Failed> = tried.into_iter().enumerate().flat_map(of_node).collect();
        failures.sort_by_key(|(from, to, _)| (*to, *from));
        if failures.is_empty() {
            self.tried = self.by_rank(|id, _| id).into_iter().collect();
            return self.start(now);
        }
        let nodes = self.by_rank(|_, peer| {
            let place = peer.part.as_ref().and_then(|part| part.place.clone());
            (peer.name.clone(), place)
        });
        let named = |(from, to, failure): &Failed| {
            let (from, (to, place)) = (nodes.get(*from)?.0.clone(), nodes.get(*to)?.clone());
            Some(FailedConnection { from, to, place: place?, failure: *failure })
        };
        let failed: Vec<FailedConnection> = failures.iter().filter_map(named).collect();
        let Some((id, host)) = self.unconnected(&failures) else {
            return self.finish(Ending::Unconnected { failed });
        };
        let reason = "its connections to other nodes fail; the leader names them".to_owned();
        self.send(id, ToMember::Rejected { reason });
        self.actions.push(LeaderAction::Close { member: id });
        self.peers.remove(&id);
        self.tell(LeaderNotice::Unconnected { host, failed });
        self.drain(StopReason::Regroup, None);
    }

    /// Returns the node that takes part in all failures, if the run can begin without it.
    fn unconnected(&self, failures: &[Failed]) -> Option<(MemberId, String)> {
        let nodes = self.by_rank(|id, peer| (id, peer.name.clone())).into_iter().enumerate();
        let is_in_all = |rank| failures.iter().all(|(from, to, _)| *from == rank || *to == rank);
        let spare = nodes.filter(|(rank, (id, host))| *id != OWN && is_in_all(*rank) && self.can_spare(host));
        let unreached = |rank: &usize| failures.iter().filter(|(_, to, _)| to == rank).count();
        spare.max_by_key(|(rank, _)| unreached(rank)).map(|(_, node)| node)
    }

    /// Returns a value for each node of the epoch, in the order of the group ranks.
    fn by_rank<T>(&self, read: impl Fn(MemberId, &Peer) -> T) -> Vec<T> {
        let rank = |peer: &Peer| peer.part.as_ref().map(|part| part.placement.group_rank);
        let mut parts: Vec<_> = self.peers.iter().filter(|(_, peer)| peer.part.is_some()).collect();
        parts.sort_by_key(|(_, peer)| rank(peer));
        parts.into_iter().map(|(id, peer)| read(*id, peer)).collect()
    }
}
