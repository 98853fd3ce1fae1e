//! The connection to the leader: the lease, its end, and the wait for a leader that was lost.

use super::{Connection, Member, MemberAction, MemberEnding, Workers};
use crate::cluster::lease::{Lease, Times};
use crate::cluster::message::{RunInfo, StopReason, ToLeader};
use dtrain_common::exit::ExitStatus;
use std::time::Duration;

impl Member {
    pub(super) fn welcome(&mut self, times: Times, run: RunInfo, is_spare: bool, now: Duration) {
        let Connection::Joining { asked } = self.connection else { return };
        if self.leader.is_some_and(|leader| leader != run.leader) {
            return self.finish(MemberEnding::LeaderLost);
        }
        self.times = times;
        self.leader = Some(run.leader);
        self.connection = Connection::Joined { lease: Lease::new(times, asked), next_beat: now };
        self.actions.push(MemberAction::Joined { run, is_spare });
        if let Some(signal) = self.asked {
            self.send(ToLeader::Asked { signal, again: false });
        }
    }

    /// Kills the workers if their lease has ended.
    pub(super) fn check_lease(&mut self, now: Duration) {
        if self.lease().is_some_and(|lease| lease.end() <= now) {
            self.actions.push(MemberAction::Disconnect);
            self.lose_leader(now);
        }
        if self.kill_at.is_some_and(|at| at <= now) && self.runs() && self.workers != Workers::Killed {
            self.workers = Workers::Killed;
            self.actions.push(MemberAction::Kill);
        }
    }

    /// Stops the workers, which are killed when their lease ends, and looks for the leader again.
    pub(super) fn lose_leader(&mut self, now: Duration) {
        let end = match &self.connection {
            Connection::Joined { lease, .. } => Some(lease.end()),
            Connection::Joining { .. } => None,
            Connection::None => return,
        };
        self.connection = Connection::None;
        self.next = None;
        if end.is_some() {
            self.alone_since = now;
        }
        match self.workers {
            Workers::Prepared => self.workers = Workers::None,
            Workers::Running | Workers::Stopping => {
                self.kill_at = self.kill_at.or(end);
                if self.workers == Workers::Running {
                    self.workers = Workers::Stopping;
                    self.actions
                        .push(MemberAction::Stop(StopReason::NodeLost { host: "the leader".to_owned() }));
                }
                self.check_lease(now);
            }
            Workers::None | Workers::Killed => {}
        }
        self.actions.push(MemberAction::Connect);
    }

    pub(super) fn beat(&mut self, now: Duration) {
        if let Connection::Joined { lease, next_beat } = &mut self.connection
            && *next_beat <= now
            && !self.is_over
        {
            *next_beat = now.saturating_add(self.times.beat);
            let number = lease.beat(now);
            self.send(ToLeader::Beat { number });
        }
    }

    /// Ends without a leader, once no worker runs.
    pub(super) fn give_up(&mut self, now: Duration) {
        if self.is_over || self.runs() || self.lease().is_some() {
            return;
        }
        let is_too_long = self.is_leader_gone || self.alone_since.saturating_add(self.patience()) <= now;
        match (self.asked, self.leader) {
            (_, Some(_)) if is_too_long && self.ended_well => {
                let (code, reason) = (ExitStatus::Success.code(), String::new());
                self.finish(MemberEnding::Decided { code, reason });
            }
            (Some(signal), _) => self.finish(MemberEnding::Stopped { signal }),
            (None, Some(_)) if is_too_long => self.finish(MemberEnding::LeaderLost),
            (None, None) if is_too_long => self.finish(MemberEnding::NoLeader),
            _ => {}
        }
    }

    pub(super) fn patience(&self) -> Duration {
        if self.leader.is_some() { self.policy.rejoin_timeout } else { self.policy.join_timeout }
    }
}
