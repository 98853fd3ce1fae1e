//! The last lines of a training: its result, time, memory and files, and the next command.

use crate::cli::shell_word;
use crate::plan::LaunchPlan;
use crate::times::about;
use dtrain_common::exit::ExitStatus;
use dtrain_common::metrics::figure;
use dtrain_common::result::RunResult;
use dtrain_common::run_dir::RunDir;
use dtrain_common::text::size;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Figures that the first line shows, besides the loss.
const MOST_FIGURES: usize = 3;

/// The launcher's facts about a training that is over.
#[derive(Debug)]
pub(super) struct Summary {
    run_dir: RunDir,
    /// The command that continues the run.
    again: String,
    /// The checkpoint from which it continues.
    newest: Option<PathBuf>,
    wall: Duration,
    plan: PlanFile,
}

/// The fields of `plan.json` that the lines need.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PlanFile {
    total_steps: Option<u64>,
    predictions: Vec<Prediction>,
}

#[derive(Debug, Deserialize)]
struct Prediction {
    /// Bytes of a rank.
    peak: u64,
}

impl Summary {
    /// Returns the facts of a training; `None` for a program.
    pub(super) fn of(plan: &LaunchPlan, wall: Duration) -> Option<Self> {
        let (training, run_dir) = (plan.training()?, plan.run_dir.as_ref()?);
        // Without the file, the run has ended before it was planned.
        let file = fs::read(run_dir.plan()).ok();
        Some(Self {
            run_dir: run_dir.clone(),
            again: training.again.clone(),
            newest: plan.newest_checkpoint(),
            wall,
            plan: file.and_then(|file| serde_json::from_slice(&file).ok()).unwrap_or_default(),
        })
    }

    /// Returns the first line after a success.
    pub(super) fn success(&self, result: &RunResult) -> String {
        let steps = result.steps.map_or(String::new(), |steps| format!(" after step {steps}"));
        let end = match (result.stopped_early, self.plan.total_steps) {
            (true, Some(total)) => format!("{steps} of {total}, ended by train.stop_early"),
            _ => steps,
        };
        let (set, all) = match result.test.is_empty() {
            true => ("", &result.final_metrics),
            false => ("test ", &result.test),
        };
        let best = result.best.as_ref();
        let mut parts: Vec<_> = figures(all, best.map(|best| best.by.figure.as_str()))
            .into_iter()
            .map(|text| format!("{set}{text}"))
            .collect();
        if parts.is_empty() {
            parts.push("trained".to_owned());
        }
        let best = best.map_or(String::new(), |best| {
            let (name, value) = (named(&best.by.figure), figure(&best.by.figure, best.value));
            format!("; best {name} {value} after step {}", best.step)
        });
        format!("dtrain: done: {}{end}{best}", parts.join(", "))
    }

    /// Returns how far the run has come, to follow the reason of its end.
    pub(super) fn progress(&self, result: &RunResult) -> String {
        match (result.steps, self.plan.total_steps) {
            (Some(steps), Some(total)) => format!(", after step {steps} of {total}"),
            _ => String::new(),
        }
    }

    /// Returns the lines after the first.
    pub(super) fn rest(&self, status: ExitStatus, result: &RunResult) -> Vec<String> {
        let next = self.next(status, result).map(|next| format!("  next: {next}"));
        // A failure has its cause and its log in the lines before.
        if !matches!(status, ExitStatus::Success | ExitStatus::Requeue) {
            return next.into_iter().collect();
        }
        let lines = [Some(self.time(result)), self.memory(result), Some(self.files(status, result)), next];
        lines.into_iter().flatten().collect()
    }

    fn time(&self, result: &RunResult) -> String {
        let startup =
            result.startup_ms.map_or(String::new(), |ms| format!(", first step after {}", seconds(ms / 1e3)));
        let speed = result.samples_per_s.map_or(String::new(), |speed| match speed < 10.0 {
            true => format!("; {speed:.2} samples/s"),
            false => format!("; {speed:.0} samples/s"),
        });
        format!("  time: {}{startup}{speed}", seconds(self.wall.as_secs_f64()))
    }

