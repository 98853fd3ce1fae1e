//! `dtrain requeue`: decides for a batch script whether its job starts again.
//!
//! It prints the run's own exit code, with which the script ends. It counts in a small file in the run directory, so that the bound holds on every batch system.

use crate::cli::RequeueArgs;
use anyhow::Context;
use dtrain_common::exit::ExitStatus;
use dtrain_common::files;
use dtrain_common::result::RunResult;
use dtrain_common::run_dir::{RunDir, RunDirError};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

/// The file in the run directory.
const FILE: &str = "requeues.json";
/// Starts in a row without a newer checkpoint, after which the job ends.
const MOST_STANDSTILLS: u32 = 2;

/// What the job's earlier starts did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Requeues {
    /// The submission that counts; another one begins again. `None`: of a script of an earlier version.
    #[serde(default)]
    submission: Option<String>,
    count: u32,
    /// The newest checkpoint's step when the job last ended with code 75; `None`: no checkpoint.
    step: Option<u64>,
    /// Starts in a row that wrote no newer checkpoint.
    standstills: u32,
}

/// Why the job does not start again.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error(
        "it was requeued {count} times, the most that --max-requeues allows; to continue, submit it again"
    )]
    Bound { count: u32 },
    #[error(
        "{MOST_STANDSTILLS} starts in a row made no progress{}; give the job more --time, or more frequent \
         checkpoints, and submit it again",
        step.map(|step| format!(" after step {step}")).unwrap_or_default()
    )]
    Standstill { step: Option<u64> },
}

/// The newest checkpoint at the end of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Newest {
    /// Its step; `None`: no checkpoint.
    Step(Option<u64>),
    /// It cannot be read now.
    Unreadable,
}

impl Newest {
    fn of(run_dir: &RunDir) -> Result<Self, RunDirError> {
        match run_dir.newest_checkpoint() {
            Err(error) if error.is_unreadable() => {
                eprintln!("dtrain: the progress of the run is unknown: {error}");
                Ok(Self::Unreadable)
            }
            other => Ok(Self::Step(other?.map(|(_, manifest)| manifest.step))),
        }
    }
}

impl Requeues {
    /// Returns the state after one more start. A program writes no checkpoint, and its progress is unknown.
    fn next(&self, newest: Newest, is_training: bool, most: u32) -> Result<Self, Refusal> {
        let (step, standstills) = match newest {
            Newest::Unreadable => (self.step, self.standstills),
            Newest::Step(step) if is_training && self.count > 0 && step <= self.step => {
                (step, self.standstills + 1)
            }
            Newest::Step(step) => (step, 0),
        };
        if standstills >= MOST_STANDSTILLS {
            return Err(Refusal::Standstill { step });
        }
        if self.count >= most {
            return Err(Refusal::Bound { count: self.count });
        }
        Ok(Self { submission: self.submission.clone(), count: self.count + 1, step, standstills })
    }

    /// Returns the state of this submission: an earlier one may have been deleted at any moment, and left its count.
    fn of(self, submission: Option<&str>) -> Self {
        match self.submission.as_deref() == submission {
            true => self,
            false => Self { submission: submission.map(str::to_owned), ..Self::default() },
        }
    }
}

/// Returns the exit code of the run. `given` is the batch system's: of several nodes the highest, such as that of a node
/// that was killed, while the run ended with 0 or 75. `result`: what the leader has written; without, it was killed.
fn code_of(given: u8, result: Option<u8>, has_checkpoint: bool) -> u8 {
    let is_signal = given > ExitStatus::Signal(0).code();
    match result {
        Some(code) => code,
        None if is_signal && has_checkpoint => ExitStatus::Requeue.code(),
        None => given,
    }
}

/// Returns the code in `result.json`, unless the file was written before this start.
fn result_of(run_dir: &RunDir, since: u64) -> Option<u8> {
    let written = fs::metadata(run_dir.result()).and_then(|data| data.modified()).ok()?;
    let is_old = written < UNIX_EPOCH + Duration::from_secs(since);
    RunResult::read(&run_dir.result()).ok().flatten()?.exit_code.filter(|_| !is_old)
}

/// Prints the exit code of the run. Exits with 0 if the job is to start again, and else with 1.
pub(crate) fn run(args: &RequeueArgs) -> anyhow::Result<ExitCode> {
    let file = args.run_dir.join(FILE);
    let run_dir = RunDir::new(&args.run_dir);
    let is_training = run_dir.checkpoints().exists();
    let newest = Newest::of(&run_dir)?;
    let code = code_of(args.code, result_of(&run_dir, args.since), newest != Newest::Step(None));
    crate::stdout::print(&format!("{code}\n")).context("cannot write to standard output")?;
    if code != ExitStatus::Requeue.code() {
        forget(&file)?;
        return Ok(ExitCode::FAILURE);
    }
    match read(&file)?.of(args.submission.as_deref()).next(newest, is_training, args.most) {
        Ok(next) => {
            let text = serde_json::to_string(&next)?;
            files::write_atomic(&file, text.as_bytes())
                .with_context(|| format!("cannot write {}", file.display()))?;
            eprintln!("dtrain: requeue {} of {}", next.count, args.most);
            Ok(ExitCode::SUCCESS)
        }
        Err(refusal) => {
            // The user's next submission counts from 0.
            forget(&file)?;
            eprintln!("dtrain: the job does not start again: {refusal}");
            Ok(ExitCode::FAILURE)
        }
    }
}

