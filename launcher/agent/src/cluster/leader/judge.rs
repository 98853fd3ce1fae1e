//! The end of an epoch: who is to blame, and whether another epoch follows.

use super::state::{Joining, Leader, MemberId, OWN, Part, Peer, Phase};
use super::{Ending, LeaderAction, LeaderNotice};
use crate::cluster::blame::{ClusterCause, Judgement, NodeEnd, judge};
use crate::cluster::message::{ToMember, WorkerEnd};
use crate::local::{Cause, FailedAttempt, LASTING, Next, Resumption, StopSource};
use std::collections::BTreeSet;
use std::time::Duration;

impl Leader {
    /// Judges the epoch, in which no worker runs any more, and decides about the next. `began`: when the workers
    /// were started, if they were.
    pub(super) fn judge(&mut self, began: Option<Duration>, now: Duration) {
        let mut nodes = Vec::new();
        for peer in self.peers.values_mut() {
            if let Some(Part { placement, report, .. }) = peer.part.take() {
                let host = peer.name.clone();
                nodes.push(NodeEnd { host, group_rank: placement.group_rank, report, lost: peer.lost });
            }
        }
        nodes.sort_by_key(|node| node.group_rank);
        let mut judgement = judge(&nodes, self.policy.requeue_code);
        if self.is_time_limit_of_program(&judgement, &nodes) {
            judgement.cause = ClusterCause::Workers(Cause::Requeue);
        }
        let is_success = began.is_some() && judgement.cause == ClusterCause::Workers(Cause::Success);
        if let Some(pause) = self.frozen.take().filter(|_| !is_success) {
            return self.finish(Ending::LeaderFrozen { pause });
        }
        let Some(began) = began else {
            // No worker was started: the nodes that are left make the next epoch.
            if let Some(signal) = self.asked {
                return self.finish(Ending::StoppedEarly { signal });
            }
            for NodeEnd { host, .. } in nodes.into_iter().filter(|node| node.lost.is_some()) {
                self.count_failure(&host, Duration::ZERO);
                let times = self.regroups.entry(host.clone()).or_default();
                *times += 1;
                let times = *times;
                if times >= self.policy.failures_in_a_row && !self.can_spare(&host) {
                    let reason =
                        format!("it was lost {times} times in a row before the workers were started");
                    return self.finish(Ending::NodeLeft { host, reason });
                }
            }
            self.dismiss();
            return self.gather(Joining::new(now, self.rejoin_call(now)), now);
        };
        let reports = || nodes.iter().filter_map(|node| node.report.as_ref());
        let mut notices: Vec<i32> = reports().flat_map(|report| report.notices.iter().copied()).collect();
        notices.sort_unstable();
        notices.dedup();
        let lasted = now.saturating_sub(began);
        if let Some(culprit) = nodes.iter().find(|node| judgement.blames(node)) {
            self.count_failure(&culprit.host, lasted);
        }
        let outcome_of = |rank: usize| {
            let mut ends = reports().flat_map(|report| &report.ends);
            ends.find(|end: &&WorkerEnd| end.rank == rank).map(|end| end.outcome)
        };
        let failed = match judgement.cause {
            // Its peers on a node that was asked to leave went away.
            ClusterCause::Workers(Cause::Failed { .. }) if !self.leaving.is_empty() => Some(None),
            ClusterCause::Workers(Cause::Failed { rank } | Cause::Hung { rank }) => Some(outcome_of(rank)),
            ClusterCause::Workers(Cause::NotStarted { temporary: true, .. })
            | ClusterCause::NodeLost { .. } => Some(None),
            ClusterCause::Workers(_) => None,
        };
        let is_lost = matches!(judgement.cause, ClusterCause::NodeLost { .. });
        let (least, most) = (*self.policy.nodes.start(), *self.policy.nodes.end());
        // A node that has come back is no spare: its failures would never end a run of a fixed number of nodes.
        let gone: BTreeSet<u64> =
            self.peers.values().filter(|peer| peer.lost.is_some()).map(|peer| peer.node.instance).collect();
        let stays = |(id, peer): &(MemberId, &Peer)| {
            !self.is_leaving(*id) && (least < most || !gone.contains(&peer.node.instance))
        };
        let is_spared = (is_lost || !self.leaving.is_empty()) && self.here().filter(stays).count() >= least;
        let stop_source = self.asked.map(|signal| StopSource::Request { signal });
        let next = match failed {
            // With MIN:MAX, nodes may leave and come.
            Some(_) if is_spared && stop_source.is_none() => self.restarts.admit(now),
            Some(outcome) => {
                let port_taken = reports().any(|report| report.port_taken);
                let failed = FailedAttempt { outcome, stop_source, notices: &notices, lasted, port_taken };
                self.restarts.after_failure(&failed, now)
            }
            None if stop_source.is_none() => match judgement.cause {
                ClusterCause::Workers(Cause::Requeue) if self.is_admitting => self.restarts.admit(now),
                ClusterCause::Workers(Cause::Requeue | Cause::Stopped { .. } | Cause::OthersFailed)
                    if !self.leaving.is_empty() =>
                {
                    self.restarts.admit(now)
                }
                _ => Next::Finish { reason: None },
            },
            None => Next::Finish { reason: None },
        };
        let ended = |judgement, nodes, reason| Ending::Judged { judgement, nodes, stop_source, reason };
        match next {
            Next::Finish { reason } => {
                if is_success {
                    self.send_to_all(|_, _| true, &ToMember::EndedWell);
                }
                self.finish(ended(judgement, nodes, reason));
            }
            Next::Stop => self.finish(ended(judgement, nodes, Some("the launcher was asked to stop"))),
            Next::Restart { restart, pause } => {
                if failed.is_some() {
                    self.tell(LeaderNotice::Ended { judgement, nodes });
                }
                // A signal for the workers does not wait.
                let pause = if self.restarts.pause_ended() { Duration::ZERO } else { pause };
                self.tell(LeaderNotice::Restarting { restart, pause });
                self.phase = Phase::Pausing { until: now.saturating_add(pause) };
                self.advance(now);
            }
            Next::OtherPort => {
                self.tell(LeaderNotice::OtherPort);
                self.phase = Phase::Pausing { until: now };
                self.advance(now);
            }
        }
    }

