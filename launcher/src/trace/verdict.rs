//! What bounds the steps of a run, from its timeline, or from `metrics.jsonl` alone.

use super::advice::Settings;
use super::read::Traces;
use super::shares::{Bound, NOTABLE, Shares, communication, percent, shares};
use super::times::Times;
use crate::runs::files::Tail;
use dtrain_common::run_dir::RunDir;
use serde_json::Value;
use std::fmt;

/// Steps of `metrics.jsonl` that are looked at, from the end.
const LAST_STEPS: usize = 100;

/// What bounds a run's steps, and what to change. Its text is one sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) bound: Bound,
    pub(crate) sentence: String,
    /// Whether it is about the steps of a timeline, and not about the last ones of the run.
    pub(crate) is_of_timeline: bool,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl Verdict {
    /// Returns the verdict about a run: by its timeline if it has one, else by its metrics. None without a step.
    pub(crate) fn of_run(run_dir: &RunDir) -> Option<Self> {
        let by_traces = Traces::read(run_dir).ok().and_then(|traces| Self::of_traces(run_dir, &traces));
        by_traces.or_else(|| Self::of_metrics(run_dir))
    }

    /// Returns the verdict by a timeline: about the rank for which the others wait.
    pub(super) fn of_traces(run_dir: &RunDir, traces: &Traces) -> Option<Self> {
        let all: Vec<Times> = traces.ranks.iter().filter_map(Times::of).collect();
        let waits = |times: &Times| communication(times);
        let slowest = all.iter().min_by(|a, b| waits(a).total_cmp(&waits(b)))?;
        let longest = all.iter().map(waits).fold(0.0, f64::max);
        let shares = shares(slowest);
        let others_wait = all.len() > 1 && (longest - waits(slowest)) / slowest.step_ms >= NOTABLE;
        let bound = shares.bound();
        let settings = Settings::of(run_dir);
        let mut sentence = settings.sentence(bound, &shares, slowest);
        if bound != Bound::Communication {
            sentence.extend(settings.also_small_buckets(&shares, slowest));
        }
        if others_wait {
            let wait = percent((longest - waits(slowest)) / slowest.step_ms);
            sentence
                .push_str(&format!("; other ranks wait up to {wait} of a step for rank {}", slowest.rank));
        }
        // A loader may wait at the ends of epochs, and the recorded steps are within one.
        let of_run = waits_of_metrics(run_dir).filter(|of_run| of_run.data >= shares.data + NOTABLE);
        if let Some(of_run) = of_run {
            sentence.push_str(&format!(
                "; over more steps than the recorded ones rank 0 waits {} of a step for samples: record steps \
                 around the end of an epoch",
                percent(of_run.data)
            ));
        }
        Some(Self { bound, sentence, is_of_timeline: true })
    }

    /// Returns the verdict by the waits of rank 0 in `metrics.jsonl`.
    fn of_metrics(run_dir: &RunDir) -> Option<Self> {
        let shares = waits_of_metrics(run_dir)?;
        let bound = match shares.bound() {
            Bound::Launches | Bound::Arithmetic => Bound::Computing,
            bound => bound,
        };
        Some(Self {
            bound,
            sentence: Settings::of(run_dir).sentence_of_metrics(bound, &shares),
            is_of_timeline: false,
        })
    }
}

/// Returns the parts of a step in which rank 0 waits, over the last steps of `metrics.jsonl`; None without a step.
fn waits_of_metrics(run_dir: &RunDir) -> Option<Shares> {
    let tail = Tail::read(&run_dir.metrics()).ok()?;
    let waits = |line: &[u8]| {
        let line: Value = serde_json::from_slice(line).ok()?;
        let number = |value: &Value| value.as_f64().filter(|number| number.is_finite());
        let wait = line.get("wait_ms")?;
        Some([line.get("step_ms").and_then(number)?, number(&wait["data"])?, number(&wait["comm"])?])
    };
    let mut steps: Vec<[f64; 3]> = tail.lines_backwards().filter_map(waits).take(LAST_STEPS).collect();
    // The first step prepares what later ones have.
    if steps.len() > 1 && steps.len() < LAST_STEPS {
        steps.pop();
    }
    let sum = |at: usize| steps.iter().map(|step| step[at]).sum::<f64>();
    let whole = sum(0);
    if whole <= 0.0 {
        return None;
    }
    Some(Shares { data: sum(1) / whole, communication: sum(2) / whole, ..Shares::default() })
}
