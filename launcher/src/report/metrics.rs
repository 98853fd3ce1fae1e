//! Reads `metrics.jsonl` line by line, also while a run appends to it, and keeps a column for each number of a step.

use std::collections::BTreeMap;
use std::path::PathBuf;

use dtrain_common::text::{counted, grouped};

use crate::runs::files::Problem;
use crate::runs::growing::Lines;
use crate::runs::lines::{EvalLine, OomLine, OtherLine, StageLine, StepLine};

/// The numbers of a step that have a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    Loss,
    Lr,
    GradNorm,
    LossScale,
    SamplesPerS,
    StepMs,
    DataMs,
    CommMs,
    Peak,
}

const COLUMNS: usize = 9;
/// Seconds by which clocks of steps and of the process may differ.
const SLACK_S: f64 = 0.05;

/// What `metrics.jsonl` holds, in the order of the steps. A value that is missing or not finite is NaN.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    pub(super) steps: Vec<u64>,
    columns: [Vec<f64>; COLUMNS],
    /// Steps that are the first of a process.
    pub(super) starts: Vec<u64>,
    pub(super) evaluations: Vec<Evaluation>,
    /// The tests at the end of the run.
    pub(super) tests: Vec<Evaluation>,
    pub(super) marks: Vec<Mark>,
    /// The step with the largest memory of each stage, in their order.
    pub(super) peaks: Vec<Peak>,
    pub(super) checkpoints: Checkpoints,
    /// Steps without an update.
    pub(super) skipped: Vec<u64>,
    pub(super) epoch: Option<u64>,
    elapsed_s: f64,
    /// Lines that are not of this format.
    pub(super) unreadable: u64,
    /// Whether the last line has no end: it is being written, or its writer was killed.
    pub(super) is_cut: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Evaluation {
    pub(super) step: u64,
    pub(super) set: String,
    pub(super) figures: BTreeMap<String, f64>,
    pub(super) samples: Option<u64>,
    pub(super) unreadable: u64,
    pub(super) eval_ms: f64,
    pub(super) is_best: bool,
    /// The checkpoint of a test.
    pub(super) checkpoint: Option<String>,
}

/// Something that happened at a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) kind: MarkKind,
    pub(super) step: u64,
    pub(super) text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum MarkKind {
    Stage,
    Resume,
    Rollback,
    Oom,
}

/// The largest memory of a stage.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Peak {
    pub(super) stage: Option<String>,
    pub(super) step: u64,
    pub(super) bytes: f64,
    pub(super) owners: BTreeMap<String, f64>,
}

#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    pub(super) count: u64,
    pub(super) blocked_ms: f64,
    pub(super) last_bytes: u64,
}

impl Metrics {
    pub(super) fn column(&self, column: Column) -> &[f64] {
        &self.columns[column as usize]
    }