    fn memory(&self, result: &RunResult) -> Option<String> {
        let measured = result.peak_memory_bytes.iter().copied().max().filter(|bytes| *bytes > 0)?;
        let planned = self.plan.predictions.iter().map(|prediction| prediction.peak).max();
        let planned = planned.map_or(String::new(), |bytes| format!(", {} planned", size(bytes)));
        Some(format!("  memory: {} measured{planned} (peak of a rank)", size(measured)))
    }

    fn files(&self, status: ExitStatus, result: &RunResult) -> String {
        let checkpoint = match (status, &result.best) {
            (ExitStatus::Success, Some(best)) => Some(("best", self.run_dir.checkpoint(best.step))),
            _ => self.newest.clone().map(|folder| ("newest", folder)),
        };
        let folder = self.run_dir.root().display();
        match checkpoint {
            Some((which, checkpoint)) => {
                format!("  files: {folder} ({which} checkpoint {})", checkpoint.display())
            }
            None => format!("  files: {folder}"),
        }
    }

    fn next(&self, status: ExitStatus, result: &RunResult) -> Option<String> {
        let run = shell_word(self.run_dir.root().as_os_str());
        let model = if result.best.is_some() { format!("{run}@best") } else { run.clone() };
        match (status, &self.newest) {
            (ExitStatus::Success, Some(_)) => {
                Some(format!("dtrain predict {model} INPUT -o OUT, dtrain report {run}"))
            }
            (ExitStatus::Success, None) => Some(format!("dtrain report {run}")),
            // The same command fails again.
            (ExitStatus::Usage | ExitStatus::OutOfMemory, _) => None,
            (_, Some(newest)) => {
                let step =
                    step_of(newest).map_or(String::new(), |step| format!(" (resumes after step {step})"));
                Some(format!("{}{step}", self.again))
            }
            (ExitStatus::Requeue, None) => Some(self.again.clone()),
            (_, None) => None,
        }
    }
}

/// Returns the figures for people, that of `first` first, and then the loss.
fn figures(all: &BTreeMap<String, f64>, first: Option<&str>) -> Vec<String> {
    let is_shown = |name: &str| !name.ends_with("loss") && !name.ends_with("_95");
    let mut names: Vec<&str> = all.keys().map(String::as_str).filter(|name| is_shown(name)).collect();
    names.sort_by_key(|name| Some(*name) != first);
    names.truncate(MOST_FIGURES);
    let loss = if all.contains_key("loss") { "loss" } else { "train_loss" };
    names.push(loss);
    let shown = |name: &str| all.get(name).map(|value| format!("{} {}", named(name), figure(name, *value)));
    names.into_iter().filter_map(shown).collect()
}

fn named(figure: &str) -> String {
    figure.replace('_', " ")
}

fn seconds(seconds: f64) -> String {
    match seconds < 60.0 {
        true => format!("{seconds:.1} s"),
        false => about(Duration::from_secs_f64(seconds)),
    }
}

