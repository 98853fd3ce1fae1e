//! The ends of simulated workers.

use std::time::Duration;

use dtrain_agent::cluster::member::{FinishedAttempt, MemberEvent};
use dtrain_agent::cluster::message::StopReason;
use dtrain_agent::local::{Cause, End, Outcome, Verdict};
use dtrain_agent::signals;

use super::step::{How, Step};
use super::world::World;

impl World {
    /// Lets running workers of a node end after `delay`.
    pub(super) fn end_workers(&mut self, node: usize, delay: Duration, how: How) {
        let state = &mut self.nodes[node];
        state.is_stopping = true;
        if let Some((_, attempt)) = state.running {
            self.after(delay, Step::WorkersEnd { node, attempt, how });
        }
    }

    pub(super) fn workers_end(&mut self, node: usize, attempt: u64, how: How) {
        let state = &mut self.nodes[node];
        if state.running.is_none_or(|(_, running)| running != attempt) {
            return;
        }
        let at = state.clock(self.now);
        let end = |outcome, sent| End { rank: 0, outcome, at, sent, lost_peer: false };
        let exited = |code| end(Outcome::Exited(code), vec![]);
        let killed = |signal| end(Outcome::Signaled(signal), vec![signal]);
        let (cause, end) = match &how {
            How::Done => (Cause::Success, exited(0)),
            How::Failed | How::PortTaken => (Cause::Failed { rank: 0 }, exited(1)),
            How::Hung => (Cause::Hung { rank: 0 }, killed(signals::ABRT)),
            How::Requeued | How::Stopped(StopReason::Requeue | StopReason::Admit) => {
                (Cause::Requeue, exited(75))
            }
            How::Asked { signal } | How::Stopped(StopReason::Asked { signal, .. }) => {
                (Cause::Stopped { signal: *signal }, killed(*signal))
            }
            How::Stopped(_) => (Cause::OthersFailed, killed(signals::TERM)),
            How::Killed => (Cause::OthersFailed, killed(signals::KILL)),
        };
        if matches!(how, How::Failed | How::PortTaken) {
            self.tell_member(node, MemberEvent::Failed(end.clone()));
        }
        self.nodes[node].running = None;
        let silent_since = (how == How::Hung).then(|| at.saturating_sub(Duration::from_secs(1)));
        let verdict = Verdict { cause, ends: vec![end], stop_source: None, silent_since, notices: vec![] };
        let finished =
            FinishedAttempt { verdict, port_taken: how == How::PortTaken, has_checkpoint: true, blame: None };
        self.tell_member(node, MemberEvent::Over(Box::new(finished)));
    }
}