    /// Returns whether the file had no line that counts.
    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.evaluations.is_empty() && self.tests.is_empty()
    }

    fn line(&mut self, line: &[u8]) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        match serde_json::from_slice::<StepLine>(line) {
            Ok(step) => self.step(&step),
            Err(_) => match serde_json::from_slice::<OtherLine>(line) {
                Ok(other) => self.other(other),
                Err(_) => self.unreadable += 1,
            },
        }
    }

    fn step(&mut self, line: &StepLine) {
        if self.steps.last().is_some_and(|last| *last >= line.step) {
            self.forget(line.step);
        }
        let value = |value: Option<f64>| value.unwrap_or(f64::NAN);
        let elapsed_s = line.elapsed_s.unwrap_or(0.0);
        // Each process counts its own time: a later one has had less of it, or less than its step took since the line before.
        let since = elapsed_s - self.elapsed_s;
        let is_too_soon = line.step_ms.is_some_and(|ms| since < 0.9 * ms / 1e3 - SLACK_S);
        if !self.steps.is_empty() && (since < 0.0 || is_too_soon) {
            self.starts.push(line.step);
        }
        self.elapsed_s = elapsed_s;
        self.epoch = line.epoch.or(self.epoch);
        self.steps.push(line.step);
        let row = [
            line.loss,
            line.lr,
            line.grad_norm,
            line.loss_scale,
            line.samples_per_s,
            line.step_ms,
            line.wait_ms.data,
            line.wait_ms.comm,
            line.memory.peak,
        ];
        std::iter::zip(&mut self.columns, row).for_each(|(column, found)| column.push(value(found)));
        if line.skipped {
            self.skipped.push(line.step);
        }
        self.peak(line);
    }

    /// Removes what is of this step and later ones: a process that was killed while it rewrote the file leaves lines twice.
    fn forget(&mut self, step: u64) {
        let kept = self.steps.partition_point(|own| *own < step);
        self.steps.truncate(kept);
        self.columns.iter_mut().for_each(|column| column.truncate(kept));
        self.starts.retain(|own| *own < step);
        self.skipped.retain(|own| *own < step);
        self.marks.retain(|mark| mark.step < step);
        self.evaluations.retain(|evaluation| evaluation.step < step);
    }

    fn peak(&mut self, line: &StepLine) {
        let Some(bytes) = line.memory.peak else { return };
        let is_new = self.peaks.last().is_none_or(|peak| peak.stage != line.stage);
        if !is_new && self.peaks.last().is_some_and(|peak| peak.bytes >= bytes) {
            return;
        }
        if !is_new {
            self.peaks.pop();
        }
        let owners = line.memory.owners.as_ref().and_then(|owners| serde_json::from_str(owners.get()).ok());
        let owners = owners.unwrap_or_default();
        self.peaks.push(Peak { stage: line.stage.clone(), step: line.step, bytes, owners });
    }

    fn other(&mut self, line: OtherLine) {
        match line {
            OtherLine::Eval(line) => self.evaluations.push(Evaluation::of(line)),
            OtherLine::Test(line) => {
                let test = Evaluation::of(line);
                // Every finished run repeats it.
                self.tests.retain(|other| other.set != test.set);
                self.tests.push(test);
            }
            OtherLine::Stage(line) => self.marks.push(Mark::stage(&line)),
            OtherLine::Oom(line) => self.marks.push(Mark::oom(&line)),
            OtherLine::Rollback(line) => {
                let text = format!("went back from step {} to step {}", line.from, line.to);
                self.marks.push(Mark { kind: MarkKind::Rollback, step: line.to, text });
            }
            OtherLine::Checkpoint(line) => {
                self.checkpoints.count += 1;
                self.checkpoints.blocked_ms += line.blocked_ms.unwrap_or(0.0);
                self.checkpoints.last_bytes = line.bytes;
            }
        }
    }
}

impl Evaluation {
    fn of(line: EvalLine) -> Self {
        Self {
            step: line.step,
            figures: line.figures(),
            set: line.set_name().to_owned(),
            samples: line.samples,
            unreadable: line.unreadable,
            eval_ms: line.eval_ms.unwrap_or(0.0),
            is_best: line.best == Some(true),
            checkpoint: line.checkpoint,
        }
    }
}

impl Mark {
    fn stage(line: &StageLine) -> Self {
        let phase = if line.phase > 1 { format!(", phase {}", line.phase) } else { String::new() };
        let trained = line.trained.map(|number| format!(": trains {} parameters", grouped(number)));
        let text = format!("stage {}{phase}{}", line.name, trained.unwrap_or_default());
        Self { kind: MarkKind::Stage, step: line.step, text }
    }

    fn oom(line: &OomLine) -> Self {
        let ranks: Vec<_> = line.ranks.iter().map(u64::to_string).collect();
        let ranks = match ranks.as_slice() {
            [] => String::new(),
            [one] => format!(" on rank {one}"),
            more => format!(" on {}: {}", counted(more.len(), "rank"), more.join(", ")),
        };
        let place = if line.phase.is_empty() { String::new() } else { format!(" in {}", line.phase) };
        let cut = line.micro_batch.as_ref();
        let cut = cut.map(|cut| format!("; retried with micro-batch {} in place of {}", cut.to, cut.from));
        let text = format!("out of memory{place}{ranks}{}", cut.unwrap_or_default());
        Self { kind: MarkKind::Oom, step: line.step, text }
    }
}

/// Reads the file, and later what was appended to it.
#[derive(Debug)]
pub(super) struct Reader {
    lines: Lines,
    pub(super) metrics: Metrics,
}

impl Reader {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { lines: Lines::new(path), metrics: Metrics::default() }
    }

    /// Reads the lines that were added since the last call, or all if the file was rewritten. Returns whether the file exists.
    pub(super) fn read(&mut self) -> Result<bool, Problem> {
        while self.lines.read(&mut self.metrics, Metrics::line)? {}
        self.metrics.is_cut = self.lines.is_cut();
        Ok(self.lines.is_there())
    }
}

#[cfg(test)]
mod tests;
