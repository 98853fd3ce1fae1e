//! Nodes that join: who is admitted, and when there are enough.

use super::state::{Joining, Leader, MemberId, NEXT_WORD, OWN, Part, Peer, Phase};
use super::{Ending, LeaderAction, LeaderNotice};
use crate::cluster::lease::Times;
use crate::cluster::message::{Preparation, StopReason, ToMember, VERSION};
use crate::cluster::ranks::{Node, place};
use std::collections::BTreeSet;
use std::time::Duration;

/// The lease of the leader's own member: while this process stands still, no other epoch can begin.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

impl Leader {
    pub(super) fn join(&mut self, from: MemberId, version: u32, node: Node, now: Duration) {
        if self.peers.contains_key(&from) {
            return; // A duplicate.
        }
        if let Some(decided) = self.decided.clone() {
            // The end of this run is not that of another one.
            let strange = self.difference_of_run(node.run_id.as_deref());
            self.send(from, strange.map_or(decided, |reason| ToMember::Rejected { reason }));
            return self.actions.push(LeaderAction::Close { member: from });
        }
        self.replace_earlier_connection(&node, now);
        let host = self.name_of(from, &node);
        if let Some(reason) = self.reason_to_reject(version, &node, &host) {
            self.send(from, ToMember::Rejected { reason: reason.clone() });
            self.actions.push(LeaderAction::Close { member: from });
            self.rejected.retain(|(known, _)| *known != host);
            self.rejected.push((host.clone(), reason.clone()));
            return self.tell(LeaderNotice::Rejected { host, reason });
        }
        self.failed.remove(&host);
        let is_namesake = |(_, peer): &(MemberId, &Peer)| peer.node.host == node.host;
        let namesakes: Vec<_> = self.here().filter(is_namesake).map(|(id, _)| id).collect();
        self.peers.insert(from, Peer { node, name: host.clone(), heard: now, lost: None, part: None });
        for id in namesakes {
            let Some(name) = self.peers.get(&id).map(|peer| self.name_of(id, &peer.node)) else { continue };
            self.peers.entry(id).and_modify(|peer| peer.name = name);
        }
        let times = match from {
            OWN => Times { length: FOREVER, ..self.policy.times },
            _ => self.policy.times,
        };
        let most = *self.policy.nodes.end();
        let is_spare = self.here().count() > most;
        self.send(from, ToMember::Welcome { times, run: self.policy.run.clone(), is_spare });
        if is_spare {
            return self.tell(LeaderNotice::Spare { host, most });
        }
        self.tell(LeaderNotice::Joined { host, nodes: self.here().count(), most });
        if self.policy.admits_at_checkpoint && matches!(self.phase, Phase::Running { .. }) {
            self.is_admitting = true;
            self.drain(StopReason::Admit, None);
        }
    }

    /// Handles a node that cannot take part. The run waits for others, as long as enough may come.
    /// Returns whether it is a node of this run.
    pub(super) fn cannot_join(
        &mut self,
        from: MemberId,
        host: String,
        run_id: Option<&str>,
        reason: String,
    ) -> bool {
        if let Some(reason) = self.difference_of_run(run_id) {
            self.send(from, ToMember::Rejected { reason: reason.clone() });
            self.actions.push(LeaderAction::Close { member: from });
            self.tell(LeaderNotice::Rejected { host, reason });
            return false;
        }
        self.actions.push(LeaderAction::Close { member: from });
        self.tell(LeaderNotice::Left { host: host.clone(), reason: reason.clone() });
        if !self.has_started {
            self.failed.insert(host, reason);
        }
        true
    }

    /// Handles a node that cannot continue. With too few others, the run is over; before the first start, another node
    /// may take its place.
    pub(super) fn leave(&mut self, member: MemberId, reason: String, now: Duration) {
        let Some(host) = self.remove(member, now) else { return };
        self.tell(LeaderNotice::Left { host: host.clone(), reason: reason.clone() });
        match member != OWN && !self.has_started {
            true => drop(self.failed.insert(host, reason)),
            false => self.left = Some((host, reason)),
        }
    }