fn step_of(checkpoint: &Path) -> Option<u64> {
    checkpoint.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use dtrain_common::manifest::BestSoFar;

    fn summary() -> Summary {
        Summary {
            run_dir: RunDir::new("runs/a b"),
            again: "dtrain launch demo --run-dir 'runs/a b'".into(),
            newest: Some("runs/a b/checkpoints/step-00000120".into()),
            wall: Duration::from_millis(26_840),
            plan: serde_json::from_str(
                r#"{"total_steps": 200, "predictions": [{"peak": 3145728}, {"peak": 2097152}]}"#,
            )
            .unwrap(),
        }
    }

    fn result() -> RunResult {
        RunResult {
            steps: Some(120),
            final_metrics: [
                ("loss", 0.25),
                ("accuracy", 0.975),
                ("auc", 0.5),
                ("accuracy_95", 0.01),
                ("train_loss", 0.2),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
            best: Some(BestSoFar { by: "max auc".parse().unwrap(), value: 0.75, step: 60 }),
            samples_per_s: Some(1234.5),
            startup_ms: Some(812.0),
            peak_memory_bytes: vec![1 << 20, 1 << 21],
            ..RunResult::default()
        }
    }

    fn lines(summary: &Summary, status: ExitStatus, result: &RunResult) -> String {
        let first = match status {
            ExitStatus::Success => summary.success(result),
            _ => format!("dtrain: the end{}", summary.progress(result)),
        };
        [vec![first], summary.rest(status, result)].concat().join("\n")
    }

    #[test]
    fn a_success_has_five_lines() {
        let expected = "\
dtrain: done: auc 0.5000, accuracy 97.50%, loss 0.2500 after step 120; best auc 0.7500 after step 60
  time: 26.8 s, first step after 0.8 s; 1234 samples/s
  memory: 2.00 MiB measured, 3.00 MiB planned (peak of a rank)
  files: runs/a b (best checkpoint runs/a b/checkpoints/step-00000060)
  next: dtrain predict 'runs/a b'@best INPUT -o OUT, dtrain report 'runs/a b'";
        assert_eq!(lines(&summary(), ExitStatus::Success, &result()), expected);
    }

    #[test]
    fn an_early_end_and_a_test_are_in_the_first_line() {
        let early = RunResult { stopped_early: true, best: None, ..result() };
        let first = summary().success(&early);
        assert_eq!(
            first,
            "dtrain: done: accuracy 97.50%, auc 0.5000, loss 0.2500 after step 120 of 200, ended by train.stop_early"
        );
        let tested = RunResult { test: [("accuracy".to_owned(), 0.5)].into(), best: None, ..result() };
        assert_eq!(summary().success(&tested), "dtrain: done: test accuracy 50.00% after step 120");
        assert_eq!(summary().success(&RunResult::default()), "dtrain: done: trained");
    }

    #[test]
    fn a_stop_has_the_command_that_resumes() {
        let expected = "\
dtrain: the end, after step 120 of 200
  time: 26.8 s, first step after 0.8 s; 1234 samples/s
  memory: 2.00 MiB measured, 3.00 MiB planned (peak of a rank)
  files: runs/a b (newest checkpoint runs/a b/checkpoints/step-00000120)
  next: dtrain launch demo --run-dir 'runs/a b' (resumes after step 120)";
        assert_eq!(lines(&summary(), ExitStatus::Requeue, &result()), expected);
    }

    #[test]
    fn a_failure_has_a_next_command_only_with_a_checkpoint() {
        let nothing = RunResult::default();
        let failed = |summary: &Summary, status| lines(summary, status, &nothing);
        let resume =
            "dtrain: the end\n  next: dtrain launch demo --run-dir 'runs/a b' (resumes after step 120)";
        assert_eq!(failed(&summary(), ExitStatus::WorkerFailed), resume);
        assert_eq!(failed(&summary(), ExitStatus::OutOfMemory), "dtrain: the end");
        let new = Summary { newest: None, ..summary() };
        assert_eq!(failed(&new, ExitStatus::WorkerFailed), "dtrain: the end");
        // The trainer says that a checkpoint was written.
        assert!(
            failed(&new, ExitStatus::Requeue).ends_with("\n  next: dtrain launch demo --run-dir 'runs/a b'")
        );
    }

    #[test]
    fn unknown_values_are_left_out() {
        let unknown = Summary { plan: PlanFile::default(), newest: None, ..summary() };
        let expected = "\
dtrain: done: trained
  time: 26.8 s
  files: runs/a b
  next: dtrain report 'runs/a b'";
        assert_eq!(lines(&unknown, ExitStatus::Success, &RunResult::default()), expected);
        let unplanned = Summary { wall: Duration::from_secs(7_530), ..unknown };
        let slow = RunResult { samples_per_s: Some(0.256), ..result() };
        let text = lines(&unplanned, ExitStatus::Requeue, &slow);
        assert!(text.contains("  time: 2 h 5 min, first step after 0.8 s; 0.26 samples/s\n"), "{text}");
        assert!(text.contains("  memory: 2.00 MiB measured (peak of a rank)\n"), "{text}");
    }
}
