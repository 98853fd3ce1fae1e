//! The end of the run on this node: exit code, messages and result.

use super::NodeRun;
use crate::launch::cluster::shorten::{LONGEST_REASON, cut};
use crate::launch::cluster::words;
use crate::launch::report::{Conclusion, Report};
use dtrain_agent::cluster::blame::{ClusterCause, Judgement, NodeEnd};
use dtrain_agent::cluster::leader::Ending;
use dtrain_agent::cluster::member::MemberEnding;
use dtrain_agent::io::output::Message;
use dtrain_agent::local::Cause;
use dtrain_agent::signals;
use dtrain_common::exit::ExitStatus;
use dtrain_common::host;

impl NodeRun<'_> {
    /// Decides about the exit code, reports it to the user, and tells all nodes; on the leader's node.
    pub(super) fn conclude(&mut self, ending: Ending) {
        let mut not_restarted = None;
        let conclusion = match ending {
            Ending::TooFewNodes { came, missing, rejected, failed } => {
                let least = *self.rendezvous.nodes.start();
                let reason = words::too_few(&came, &missing, [&rejected, &failed], least);
                match self.goes_on() {
                    true => self.ended_early(ExitStatus::Requeue, reason),
                    false => self.ended_early(ExitStatus::Rendezvous, reason),
                }
            }
            Ending::NodeLeft { host, reason } => {
                self.ended_early(ExitStatus::WorkerFailed, format!("{host} cannot continue: {reason}"))
            }
            Ending::Unconnected { failed } => {
                self.ended_early(ExitStatus::Rendezvous, words::unconnected(&failed))
            }
            Ending::StoppedEarly { signal } => self.stopped(signal),
            Ending::LeaderFrozen { pause } => {
                let reason = format!(
                    "{}, the leader, stood still for {:.1} s (stopped, or its machine was suspended), and the other nodes \
                     gave it up; start the job again, and it resumes from its newest checkpoint",
                    host::name(),
                    pause.as_secs_f64()
                );
                self.ended_early(ExitStatus::Requeue, reason)
            }
            Ending::Judged { judgement, nodes, reason, stop_source } => {
                not_restarted = reason;
                let mut conclusion = self.conclusion(&judgement, nodes);
                let is_lost = matches!(judgement.cause, ClusterCause::NodeLost { .. });
                // At the end of a batch job, nodes end one after the other.
                let is_end_of_job = stop_source.is_some() && self.launch.plan.has_checkpoint();
                if is_lost && (is_end_of_job || self.goes_on()) {
                    conclusion.status = Some(ExitStatus::Requeue);
                }
                conclusion
            }
        };
        self.close(conclusion, not_restarted);
    }

    /// Ends the run, whose next launch resumes from a checkpoint; on the leader's node.
    pub(super) fn requeue(&mut self) {
        if self.concluded.is_some() {
            return;
        }
        let (cause, restarts) = (Cause::Requeue, self.restarts);
        let requeue = Conclusion { cause, outcome: None, blame: None, reason: None, restarts, status: None };
        self.close(requeue, None);
    }

    /// Reports the end of the run to the user and to all nodes. `not_restarted`: why an allowed restart is not made.
    fn close(&mut self, conclusion: Conclusion, not_restarted: Option<&'static str>) {
        let (plan, start_time) = (&self.launch.plan, self.launch.inbox.start_time);
        let report = Report::new(plan, conclusion, start_time);
        let run_dir = plan.run_dir.as_ref().filter(|run_dir| {
            // A run that never started leaves an earlier result.
            !plan.is_evicted() && self.latest.is_some() && run_dir.root().is_dir()
        });
        let result = report.publish(run_dir, not_restarted, |notice| self.say(notice));
        let mut reason = report.reason().to_owned();
        cut(&mut reason, LONGEST_REASON);
        self.cluster.decide(report.status.code(), reason);
        self.concluded = Some(report.status);
        if let Some(warning) = self.launch.follow_end(&result) {
            self.say(warning);
        }
    }

    /// Returns whether the workers have left a checkpoint since their last start, so that another launch makes progress.
    fn goes_on(&self) -> bool {
        let plan = &self.launch.plan;
        self.latest.is_some() && plan.has_checkpoint() && plan.newest_checkpoint() != self.resumed
    }

    fn ended_early(&self, status: ExitStatus, reason: String) -> Conclusion {
        Conclusion {
            cause: Cause::OthersFailed,
            outcome: None,
            blame: None,
            reason: Some(reason),
            restarts: self.restarts,
            status: Some(status),
        }
    }

    /// Returns the end of a run that was asked to stop while no worker ran.
    fn stopped(&self, signal: i32) -> Conclusion {
        // As on one node: the next launch resumes.
        let cause = match signal != signals::KILL && self.launch.plan.has_checkpoint() {
            true => Cause::Requeue,
            false => Cause::Stopped { signal },
        };
        Conclusion { cause, outcome: None, blame: None, reason: None, restarts: self.restarts, status: None }
    }

    /// Returns the end of an attempt from the reports of all nodes.
    pub(super) fn conclusion(&self, judgement: &Judgement, mut nodes: Vec<NodeEnd>) -> Conclusion {
        let plan = &self.launch.plan;
        let others = words::others(judgement, &nodes);
        let reason = words::lost(judgement, &nodes);
        let mut cause = match judgement.cause {
            ClusterCause::Workers(cause) => cause,
            ClusterCause::NodeLost { .. } => Cause::OthersFailed,
        };
        // The workers were stopped before any step could be lost.
        let has_steps = self.latest.as_ref().is_some_and(|run| run.has_heartbeats);
        let is_early = cause.is_stopped() && !has_steps;
        if is_early && plan.has_checkpoint() {
            cause = Cause::Requeue;
        }
        if plan.is_evicted() {
            cause = Cause::Evicted;
        }
        let blamed = nodes.iter_mut().find(|node| judgement.blames(node));
        let mut report = blamed.and_then(|node| node.report.take());
        let outcome = match (cause, &report) {
            (Cause::Failed { rank } | Cause::Hung { rank }, Some(report)) => {
                report.ends.iter().find(|end| end.rank == rank).map(|end| end.outcome)
            }
            _ => None,
        };
        let mut blame = report.as_mut().and_then(|report| report.blame.take()).map(|blame| *blame);
        if let Some(blame) = &mut blame {
            blame.banner.extend(others.iter().cloned());
        }
        let reason = reason.map(|reason| [vec![reason], others].concat().join("\n"));
        Conclusion { cause, outcome, blame, reason, restarts: self.restarts, status: None }
    }

    /// Handles the end of this node's member.
    pub(super) fn over(&mut self, ending: MemberEnding, cause: Option<String>) -> Option<ExitStatus> {
        self.is_over = true;
        if self.leads {
            // The leader's own member may end before the run does.
            return self.concluded.or_else(|| match &ending {
                MemberEnding::Stopped { signal } => Some(self.give_up(*signal)),
                MemberEnding::Decided { .. } => Some(ExitStatus::WorkerFailed),
                _ => None,
            });
        }
        let (status, reason) = match ending {
            MemberEnding::Decided { code: 0, .. } => return Some(ExitStatus::Success),
            MemberEnding::Decided { code, reason } => (ExitStatus::Program(code.into()), reason),
            MemberEnding::Left => (ExitStatus::WorkerFailed, "this node cannot continue".to_owned()),
            MemberEnding::Rejected { reason } => {
                (ExitStatus::Rendezvous, format!("the leader refused this node: {reason}"))
            }
            MemberEnding::NoLeader => {
                let cause = cause.unwrap_or_else(|| "the leader did not answer in time".to_owned());
                (ExitStatus::Rendezvous, cause)
            }
            MemberEnding::LeaderLost => {
                let text = "the leader was lost and did not come back; start the job again, and it resumes from its \
                            newest checkpoint";
                (ExitStatus::Requeue, text.to_owned())
            }
            MemberEnding::Stopped { signal } => return Some(self.give_up(signal)),
        };
        self.say(Message::error(format!("dtrain: exit code {}: {reason}", status.code())));
        Some(status)
    }
}
