//! Progress of a training, from `plan.json` and the last lines of `metrics.jsonl`.

use super::files::Tail;
use serde::Deserialize;
use std::time::{Duration, SystemTime};

/// The fields of `plan.json` that progress needs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PlanFile {
    pub(super) total_steps: Option<u64>,
    steps_per_epoch: Option<u64>,
    /// Of a run whose data changed its size, epochs have several lengths. Missing in plans of earlier versions.
    epochs: Option<u64>,
    stages: Vec<StagePlan>,
}

#[derive(Debug, Deserialize)]
struct StagePlan {
    name: String,
    /// First and last, from 1.
    steps: [u64; 2],
    steps_per_epoch: u64,
}

impl PlanFile {
    /// Returns the number of epochs, of all stages.
    pub(super) fn total_epochs(&self) -> Option<u64> {
        if self.epochs.is_some() {
            return self.epochs;
        }
        let epochs = |steps: u64, each: u64| (each > 0).then(|| steps.div_ceil(each));
        if self.stages.is_empty() {
            return epochs(self.total_steps?, self.steps_per_epoch?);
        }
        let of = |stage: &StagePlan| {
            let [first, last] = stage.steps;
            epochs(last.saturating_add(1).saturating_sub(first), stage.steps_per_epoch)
        };
        self.stages.iter().map(of).sum()
    }

    /// Returns whether steps of this stage are like all later ones.
    fn is_last(&self, stage: Option<&str>) -> bool {
        self.stages.last().is_none_or(|last| stage == Some(&last.name))
    }
}

/// A step's line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Step {
    pub(super) step: u64,
    pub(super) epoch: u64,
    #[serde(default)]
    stage: Option<String>,
    /// `None` if it was not finite.
    #[serde(default)]
    pub(super) loss: Option<f64>,
    elapsed_s: f64,
}

/// The last steps of one process, in one stage.
#[derive(Debug, Default)]
pub(super) struct Steps {
    pub(super) last: Option<Step>,
    /// Seconds per step with the evaluations and checkpoints between them; `None` for fewer than two steps.
    seconds: Option<f64>,
    /// When the last line was written.
    pub(super) written: Option<SystemTime>,
}

impl Steps {
    pub(super) fn of(tail: &Tail) -> Self {
        let mut steps = tail.lines_backwards().filter_map(|line| serde_json::from_slice::<Step>(line).ok());
        let last = steps.next();
        let Some(newest) = last.clone() else { return Self::default() };
        let mut first = newest.clone();
        for step in steps {
            // An earlier process of the run counted its own time.
            let is_before =
                step.elapsed_s < first.elapsed_s && step.step < first.step && step.stage == first.stage;
            if !is_before {
                break;
            }
            first = step;
        }
        let made = newest.step - first.step;
        let seconds = (newest.elapsed_s - first.elapsed_s) / made as f64;
        Self { last, seconds: (made > 0 && seconds.is_finite()).then_some(seconds), written: tail.changed }
    }

    /// Returns the expected rest of a running training whose newest attempt began at `began`. `None` if that
    /// attempt has not made two steps, and if later stages have other steps.
    pub(super) fn remaining(&self, plan: &PlanFile, began: Option<SystemTime>) -> Option<Duration> {
        let last = self.last.as_ref()?;
        // Steps of an earlier attempt say nothing about this one, which may have other workers. Resuming rewrites
        // the file, so its time alone does not tell.
        let since_began = self.written?.duration_since(began?).ok()?;
        if !plan.is_last(last.stage.as_deref()) || last.elapsed_s > since_began.as_secs_f64() {
            return None;
        }
        let left = plan.total_steps?.saturating_sub(last.step);
        Duration::try_from_secs_f64(self.seconds? * left as f64).ok()
    }

