//! All that a page shows of runs, as one object.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use dtrain_common::recipe::AnyRecipe;
use dtrain_common::result::RunResult;
use dtrain_common::run_dir::RunDir;
use dtrain_common::text::{counted, grouped};
use serde_json::{Value, json};

use super::charts::charts;
use super::cost::{self, Plan};
use super::failures::{Attempt, attempts};
use super::metrics::{MarkKind, Metrics, Reader};
use super::{evaluations, facts, recipes};
use crate::runs::{self, files::json as read_json};
use crate::times::time_value;

/// Spans of a curve of one run, and at least of each of several: a curve has at most twice as many points.
const SPANS: usize = 1500;
const FEWEST_SPANS: usize = 150;
/// Marks on the page of a run.
const MARKS: usize = 500;

/// A run to report, with the metrics that were read so far.
pub(super) struct Run {
    run_dir: RunDir,
    name: String,
    reader: Reader,
}

/// A run as it is now.
struct Seen {
    object: Value,
    recipe: Option<AnyRecipe>,
    task: Option<String>,
}

impl Run {
    /// Names a run directory. `shown` is the path as the user wrote it.
    pub(super) fn new(shown: &Path) -> Self {
        let run_dir = RunDir::new(shown);
        let reader = Reader::new(run_dir.metrics());
        Self { run_dir, name: shown.to_string_lossy().trim_end_matches('/').to_owned(), reader }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.run_dir.root().to_owned()
    }

    fn see(&mut self, spans: usize) -> Seen {
        let summary = summary(self.run_dir.root());
        let list = summary["problems"].as_array().into_iter().flatten();
        let mut problems: Vec<String> = list.filter_map(|text| text.as_str().map(str::to_owned)).collect();
        let has_metrics = match self.reader.read() {
            Ok(exists) => exists,
            Err(problem) => {
                problems.push(problem.to_string());
                true
            }
        };
        let recipe = recipes::read(&self.run_dir, &mut problems);
        let plan = read_json::<Plan>(&self.run_dir.plan());
        let plan =
            plan.map_err(|problem| problems.push(problem.to_string())).ok().flatten().unwrap_or_default();
        let is_running = summary["state"] == "running";
        // While a run is under way, its result is that of the attempt before.
        let result = read_json::<RunResult>(&self.run_dir.result()).ok().flatten().filter(|_| !is_running);
        let result = result.unwrap_or_default();
        let metrics = &self.reader.metrics;
        if let Some(missing) = missing(metrics, has_metrics, recipe.is_some()) {
            problems.push(missing.to_owned());
        }
        problems.extend(damage(metrics, is_running));
        problems.sort();
        problems.dedup();
        let attempts = attempts(&self.run_dir);
        let (classes, samples) = evaluations::newest(&self.run_dir, &mut problems);
        let sources = facts::Sources { summary: &summary, result: &result, metrics };
        let (text, recipe) = recipe.map_or((None, None), |(text, recipe)| (Some(text), recipe));
        let task = recipe.as_ref().map(|recipe| recipe.task().to_owned());
        let object = json!({
            "name": self.name,
            "state": summary["state"],
            "about": summary["about"],
            "began": summary["began"],
            "host": summary["host"],
            "subject": subject(recipe.as_ref(), &plan, &summary),
            "facts": sources.facts(),
            "results": facts::results(metrics),
            "problems": problems,
            "warnings": plan.warnings,
            "notes": notes(metrics, &result),
            "charts": charts(metrics, spans),
            "marks": marks(metrics, &attempts),
            "evaluations": metrics.evaluations.iter().map(|one| one.step).collect::<std::collections::BTreeSet<_>>(),
            "time": cost::time(metrics, &self.run_dir),
            "memory": cost::memory(&plan, metrics),
            "ranks": result.peak_memory_bytes,
            "classes": classes,
            "samples": samples,
            "failure": result.failure,
            "exit_code": result.exit_code,
            "reason": result.reason,
            "attempts": attempts.iter().map(Attempt::object).collect::<Vec<_>>(),
            "recipe": text,
            "is_comparable": recipe.is_some(),
        });
        Seen { object, recipe, task }
    }
}

/// Returns the object of a page. `left_out` are sentences about runs that are not on it.
pub(super) fn object(runs: &mut [Run], left_out: &[String], is_live: bool) -> Value {
    let spans = (SPANS / runs.len().max(1)).max(FEWEST_SPANS.min(SPANS));
    let seen: Vec<Seen> = runs.iter_mut().map(|run| run.see(spans)).collect();
    let all: Vec<Option<&AnyRecipe>> = seen.iter().map(|one| one.recipe.as_ref()).collect();
    let mut problems = left_out.to_vec();
    let mut tasks: Vec<&str> = seen.iter().filter_map(|one| one.task.as_deref()).collect();
    tasks.sort_unstable();
    tasks.dedup();
    if tasks.len() > 1 {
        problems.push(format!(
            "The runs have different tasks ({}): losses and figures of different tasks cannot be compared.",
            tasks.join(", ")
        ));
    }
    let differences = recipes::differences(&all);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "made": time_value(Some(SystemTime::now())),
        "live": is_live,
        "spans": spans,
        "problems": problems,
        "differences": differences,
        "runs": seen.into_iter().map(|one| one.object).collect::<Vec<_>>(),
    })
}