    /// Counts failures in a row of the host that is to blame, and leaves it out if there are too many.
    fn count_failure(&mut self, host: &str, lasted: Duration) {
        let most = self.policy.failures_in_a_row;
        let is_lasting = lasted >= LASTING;
        self.failures.retain(|known, count| *count >= most || (known == host && !is_lasting));
        let count = self.failures.entry(host.to_owned()).or_default();
        *count += 1;
        let failures = *count;
        if failures < most || !self.can_spare(host) {
            return;
        }
        let left_out = self.here().find(|(id, peer)| *id != OWN && peer.name == host).map(|(id, _)| id);
        if let Some(id) = left_out {
            let reason = format!("it has failed {failures} times in a row");
            self.send(id, ToMember::Rejected { reason });
            self.actions.push(LeaderAction::Close { member: id });
            self.peers.remove(&id);
            self.tell(LeaderNotice::LeftOut { host: host.to_owned(), failures });
        }
    }

    /// Begins the next epoch after the pause, unless the run was asked to stop meanwhile.
    pub(super) fn resume(&mut self, now: Duration) {
        match self.restarts.resume(now, self.has_checkpoint) {
            Resumption::Start { notices } => {
                self.notices = notices;
                self.dismiss();
                self.gather(Joining::new(now, self.rejoin_call(now)), now);
            }
            Resumption::Stopped { signal } => self.finish(Ending::StoppedEarly { signal }),
            Resumption::Requeue => self.finish(Ending::StoppedEarly { signal: crate::signals::USR1 }),
            Resumption::TooLate { .. } => {
                self.finish(Ending::StoppedEarly { signal: crate::signals::TERM });
            }
        }
    }

    /// Returns whether the workers of a program were stopped because a node has reached the time limit, by which the others
    /// are stopped too.
    fn is_time_limit_of_program(&self, judgement: &Judgement, nodes: &[NodeEnd]) -> bool {
        let has =
            |cause| nodes.iter().filter_map(|node| node.report.as_ref()).any(|report| report.cause == cause);
        matches!(judgement.cause, ClusterCause::Workers(Cause::Stopped { .. }))
            && self.policy.requeue_code.is_none()
            && self.asked.is_none()
            && self.leaving.is_empty()
            && has(Cause::Requeue)
    }

    /// Returns the wait for more nodes before a restart. After a request to leave on one node, another may follow
    /// on the next: the run then stops.
    fn rejoin_call(&self, now: Duration) -> Duration {
        match self.lease_of_leave(now) {
            Duration::ZERO => self.policy.rejoin_call,
            rest => rest,
        }
    }

    pub(super) fn finish(&mut self, ending: Ending) {
        self.phase = Phase::Decided;
        self.actions.push(LeaderAction::Finish(Box::new(ending)));
    }
}

impl Judgement {
    /// Returns whether this node, or a worker of it, is to blame.
    pub fn blames(&self, node: &NodeEnd) -> bool {
        match self.cause {
            ClusterCause::NodeLost { group_rank } => node.group_rank == group_rank,
            ClusterCause::Workers(cause) => cause.rank().is_some_and(|rank| node.has(rank)),
        }
    }
}
