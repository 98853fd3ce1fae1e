//! The state of a run: a pure function of what its directory holds.

use super::files::Problem;
use crate::cli::RunState;
use crate::times::about;
use dtrain_common::exit::ExitStatus;
use dtrain_common::result::{Failure, RunResult};
use dtrain_common::run_dir::{Life, Presence};
use std::time::Duration;

/// A process on another machine that has not renewed its lease for this long is lost. Three times the time after
/// which another launch may take the directory: clocks may differ a little.
const LOST_AFTER: Duration = Duration::from_secs(60);

/// Causes of a failure that are a lack of memory.
const MEMORY_CAUSES: [&str; 2] = ["cuda-out-of-memory", "out-of-memory-killed"];

/// What a run directory says about its end.
#[derive(Debug)]
pub(super) struct Evidence<'a> {
    pub(super) presence: Option<&'a Presence>,
    pub(super) result: Result<Option<&'a RunResult>, &'a Problem>,
    /// Whether an attempt has begun.
    pub(super) has_begun: bool,
    /// Whether dtrain's own trainer runs: codes of other programs have no meaning here.
    pub(super) is_training: bool,
}

impl Evidence<'_> {
    /// Returns the state and its explanation.
    pub(super) fn state(&self) -> (RunState, String) {
        if let Some(Presence { host, life, .. }) = self.presence {
            match life {
                Life::Running => return (RunState::Running, format!("on {host}")),
                Life::Unseen(age) if *age < LOST_AFTER => {
                    return (RunState::Running, format!("on {host}, sign of life {} ago", about(*age)));
                }
                Life::Ended | Life::Unseen(_) => {}
            }
        }
        match self.result {
            Err(problem) => (RunState::Unreadable, problem.to_string()),
            Ok(Some(result @ RunResult { exit_code: Some(code), .. })) => self.ended(result, *code),
            Ok(_) => self.without_result(),
        }
    }

    fn ended(&self, result: &RunResult, code: u8) -> (RunState, String) {
        let failure = result.failure.as_ref();
        let cause = failure.and_then(|failure| failure.cause.as_ref());
        let has_no_memory = cause.is_some_and(|cause| MEMORY_CAUSES.contains(&cause.kind.as_str()))
            || self.is_training && code == ExitStatus::OutOfMemory.code();
        let state = match code {
            0 => RunState::Succeeded,
            _ if code == ExitStatus::Requeue.code() => RunState::Requeue,
            _ if has_no_memory => RunState::OutOfMemory,
            129.. if failure.is_none() => RunState::Stopped,
            _ => RunState::Failed,
        };
        let why = match (state, failure.zip(cause), result.wall_s) {
            (RunState::Succeeded, _, Some(seconds)) => Duration::try_from_secs_f64(seconds)
                .map_or(String::new(), |time| format!("took {}", about(time))),
            (RunState::Requeue, ..) => "stopped on request; start it again to resume".to_owned(),
            (_, Some((Failure { rank, host, .. }, cause)), _) => {
                format!("rank {rank} on {host}: {}", cause.kind)
            }
            _ => result.reason.clone().unwrap_or_else(|| format!("exit code {code}")),
        };
        (state, why)
    }

    fn without_result(&self) -> (RunState, String) {
        let why = match self.presence {
            Some(Presence { pid, host, life: Life::Unseen(age) }) => {
                format!("no sign of life of process {pid} on {host} for {}", about(*age))
            }
            Some(Presence { pid, host, .. }) => format!("process {pid} on {host} ended without a result"),
            None if self.has_begun => "no result, and no process claims the run directory".to_owned(),
            None => return (RunState::NotStarted, "no attempt has begun".to_owned()),
        };
        (RunState::Lost, why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_common::result::Cause;

    fn presence(life: Life) -> Presence {
        Presence { pid: 7, host: "n1".into(), life }
    }

    fn state(presence: Option<Presence>, result: Option<RunResult>, has_begun: bool) -> (RunState, String) {
        let (presence, result) = (presence.as_ref(), Ok(result.as_ref()));
        Evidence { presence, result, has_begun, is_training: true }.state()
    }

    fn ended(code: u8) -> RunResult {
        RunResult {
            exit_code: Some(code),
            reason: Some("why".into()),
            wall_s: Some(65.0),
            ..RunResult::default()
        }
    }

    fn failed(code: u8, kind: &str) -> RunResult {
        let cause = Cause { kind: kind.into(), text: "long".into() };
        let failure = Failure { rank: 3, host: "n2".into(), cause: Some(cause), ..Failure::default() };
        RunResult { failure: Some(failure), ..ended(code) }
    }

    #[test]
    fn the_state_follows_from_lease_and_result() {
        use RunState::*;
        let unseen = |seconds| Some(presence(Life::Unseen(Duration::from_secs(seconds))));
        let dead = || Some(presence(Life::Ended));
        for (presence, result, has_begun, expected, why) in [
            (Some(presence(Life::Running)), None, true, Running, "on n1"),
            // An earlier result, which the next attempt removes.
            (Some(presence(Life::Running)), Some(ended(75)), true, Running, "on n1"),
            (unseen(4), None, true, Running, "on n1, sign of life 4 s ago"),
            (unseen(59), None, true, Running, "on n1, sign of life 59 s ago"),
            (unseen(60), None, true, Lost, "no sign of life of process 7 on n1 for 1 min 0 s"),
            (dead(), None, true, Lost, "process 7 on n1 ended without a result"),
            (dead(), Some(ended(0)), true, Succeeded, "took 1 min 5 s"),
            (None, None, true, Lost, "no result, and no process claims the run directory"),
            (None, None, false, NotStarted, "no attempt has begun"),
            // The worker writes its figures before the launcher adds the outcome.
            (
                None,
                Some(RunResult::default()),
                true,
                Lost,
                "no result, and no process claims the run directory",
            ),
            (None, Some(ended(75)), true, Requeue, "stopped on request; start it again to resume"),
            (None, Some(ended(3)), true, OutOfMemory, "why"),
            (
                None,
                Some(failed(4, "cuda-out-of-memory")),
                true,
                OutOfMemory,
                "rank 3 on n2: cuda-out-of-memory",
            ),
            (None, Some(failed(4, "thought-of-later")), true, Failed, "rank 3 on n2: thought-of-later"),
            (None, Some(failed(139, "crash")), true, Failed, "rank 3 on n2: crash"),
            (None, Some(ended(4)), true, Failed, "why"),
            (None, Some(ended(143)), true, Stopped, "why"),
        ] {
            let shown = format!("{presence:?} {result:?} {has_begun}");
            assert_eq!(state(presence, result, has_begun), (expected, why.to_owned()), "{shown}");
        }
    }

    #[test]
    fn codes_of_other_programs_have_no_meaning_and_a_damaged_result_is_reported() {
        let result = ended(3);
        let program =
            Evidence { presence: None, result: Ok(Some(&result)), has_begun: true, is_training: false };
        assert_eq!(program.state().0, RunState::Failed);
        let problem = Problem::NotAFile("result.json".into());
        let damaged = Evidence { presence: None, result: Err(&problem), has_begun: true, is_training: true };
        assert_eq!(damaged.state(), (RunState::Unreadable, "result.json is not a file".to_owned()));
    }
}