    /// Returns why a node of this `--rdzv-id` is not of this run.
    fn difference_of_run(&self, run_id: Option<&str>) -> Option<String> {
        difference_of_ids(self.peers.get(&OWN)?.node.run_id.as_deref(), run_id)
    }

    /// Gives up the agent with this number: none of its workers can run, so nobody waits for the end of its lease.
    pub(super) fn gone(&mut self, from: MemberId, instance: u64, now: Duration) {
        let is_it = |id: MemberId, peer: &Peer| id != OWN && peer.node.instance == instance;
        let here = self.here().find(|(id, peer)| is_it(*id, peer)).map(|(id, _)| id);
        if let Some(id) = here {
            self.lose(id, true, now);
        }
        if here != Some(from) {
            self.actions.push(LeaderAction::Close { member: from });
        }
        for (id, peer) in &mut self.peers {
            if let Some(part) = peer.part.as_mut().filter(|_| *id != OWN && peer.node.instance == instance) {
                part.is_fenced = true;
            }
        }
    }

    /// The agent has lost its earlier connection, which the leader may not know yet.
    fn replace_earlier_connection(&mut self, node: &Node, now: Duration) {
        let same = |peer: &Peer| peer.node.host == node.host && peer.node.instance == node.instance;
        let earlier = self.here().find(|(_, peer)| same(peer)).map(|(id, _)| id);
        if let Some(earlier) = earlier {
            self.lose(earlier, true, now);
        }
    }

    fn reason_to_reject(&self, version: u32, node: &Node, name: &str) -> Option<String> {
        if version != VERSION {
            return Some(format!(
                "its dtrain speaks version {version} of the protocol, and the leader's {VERSION}; use the same dtrain on all \
                 nodes"
            ));
        }
        let failures = self.failures.get(name).copied().unwrap_or_default();
        if failures >= self.policy.failures_in_a_row && self.can_spare(name) {
            return Some(format!("it has failed {failures} times in a row"));
        }
        if let Some(reason) = self.peers.get(&OWN).and_then(|leader| difference(&leader.node, node)) {
            return Some(reason);
        }
        let same = |peer: &&Peer| node.node_rank.is_some() && peer.node.node_rank == node.node_rank;
        if let Some(holder) = self.here().map(|(_, peer)| peer).find(same) {
            let (rank, host) = (node.node_rank.unwrap_or_default(), &holder.name);
            return Some(format!("node rank {rank} is taken by {host}; give each node its own --node-rank"));
        }
        None
    }

    /// Returns whether there are enough nodes without those of this host.
    pub(super) fn can_spare(&self, host: &str) -> bool {
        let others = self.here().filter(|(_, peer)| peer.name != host).count();
        others >= *self.policy.nodes.start()
    }

    pub(super) fn gather(&mut self, joining: Joining, now: Duration) {
        let count = self.here().count();
        let enough = count >= *self.policy.nodes.start() && self.here().any(|(id, _)| id == OWN);
        let enough_since = joining.enough_since.or(Some(now)).filter(|_| enough);
        let mut joining = Joining { enough_since, ..joining };
        let is_last_call_over = |since: Duration| since.saturating_add(joining.last_call) <= now;
        // A node has left: a signal to another one stops the run.
        let is_leave_over = self.lease_of_leave(now).is_zero();
        let is_complete =
            count >= *self.policy.nodes.end() && is_leave_over || enough_since.is_some_and(is_last_call_over);
        if enough && is_complete {
            return self.propose(now);
        }
        if let Some((host, reason)) = self.left.take_if(|_| !enough) {
            return self.finish(Ending::NodeLeft { host, reason });
        }
        let can_come = self.policy.nodes_of_job.map(|nodes| nodes.saturating_sub(self.failed.len()));
        if !enough
            && can_come.is_some_and(|nodes| nodes < *self.policy.nodes.start())
            && let Some((host, reason)) = self.failed.pop_first()
        {
            return self.finish(Ending::NodeLeft { host, reason });
        }
        if !enough && joining.since.saturating_add(self.policy.join_timeout) <= now {
            let rejected = std::mem::take(&mut self.rejected);
            let failed = std::mem::take(&mut self.failed).into_iter().collect();
            let (came, missing) = (self.hosts(), self.missing());
            return self.finish(Ending::TooFewNodes { came, missing, rejected, failed });
        }
        if !enough && joining.word_at <= now {
            joining.word_at = now.saturating_add(NEXT_WORD);
            let left = joining.since.saturating_add(self.policy.join_timeout).saturating_sub(now);
            self.tell(LeaderNotice::Waiting { came: self.hosts(), missing: self.missing(), left });
        }
        self.phase = Phase::Joining(joining);
    }