/// Returns the object of `dtrain runs --json` for a run directory; null for another folder.
pub(super) fn summary(dir: &Path) -> Value {
    let runs = runs::objects(dir).unwrap_or_default();
    runs.into_iter().find(|run| run["path"].as_str() == dir.to_str()).unwrap_or(Value::Null)
}

/// Returns why there are no curves.
fn missing(metrics: &Metrics, has_file: bool, is_training: bool) -> Option<&'static str> {
    match (has_file, is_training) {
        _ if !metrics.is_empty() => None,
        (false, false) => {
            Some("The run has no metrics: dtrain writes metrics.jsonl for recipes, not for programs.")
        }
        (false, true) => Some("The run has no metrics.jsonl: it has made no step."),
        (true, _) => Some("metrics.jsonl has no step and no evaluation."),
    }
}

/// Returns what is wrong with the lines of metrics.
fn damage(metrics: &Metrics, is_running: bool) -> Vec<String> {
    let mut found = Vec::new();
    if metrics.is_cut && !is_running {
        found.push("The last line of metrics.jsonl is cut off, and left out.".to_owned());
    }
    if metrics.unreadable > 0 {
        let lines = counted(metrics.unreadable as usize, "line");
        found.push(format!("metrics.jsonl has {lines} that cannot be read; left out."));
    }
    found
}

/// Returns what the run is about: task, model, data, batch, device.
fn subject(recipe: Option<&AnyRecipe>, plan: &Plan, summary: &Value) -> Vec<String> {
    let mut parts = Vec::new();
    if let Some(recipe) = recipe {
        parts.push(recipe.task().to_owned());
        let model = recipe.section("model");
        let name = ["name", "file"].iter().find_map(|key| model.get(*key)?.as_str());
        parts.extend(name.map(|name| name.rsplit('/').next().unwrap_or(name).to_owned()));
    }
    parts.extend(plan.parameters.map(|number| format!("{} trained parameters", grouped(number))));
    parts.extend(plan.effective_batch.map(|number| format!("effective batch {number}")));
    let ranks = summary["nproc"].as_u64().or(plan.nproc);
    parts.extend(ranks.map(|number| {
        let device = plan.device.as_deref().map(|device| format!(" on {device}")).unwrap_or_default();
        counted(number as usize, "rank") + &device
    }));
    parts
}

/// Returns sentences about steps that are not visible in the curves.
fn notes(metrics: &Metrics, result: &RunResult) -> Vec<String> {
    let mut notes = Vec::new();
    if let [first, rest @ ..] = metrics.skipped.as_slice() {
        let count = counted(rest.len() + 1, "step");
        notes.push(format!("{count} made no update, because loss or gradient was not finite or nothing counted; the first is step {first}."));
    }
    if result.stopped_early {
        notes.push("train.stop_early ended the run before its last step.".to_owned());
    }
    if let Some(images) = result.skipped_images.filter(|images| *images > 0) {
        notes.push(format!(
            "{} could not be read in training, and were left out.",
            counted(images as usize, "image")
        ));
    }
    notes
}

/// Returns the marks of the curves in the order of the steps, the newest if there are many.
fn marks(metrics: &Metrics, attempts: &[Attempt]) -> Vec<Value> {
    let mut marks: Vec<(u64, MarkKind, String)> =
        metrics.marks.iter().map(|mark| (mark.step, mark.kind, mark.text.clone())).collect();
    // If each process made a step, they are those of the attempts.
    let is_known = attempts.len() == metrics.starts.len() + 1;
    for (number, step) in metrics.starts.iter().enumerate() {
        let text = match attempts.windows(2).nth(number).filter(|_| is_known) {
            Some([before, attempt]) if attempt.is_restart_of(before) => {
                format!("restarted as attempt {}", attempt.number)
            }
            Some([_, attempt]) => format!("resumed as attempt {} on {}", attempt.number, attempt.record.host),
            _ => "restarted or resumed: another process".to_owned(),
        };
        marks.push((*step, MarkKind::Resume, text));
    }
    marks.sort_by_key(|(step, ..)| *step);
    let newest = marks.len().saturating_sub(MARKS);
    let object =
        |(step, kind, text): &(u64, MarkKind, String)| json!({"step": step, "kind": kind, "text": text});
    marks[newest..].iter().map(object).collect()
}