fn read(file: &Path) -> anyhow::Result<Requeues> {
    match fs::read_to_string(file) {
        Ok(text) => serde_json::from_str(&text)
            .with_context(|| format!("{} is not dtrain's count of requeues; remove it", file.display())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Requeues::default()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
    }
}

fn forget(file: &Path) -> anyhow::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", file.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Decides about starts that end with these newest steps.
    fn starts(steps: &[Option<u64>], is_training: bool, most: u32) -> Result<Requeues, Refusal> {
        steps
            .iter()
            .try_fold(Requeues::default(), |state, step| state.next(Newest::Step(*step), is_training, most))
    }

    #[test]
    fn each_submission_counts_from_zero() {
        let earlier = Requeues { submission: Some("71".into()), count: 9, step: Some(10), standstills: 1 };
        assert_eq!(earlier.clone().of(Some("71")), earlier);
        assert_eq!(earlier.of(Some("72")), Requeues { submission: Some("72".into()), ..Requeues::default() });
        let old: Requeues = serde_json::from_str(r#"{"count":3,"step":null,"standstills":0}"#).unwrap();
        assert_eq!(old.clone().of(None).count, 3);
        assert_eq!(old.of(Some("71")).count, 0);
    }

    #[test]
    fn the_runs_own_code_decides() {
        for (given, result, has_checkpoint, expected) in [
            // Node 1 was killed, and the leader has ended with 75.
            (137, Some(75), true, 75),
            (143, Some(4), true, 4),
            // The leader was killed.
            (137, None, true, 75),
            (137, None, false, 137),
            (4, None, true, 4),
            // An elastic run has succeeded without node 1.
            (137, Some(0), true, 0),
            // The other node has lost its leader, which has failed.
            (75, Some(4), true, 4),
            (2, None, true, 2),
        ] {
            assert_eq!(code_of(given, result, has_checkpoint), expected, "{given} {result:?}");
        }
    }

    #[test]
    fn a_result_of_an_earlier_submission_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        assert_eq!(result_of(&run_dir, 0), None);
        RunResult { exit_code: Some(75), ..RunResult::default() }.write(&run_dir.result()).unwrap();
        let written = fs::metadata(run_dir.result()).unwrap().modified().unwrap();
        let written = written.duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert_eq!(result_of(&run_dir, written), Some(75));
        assert_eq!(result_of(&run_dir, written + 1), None);
    }

    #[test]
    fn a_job_with_progress_starts_again_up_to_the_bound() {
        let steps = [Some(10), Some(20), Some(30)];
        assert_eq!(
            starts(&steps, true, 3),
            Ok(Requeues { submission: None, count: 3, step: Some(30), standstills: 0 })
        );
        assert_eq!(starts(&steps, true, 2), Err(Refusal::Bound { count: 2 }));
        assert_eq!(starts(&[Some(1)], true, 0), Err(Refusal::Bound { count: 0 }));
    }

    #[test]
    fn two_starts_in_a_row_without_progress_end_the_job() {
        let stands = Err(Refusal::Standstill { step: Some(10) });
        assert!(starts(&[Some(10), Some(10)], true, 9).is_ok());
        assert_eq!(starts(&[Some(10), Some(10), Some(10)], true, 9), stands);
        assert!(starts(&[Some(10), Some(10), Some(20), Some(20)], true, 9).is_ok());
        assert_eq!(starts(&[None, None, None], true, 9), Err(Refusal::Standstill { step: None }));
        // A rollback is no progress.
        assert_eq!(starts(&[Some(30), Some(10), Some(10)], true, 9), stands);
    }

    #[test]
    fn a_checkpoint_that_cannot_be_read_ends_no_job() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        assert_eq!(Newest::of(&run_dir).unwrap(), Newest::Step(None));
        let checkpoint = run_dir.checkpoint(20);
        fs::create_dir_all(&checkpoint).unwrap();
        // Reading a link to itself is an error of the system, as EIO or ESTALE.
        std::os::unix::fs::symlink("manifest.json", checkpoint.join("manifest.json")).unwrap();
        assert_eq!(Newest::of(&run_dir).unwrap(), Newest::Unreadable);
        assert!(run_dir.may_have_checkpoint());

        let before = Requeues { submission: None, count: 4, step: Some(10), standstills: 1 };
        let next = before.next(Newest::Unreadable, true, 9).unwrap();
        assert_eq!(next, Requeues { count: 5, ..before.clone() });
        assert_eq!(before.next(Newest::Unreadable, true, 4), Err(Refusal::Bound { count: 4 }));
        assert_eq!(next.next(Newest::Step(Some(20)), true, 9).unwrap().standstills, 0);
    }

    #[test]
    fn the_progress_of_a_program_is_unknown() {
        assert_eq!(starts(&[None; 4], false, 9).unwrap().count, 4);
    }
}