    /// Returns the nodes that are absent, as far as they are known: lost hosts, and node ranks.
    fn missing(&self) -> Vec<String> {
        let hosts: BTreeSet<_> = self.hosts().into_iter().collect();
        let lost = self.peers.values().filter(|peer| peer.lost.is_some()).map(|peer| peer.name.clone());
        let mut missing: Vec<String> = lost.filter(|host| !hosts.contains(host)).collect();
        let ranks: BTreeSet<_> = self.here().filter_map(|(_, peer)| peer.node.node_rank).collect();
        if !ranks.is_empty() && missing.is_empty() {
            let absent = (0..*self.policy.nodes.start()).filter(|rank| !ranks.contains(rank));
            missing.extend(absent.map(|rank| format!("node rank {rank}")));
        }
        missing
    }

    /// Returns the nodes of the next epoch: the leader's, those of the last epoch, and as they came. The others are
    /// spares.
    fn participants(&self) -> Vec<(MemberId, &Node)> {
        let mut nodes: Vec<_> = self.here().map(|(id, peer)| (id, &peer.node)).collect();
        nodes.sort_by_key(|(id, _)| (*id != OWN, !self.placed.contains(id), *id));
        nodes.truncate(*self.policy.nodes.end());
        nodes
    }

    fn propose(&mut self, now: Duration) {
        self.epoch += 1;
        self.rank0 = None;
        self.left = None;
        self.peers.retain(|_, peer| peer.lost.is_none());
        let placed = place(self.participants(), OWN);
        let ids = placed.iter().map(|(id, _)| *id).collect();
        let logs = self.logs;
        self.logs += 1;
        let is_new = placed.iter().any(|(id, _)| !self.tried.contains(id));
        let preparation = |placement| Preparation {
            epoch: self.epoch,
            restart: self.restarts.used,
            logs,
            placement,
            notices: self.notices.clone(),
            has_trial: self.policy.has_trial && is_new && placed.len() > 1,
        };
        let parts: Vec<_> = placed.iter().map(|(id, placement)| (*id, preparation(*placement))).collect();
        for (id, preparation) in parts {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.part = Some(Part::new(preparation.placement));
            }
            self.send(id, ToMember::Propose(preparation));
        }
        self.placed = ids;
        self.phase = Phase::Proposed { since: now };
    }
}

/// Returns why a node of this `--rdzv-id` is not of the leader's run.
pub fn difference_of_ids(leaders: Option<&str>, nodes: Option<&str>) -> Option<String> {
    let name = |id: Option<&str>| id.unwrap_or("not given").to_owned();
    (leaders != nodes).then(|| {
        format!(
            "its --rdzv-id is {}, and the leader's is {}; another run uses this endpoint, or the ids must be made equal",
            name(nodes),
            name(leaders)
        )
    })
}

/// Returns what differs between the leader's node and another, which must be the same.
fn difference(leaders: &Node, node: &Node) -> Option<String> {
    if let Some(reason) = difference_of_ids(leaders.run_id.as_deref(), node.run_id.as_deref()) {
        return Some(reason);
    }
    let names = leaders.fingerprints.keys().chain(node.fingerprints.keys());
    let differs = |name: &&String| leaders.fingerprints.get(*name) != node.fingerprints.get(*name);
    names.into_iter().find(differs).map(|name| {
        format!("its {name} differs from that of the leader, {}; use the same on all nodes", leaders.host)
    })
}
