//! Events for the simulated agents, and what their actions do.

use std::time::Duration;

use dtrain_agent::cluster::blame::ClusterCause;
use dtrain_agent::cluster::leader::{Ending, LeaderAction, LeaderEvent};
use dtrain_agent::cluster::member::{MemberAction, MemberEvent};
use dtrain_agent::cluster::message::{Preparation, ToMember};
use dtrain_agent::cluster::trial::{FailedTry, Fault};
use dtrain_agent::local::Cause;

use super::step::{How, Step, ms};
use super::world::World;

impl World {
    pub(super) fn tell_leader(&mut self, event: LeaderEvent) {
        if self.is_leader_over {
            return;
        }
        let actions = self.leader.on(event, self.now);
        self.carry_out_leader(actions);
        if let Some(deadline) = self.leader.deadline().filter(|_| !self.is_leader_over) {
            self.wake(None, deadline);
        }
    }

    fn carry_out_leader(&mut self, actions: Vec<LeaderAction>) {
        for action in actions {
            match action {
                LeaderAction::Send { to, message } => {
                    if let ToMember::Start { .. } = message {
                        self.outcomes.started_after.get_or_insert(self.now);
                    }
                    self.send(to, Step::ToMember { connection: to, message });
                }
                LeaderAction::Close { member } => {
                    self.open_at_leader.remove(&member);
                    let at = self.connections.get(&member).map_or(self.now, |(.., at)| (*at).max(self.now));
                    self.at(at, Step::Cut { connection: member, at_leader: false, at_member: true });
                }
                LeaderAction::Tell(_) => {}
                LeaderAction::Finish(ending) => {
                    assert!(!self.is_leader_over, "the run ends twice");
                    self.is_leader_over = true;
                    let code = code_of(&ending);
                    self.outcomes.code = Some(code);
                    let actions = self.leader.decide(code, String::new());
                    self.carry_out_leader(actions);
                    // The leader's process ends: every connection does.
                    for connection in self.open_at_leader.clone().into_keys() {
                        let at = self.connections[&connection].2.max(self.now);
                        self.at(at, Step::Cut { connection, at_leader: true, at_member: true });
                    }
                }
            }
        }
    }

    /// Sends a message, in order with the others of its connection.
    fn send(&mut self, connection: u64, step: Step) {
        self.outcomes.messages += 1;
        let delay = match connection {
            0 => Duration::ZERO,
            _ if self.random.below(self.setup.slow_one_in) == 0 => ms(self.random.below(700)),
            _ => Duration::from_micros(50 + self.random.below(2000)),
        };
        let now = self.now;
        let Some((_, there, back)) = self.connections.get_mut(&connection) else { return };
        let last = if matches!(step, Step::ToLeader { .. }) { there } else { back };
        let at = (now + delay).max(*last);
        *last = at;
        self.at(at, step);
    }

    pub(super) fn tell_member(&mut self, node: usize, event: MemberEvent) {
        let state = &mut self.nodes[node];
        let now = state.clock(self.now);
        let Some(member) = &mut state.member else { return };
        let actions = member.on(event, now);
        let deadline = member.deadline().map(|at| state.world_time(at));
        self.carry_out(node, actions);
        if let Some(at) = deadline {
            self.wake(Some(node), at);
        }
    }

    pub(super) fn carry_out(&mut self, node: usize, actions: Vec<MemberAction>) {
        for action in actions {
            match action {
                MemberAction::Send(message) => {
                    if let Some(connection) = self.nodes[node].connection {
                        self.send(connection, Step::ToLeader { connection, message });
                    }
                }
                MemberAction::Connect => self.after(ms(20), Step::Connect { node }),
                MemberAction::Disconnect => {
                    if let Some(connection) = self.nodes[node].connection.take() {
                        self.after(ms(1), Step::Cut { connection, at_leader: true, at_member: false });
                    }
                }
                MemberAction::Joined { .. } => {}
                MemberAction::Prepare(Preparation { epoch, logs, .. }) => {
                    self.outcomes.epochs = self.outcomes.epochs.max(epoch);
                    self.nodes[node].prepared = epoch;
                    let delay = ms(self.random.below(50));
                    let logs = logs.max(self.nodes[node].earlier_logs);
                    self.after(delay, Step::Prepared { node, epoch, logs });
                }
                MemberAction::Try { epoch, places } => {
                    let fails =
                        self.setup.fails_one_in > 0 && self.random.below(self.setup.fails_one_in) == 0;
                    let failure = FailedTry { fault: Fault::Silent, port: 1024, other_works: false };
                    let failures = places.iter().filter(|_| fails).map(|(to, _)| (*to, failure)).collect();
                    let delay = ms(if fails { 1500 } else { self.random.below(5) });
                    self.after(delay, Step::Tried { node, epoch, failures });
                }
                MemberAction::Start { .. } => {
                    self.attempts += 1;
                    let attempt = self.attempts;
                    let epoch = self.nodes[node].prepared;
                    assert!(self.nodes[node].running.is_none(), "an attempt still runs");
                    let state = &mut self.nodes[node];
                    (state.running, state.is_stopping) = (Some((epoch, attempt)), false);
                    (state.is_killed, state.is_killed_awake) = (false, false);
                    self.check();
                    let work = self.setup.work + ms(self.random.below(20));
                    self.after(work, Step::WorkersEnd { node, attempt, how: How::Done });
                }
                MemberAction::Stop(reason) => {
                    // Most workers stop at once; some take longer than a lease lasts.
                    let longest = if self.random.below(4) == 0 { 3000 } else { 30 };
                    let delay = self.random.below(longest);
                    self.end_workers(node, ms(delay), How::Stopped(reason));
                }
                MemberAction::Kill => {
                    let delay = ms(self.random.below(500));
                    self.nodes[node].is_killed = true;
                    self.end_workers(node, delay, How::Killed);
                }
                MemberAction::Finish(ending) => {
                    self.nodes[node].ending = Some(ending);
                    self.nodes[node].member = None;
                    if let Some(connection) = self.nodes[node].connection.take() {
                        self.after(ms(1), Step::Cut { connection, at_leader: true, at_member: false });
                    }
                }
            }
        }
    }
}

/// The exit code of the simulated leader.
fn code_of(ending: &Ending) -> u8 {
    let judgement = match ending {
        Ending::Judged { judgement, .. } => judgement,
        Ending::LeaderFrozen { .. } => return 75,
        _ => return 5,
    };
    match judgement.cause {
        ClusterCause::Workers(Cause::Success) => 0,
        ClusterCause::Workers(Cause::Requeue) => 75,
        ClusterCause::Workers(Cause::Stopped { .. }) => 130,
        ClusterCause::Workers(_) => 1,
        ClusterCause::NodeLost { .. } => 4,
    }
}
