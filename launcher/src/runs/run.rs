//! One run: reads its directory.

use super::files::{Problem, Tail, json};
use super::find::Found;
use super::progress::{PlanFile, Steps};
use super::state::Evidence;
use crate::cli::RunState;
use crate::times::about;
use dtrain_common::manifest::{BestSoFar, Manifest};
use dtrain_common::result::RunResult;
use dtrain_common::run_dir::AttemptRecord;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// A row of the list. Unknown values are `None`.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub(super) path: PathBuf,
    pub(super) state: RunState,
    /// Explains the state.
    pub(super) why: String,
    /// Files that could not be used.
    pub(super) problems: Vec<String>,
    pub(super) attempt: Option<u32>,
    pub(super) record: AttemptRecord,
    pub(super) result: RunResult,
    pub(super) step: Option<u64>,
    pub(super) total_steps: Option<u64>,
    pub(super) epoch: Option<u64>,
    pub(super) total_epochs: Option<u64>,
    /// The last training loss.
    pub(super) loss: Option<f64>,
    pub(super) best: Option<BestSoFar>,
    pub(super) remaining: Option<Duration>,
    /// The step of the newest checkpoint.
    pub(super) checkpoint: Option<u64>,
}

impl Run {
    /// Reads a run directory, which other processes may be writing.
    pub(super) fn read(found: &Found, now: SystemTime) -> Self {
        let run_dir = &found.run_dir;
        if let Some(error) = &found.error {
            let (path, why) = (run_dir.root().to_owned(), format!("cannot list the folder: {error}"));
            return Self { path, state: RunState::Unreadable, why, ..Self::default() };
        }
        let mut problems = Problems::default();
        // Before the result, which a run writes before it gives the directory up.
        let presence = run_dir.presence(now);
        let presence =
            presence.unwrap_or_else(|error| problems.note(format!("cannot read the lease: {error}")));
        let attempt = run_dir.newest_attempt();
        let attempt = attempt.unwrap_or_else(|error| problems.note(format!("cannot list logs: {error}")));
        let record = attempt.map(|number| json(&AttemptRecord::path(&run_dir.attempt(number))));
        let record: Option<AttemptRecord> = record.and_then(|record| problems.usable(record));
        let presence = presence.or_else(|| record.as_ref()?.presence());
        let result = json::<RunResult>(&run_dir.result());
        let plan: PlanFile = problems.usable(json(&run_dir.plan())).unwrap_or_default();
        let steps = problems.usable(Tail::read(&run_dir.metrics()).map(|tail| Some(Steps::of(&tail))));
        let steps = steps.unwrap_or_default();
        let checkpoint = run_dir.linked(&run_dir.latest());
        let manifest = checkpoint.map(|step| Manifest::read(&run_dir.checkpoint(step)));
        let manifest = manifest.and_then(|manifest| match manifest {
            Ok(manifest) => Some(manifest),
            Err(error) => problems.note(error.to_string()),
        });

        let evidence = Evidence {
            presence: presence.as_ref(),
            result: result.as_ref().map(Option::as_ref),
            has_begun: attempt.is_some() || steps.last.is_some(),
            is_training: run_dir.recipe().exists(),
        };
        let (state, mut why) = evidence.state();
        let is_running = state == RunState::Running;
        if let Some(silent) = steps.silence(now).filter(|_| is_running) {
            why.push_str(&format!(", no step for {}", about(silent)));
        }
        let record = record.unwrap_or_default();
        let remaining = steps.remaining(&plan, record.began()).filter(|_| is_running);
        // A result of the attempt before is not that of a run.
        let result = result.ok().flatten().filter(|_| !is_running).unwrap_or_default();
        let last = steps.last.as_ref();
        Self {
            path: run_dir.root().to_owned(),
            state,
            why,
            problems: problems.0,
            attempt,
            step: result.steps.or(last.map(|last| last.step)).or(checkpoint),
            total_steps: plan.total_steps,
            epoch: last.map(|last| last.epoch),
            total_epochs: plan.total_epochs(),
            loss: last.and_then(|last| last.loss),
            best: result.best.clone().or(manifest.and_then(|manifest| manifest.best)),
            remaining,
            checkpoint,
            record,
            result,
        }
    }

    /// Returns the whole percent of the steps that are done.
    pub(super) fn percent(&self) -> Option<u64> {
        percent(self.step, self.total_steps)
    }
}

/// Returns the whole percent of the steps that are done.
pub(crate) fn percent(step: Option<u64>, total: Option<u64>) -> Option<u64> {
    let total = total.filter(|total| *total > 0)?;
    Some((step?.min(total) as u128 * 100 / total as u128) as u64)
}

#[derive(Default)]
struct Problems(Vec<String>);

impl Problems {
    fn note<T>(&mut self, problem: String) -> Option<T> {
        self.0.push(problem);
        None
    }

    fn usable<T>(&mut self, read: Result<Option<T>, Problem>) -> Option<T> {
        read.unwrap_or_else(|problem| self.note(problem.to_string()))
    }
}
