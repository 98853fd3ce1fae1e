//! Messages for the user during a run.

use crate::executable::why_not_started;
use crate::plan::LaunchPlan;
use dtrain_agent::io::output::Message;
use dtrain_agent::local::{KillReason, Notice, Outcome};
use dtrain_agent::signals;
use dtrain_common::exit::ExitStatus;
use dtrain_common::text::counted;
use std::io;
use std::time::Duration;

/// The death of the process that the user has started: nothing but a kill ends it during a run.
pub(super) const GUARDIAN_DIED: &str = "the first process of `dtrain launch` was killed";

pub(super) fn restarting(restart: u32, allowed: u32, workers: usize, pause: Duration) -> String {
    let all = match workers {
        1 => "the worker".to_owned(),
        _ => format!("all {workers} workers"),
    };
    let when = match pause.as_secs() {
        0 => String::new(),
        seconds => format!(" in {seconds} s"),
    };
    format!("dtrain: restarting {all}{when} (restart {restart} of {allowed})")
}

/// Returns the message for a notice; `None` if the banner follows at once.
pub(super) fn notice(notice: &Notice, plan: &LaunchPlan, timeout: Duration) -> Option<Message> {
    let text = words(notice, plan, timeout)?;
    Some(match notice {
        Notice::Failed { .. } | Notice::Hanging { .. } | Notice::Killing { .. } => Message::error(text),
        Notice::Resumed { .. } | Notice::Writing { .. } => Message::warning(text),
        _ => text.into(),
    })
}

fn words(notice: &Notice, plan: &LaunchPlan, timeout: Duration) -> Option<String> {
    let workers = plan.nproc;
    let usage_error = Outcome::Exited(ExitStatus::Usage.code().into());
    let timeout = timeout.as_secs();
    let listed = |ranks: &[usize]| {
        ranks.iter().map(|rank| plan.rank(*rank).to_string()).collect::<Vec<_>>().join(", ")
    };
    match notice {
        Notice::Failed { stopping: 0, .. } | Notice::Stopping { workers: 0, .. } => None,
        Notice::Failed { outcome, .. } if plan.is_of_dtrain() && *outcome == usage_error => None,
        Notice::Failed { rank, outcome, stopping } => Some(format!(
            "dtrain: rank {} failed ({}); stopping the other {stopping} of {workers} workers; those still running after \
             {timeout} s are killed",
            plan.rank(*rank),
            ended(*outcome)
        )),
        Notice::Stopping { signal, workers } => Some(format!(
            "dtrain: received {}, passed on to {}; those still running after {timeout} s are killed; a second Ctrl-C or SIGTERM \
             kills at once",
            signals::name(*signal),
            counted(*workers, "worker")
        )),
        Notice::TimeLimit { workers, left } => Some(format!(
            "dtrain: the time limit is near: asked {} to stop; those still running after {} s are killed",
            counted(*workers, "worker"),
            left.as_secs()
        )),
        Notice::Hanging { silent } => {
            let rank = |(rank, since): &(usize, Duration)| {
                format!("rank {} for {} s", plan.rank(*rank), since.as_secs())
            };
            let ranks: Vec<_> = silent.iter().map(rank).collect();
            Some(format!(
                "dtrain: no progress: no heartbeat from {}; collecting thread stacks, then stopping the workers unless \
                 they continue",
                ranks.join(", ")
            ))
        }
        Notice::Resumed { frozen, hang_dropped } => {
            let hang = if *hang_dropped { "; the suspected hang is dropped" } else { "" };
            Some(format!(
                "dtrain: the launcher did not run for {} s: all timeouts except the time limit restart{hang}",
                frozen.as_secs()
            ))
        }
        Notice::Recovered => Some("dtrain: the workers make progress again: they are not stopped".to_owned()),
        Notice::Writing { ranks, left } => {
            let until =
                left.map_or(String::new(), |left| format!(", until the time limit in {} s", left.as_secs()));
            Some(format!(
                "dtrain: rank {} still writes a checkpoint after {timeout} s (--shutdown-timeout): waiting for it{until}; a second \
                 Ctrl-C or SIGTERM kills at once",
                listed(ranks)
            ))
        }
        // The driver knows the processes.
        Notice::Stuck { .. } => None,
        Notice::Killing { ranks, why } => {
            let why = match why {
                KillReason::TimedOut(time) => format!("still running after {} s", time.as_secs()),
                KillReason::Requested => "on request".to_owned(),
                KillReason::Abandoned => format!("{GUARDIAN_DIED}, which supervises the run"),
                KillReason::LeaseEnded => {
                    "the leader did not answer until this node's lease ended, and the other nodes continue without it".to_owned()
                }
            };
            Some(format!("dtrain: killing rank {}: {why}", listed(ranks)))
        }
    }
}

/// Returns the message for an eviction: another run has the run directory, so the workers are killed.
pub(super) fn evicted(plan: &LaunchPlan) -> String {
    let folder = plan.run_dir.as_ref().map(|run_dir| run_dir.root().display().to_string());
    format!(
        "dtrain: another run has taken {}, because this launcher was suspended or its file system did not answer: \
         killing the workers and writing nothing more there",
        folder.unwrap_or_default()
    )
}
pub(super) fn cannot_start(plan: &LaunchPlan, rank: usize, error: &io::Error) -> String {
    let of = match plan.placement.world_size {
        1 => String::new(),
        _ => format!(" for rank {}", plan.rank(rank)),
    };
    let (program, why) = (plan.command.program.display(), why_not_started(error));
    format!("cannot start `{program}`{of}: {why}")
}

/// Describes the end of a process.
pub(super) fn ended(outcome: Outcome) -> String {
    match outcome {
        Outcome::Exited(code) => format!("exit code {code}"),
        Outcome::Signaled(signal) => format!("killed by {}", signals::name(signal)),
        Outcome::Lost => "exit code unknown".to_owned(),
    }
}