    /// Returns how long no step has ended, if that is much longer than a step.
    pub(super) fn silence(&self, now: SystemTime) -> Option<Duration> {
        let silent = now.duration_since(self.written?).ok()?;
        let usual = Duration::try_from_secs_f64(20.0 * self.seconds?).ok()?;
        (silent > usual.max(Duration::from_secs(60))).then_some(silent)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::fmt::Write as _;
    use std::fs;

    fn steps(text: &str) -> Steps {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        fs::write(&path, text).unwrap();
        Steps::of(&Tail::read(&path).unwrap())
    }

    fn line(step: u64, elapsed_s: f64) -> String {
        format!("{{\"step\": {step}, \"epoch\": 2, \"loss\": 0.5, \"elapsed_s\": {elapsed_s}}}\n")
    }

    fn plan(json: &str) -> PlanFile {
        serde_json::from_str(json).unwrap()
    }

    const PLAN: &str = r#"{"total_steps": 100, "steps_per_epoch": 30, "new": []}"#;

    #[test]
    fn the_rest_is_that_of_the_newest_process() {
        // The first process took 9 s a step, the second 2 s with an evaluation between.
        let text =
            line(8, 72.0) + &line(9, 81.0) + &line(10, 3.0) + "{\"eval\": {\"step\": 10}}\n" + &line(12, 7.0);
        let steps = steps(&(text + "{\"step\": 13, \"ep"));
        assert_eq!(steps.last.as_ref().unwrap().step, 12);
        let began = steps.written.unwrap() - Duration::from_secs(10);
        assert_eq!(steps.remaining(&plan(PLAN), Some(began)), Some(Duration::from_secs(2 * 88)));
        assert_eq!(plan(PLAN).total_epochs(), Some(4));
    }

    #[test]
    fn what_is_unknown_is_not_guessed() {
        let two = steps(&(line(1, 1.0) + &line(2, 2.0)));
        let written = two.written.unwrap();
        let began = Some(written - Duration::from_secs(5));
        assert!(two.remaining(&plan(PLAN), began).is_some());
        assert_eq!(two.remaining(&plan("{}"), began), None, "no plan");
        assert_eq!(two.remaining(&plan(PLAN), None), None, "no record of the attempt");
        let later = Some(written + Duration::from_secs(5));
        assert_eq!(two.remaining(&plan(PLAN), later), None, "the attempt has made no step");
        let just = Some(written - Duration::from_secs(1));
        assert_eq!(two.remaining(&plan(PLAN), just), None, "steps of the attempt before");
        assert_eq!(steps(&line(1, 1.0)).remaining(&plan(PLAN), began), None, "one step");
        assert_eq!(steps("").remaining(&plan(PLAN), began), None);
        assert_eq!(steps("nonsense\n\u{0}\n").last, None);
    }

    #[test]
    fn later_stages_have_other_steps() {
        let plan = plan(
            r#"{"total_steps": 50, "stages": [{"name": "a", "steps": [1, 20], "steps_per_epoch": 10},
                {"name": "b", "steps": [21, 50], "steps_per_epoch": 20}]}"#,
        );
        assert_eq!(plan.total_epochs(), Some(2 + 2));
        let resized = self::plan(r#"{"total_steps": 75, "steps_per_epoch": 5, "epochs": 10}"#);
        assert_eq!(resized.total_epochs(), Some(10));
        let at = |stage: &str, first: u64| {
            let mut text = String::new();
            for step in first..first + 3 {
                let line =
                    line(step, step as f64).replace("\"loss\"", &format!("\"stage\": \"{stage}\", \"loss\""));
                write!(text, "{line}").unwrap();
            }
            let steps = steps(&text);
            let began = steps.written.map(|written| written - Duration::from_secs(60));
            steps.remaining(&plan, began)
        };
        assert_eq!(at("a", 3), None);
        assert_eq!(at("b", 22), Some(Duration::from_secs(26)));
    }

    #[test]
    fn a_training_without_steps_for_long_is_noticed() {
        let steps = steps(&(line(1, 10.0) + &line(2, 20.0)));
        let after = |seconds| steps.silence(steps.written.unwrap() + Duration::from_secs(seconds));
        assert_eq!(after(199), None);
        assert_eq!(after(300), Some(Duration::from_secs(300)));
    }
}
