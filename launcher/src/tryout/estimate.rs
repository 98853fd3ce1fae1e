//! What a try says about the whole run: its time, its disk space, its memory.

use super::run_files::{EvalLine, Lines, PlanFile};
use dtrain_common::recipe::{AnyRecipe, AtStageStart, Every, General};
use dtrain_common::text::{counted, grouped, size};
use std::path::Path;

/// What the whole run will take, from the steps of a try.
#[derive(Debug, Default, PartialEq)]
struct Estimate {
    steps: u64,
    evaluations: u64,
    checkpoints: u64,
    /// Seconds of steps, of evaluations, and of waits for checkpoints.
    seconds: [f64; 3],
    /// The most checkpoints at once, with one that is being written.
    kept: u64,
}

/// Returns the sentences about the whole run of `recipe`. `folder`: where its run directory would be.
pub(super) fn sentences(recipe: &AnyRecipe, plan: &PlanFile, lines: &Lines, folder: &Path) -> Vec<String> {
    let estimate = Estimate::of(recipe, plan, lines);
    let Estimate { steps, evaluations, checkpoints, seconds: [training, evaluating, waiting], kept } =
        estimate;
    let each = training / steps.max(1) as f64;
    let duration = format!(
        "duration   about {}: {} of {}, {} ({}), {} ({}); predicted from the last step of each stage",
        time(training + evaluating + waiting),
        counted_large(steps, "step"),
        time(each),
        counted_large(evaluations, "evaluation"),
        time(evaluating),
        counted_large(checkpoints, "checkpoint"),
        time(waiting),
    );
    let bytes = lines.checkpoints.iter().map(|checkpoint| checkpoint.bytes).max().unwrap_or(0);
    let free = rustix::fs::statvfs(folder).map(|found| found.f_bavail.saturating_mul(found.f_frsize));
    let (needed, free) = (bytes.saturating_mul(kept), free.ok());
    let place =
        free.map_or_else(String::new, |free| format!("; {} free in {}", size(free), folder.display()));
    let short = free.is_some_and(|free| needed > free);
    let disk = format!(
        "disk       up to {}: {} of {}{place}{}",
        size(needed),
        counted_large(kept, "checkpoint"),
        size(bytes),
        if short { " - too little: lower checkpoint.keep, or choose another --run-dir" } else { "" },
    );
    let measured = lines.steps.iter().map(|step| step.memory.peak).max().unwrap_or(0);
    let predicted = match plan.predicted() {
        Some(peak) => format!("{} predicted", size(peak)),
        None => "not predicted, since the recipe states the cut".to_owned(),
    };
    let limit = plan.budget_bytes.map_or_else(String::new, |limit| format!("; limit {}", size(limit)));
    let memory = format!("memory     {} measured on rank 0, {predicted}{limit}", size(measured));
    vec![duration, disk, memory]
}

/// Returns why the schedule of the whole run cannot be followed: the two steps of a try have another schedule.
pub(super) fn schedule_problem(recipe: &AnyRecipe, plan: &PlanFile) -> Option<String> {
    let length = |number: usize| {
        let train = recipe.of_stage(number).train;
        let steps_per_epoch = train.steps_per_epoch(plan.train_samples).max(1);
        (train.total_steps(steps_per_epoch), steps_per_epoch)
    };
    let of_stage = |number: usize| {
        let continues =
            recipe.stage.get(number).is_some_and(|stage| stage.schedule == AtStageStart::Continue);
        let (own, steps_per_epoch) = length(number);
        let total = if continues { (0..recipe.stages()).map(|number| length(number).0).sum() } else { own };
        let warmup = recipe.of_stage(number).optim.schedule.warmup?.steps(steps_per_epoch);
        (warmup > total).then(|| {
            format!("optim.schedule.warmup is {warmup} steps, longer than the schedule of {total}; shorten the warmup or train longer")
        })
    };
    (0..recipe.stages()).find_map(of_stage)
}

impl Estimate {
    fn of(recipe: &AnyRecipe, plan: &PlanFile, lines: &Lines) -> Self {
        let mut estimate = Self::default();
        let blocked =
            lines.checkpoints.iter().map(|checkpoint| checkpoint.blocked_ms).fold(0.0, f64::max) / 1e3;
        let evaluation = whole_evaluation(&lines.evaluations, plan.watched());
        for (number, stage) in plan.stages().iter().enumerate() {
            let alone = recipe.of_stage(number);
            let steps_per_epoch = alone.train.steps_per_epoch(plan.train_samples).max(1);
            let steps = alone.train.total_steps(steps_per_epoch);
            let [first, last] = stage.steps;
            let measured = lines.steps.iter().rfind(|line| (first..=last).contains(&line.step));
            let training = measured.map_or(0.0, |line| line.step_ms / 1e3) * steps as f64;
            let (evaluations, checkpoints) = alone.pauses(steps, steps_per_epoch, training);
            estimate.steps += steps;
            estimate.evaluations += evaluations;
            estimate.checkpoints += checkpoints;
            estimate.seconds[0] += training;
            estimate.seconds[1] += evaluations as f64 * evaluation;
            estimate.seconds[2] += checkpoints as f64 * blocked;
            if let Some(every) = alone.checkpoint.keep_every {
                estimate.kept += steps / every.steps(steps_per_epoch).max(1);
            }
        }
        let General { checkpoint, .. } = recipe.general();
        let newest = checkpoint.keep as u64 + u64::from(checkpoint.best.is_some()) + 1;
        estimate.kept = (estimate.kept + newest).min(estimate.checkpoints);
        estimate
    }
}

/// Returns the seconds of an evaluation of all samples.
fn whole_evaluation(lines: &[EvalLine], samples: u64) -> f64 {
    let of = |line: &EvalLine| line.eval_ms / 1e3 * samples as f64 / line.samples.max(1) as f64;
    // The first also prepares kernels.
    lines.iter().map(of).fold(f64::INFINITY, f64::min).min(f64::MAX) * f64::from(u8::from(!lines.is_empty()))
}

trait Pauses {
    /// Returns the number of evaluations and of checkpoints in these steps, which take `seconds`.
    fn pauses(&self, steps: u64, steps_per_epoch: u64, seconds: f64) -> (u64, u64);
}

impl Pauses for General {
    fn pauses(&self, steps: u64, steps_per_epoch: u64, seconds: f64) -> (u64, u64) {
        let every = self.checkpoint.every;
        let count = |span: dtrain_common::units::Span| steps.div_ceil(span.steps(steps_per_epoch).max(1));
        let evaluations = self.evaluate.every.or(every.span()).map_or(1, count);
        let checkpoints = match every {
            Every::Span(span) => count(span),
            Every::Time(time) => 1 + (seconds / time.as_secs_f64().max(1.0)) as u64,
        };
        let decide = self.checkpoint.best.is_some() || self.train.stop_early.is_some();
        (evaluations, if decide { checkpoints.max(evaluations) } else { checkpoints })
    }
}

fn counted_large(number: u64, what: &str) -> String {
    match number {
        1 => counted(1, what),
        _ => format!("{} {what}s", grouped(number)),
    }
}

/// Writes a time in the units that matter: `3 h 20 min`, `45 s`, `12 ms`.
fn time(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match (whole / 86_400, whole / 3600 % 24, whole / 60 % 60, whole % 60) {
        (0, 0, 0, _) if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        (0, 0, 0, _) if seconds < 10.0 => format!("{seconds:.1} s"),
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, ..) => format!("{} {hours} h", counted(days as usize, "day")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use dtrain_common::recipe::Source;
    use serde_json::json;

    #[test]
    fn times_have_the_units_that_matter() {
        for (seconds, text) in [
            (0.0123, "12 ms"),
            (4.25, "4.2 s"),
            (45.4, "45 s"),
            (125.0, "2 min 5 s"),
            (12_000.0, "3 h 20 min"),
            (100_000.0, "1 day 3 h"),
        ] {
            assert_eq!(time(seconds), text);
        }
    }

    #[test]
    fn the_whole_run_is_that_of_the_recipe() {
        let text = "task = \"classify\"\n[train]\nepochs = 10\neffective_batch = 10\n[checkpoint]\nevery = \"2 epochs\"\nkeep = 2\n\
                    best = \"max accuracy\"\n[evaluate]\nevery = \"1 epoch\"\n";
        let recipe = AnyRecipe::parse(&Source { name: "a".into(), text: text.into() }, &[]).unwrap();
        let plan = json!({"total_steps": 2, "train_samples": 95, "test_samples": 40, "nproc": 1});
        let plan: PlanFile = serde_json::from_value(plan).unwrap();
        let mut lines = Lines::default();
        for (step, step_ms) in [(1, 900.0), (2, 500.0)] {
            let line = json!({"step": step, "loss": 1.0, "step_ms": step_ms, "memory": {"peak": 1 << 20}});
            lines.steps.push(serde_json::from_value(line).unwrap());
        }
        let eval = json!({"samples": 20, "eval_ms": 1000.0});
        lines.evaluations.push(serde_json::from_value(eval).unwrap());
        let checkpoint = json!({"bytes": 1 << 20, "blocked_ms": 100.0, "total_ms": 300.0});
        lines.checkpoints.push(serde_json::from_value(checkpoint).unwrap());
        let estimate = Estimate::of(&recipe, &plan, &lines);
        // Evaluations decide about the best checkpoint, so each has one.
        assert_eq!(
            (estimate.steps, estimate.evaluations, estimate.checkpoints, estimate.kept),
            (100, 10, 10, 4)
        );
        assert_eq!(estimate.seconds.map(|seconds| (seconds * 10.0).round()), [500.0, 200.0, 10.0]);
        assert_eq!(schedule_problem(&recipe, &plan), None);
        let text = format!("{text}[optim]\nschedule = {{ name = \"cosine\", warmup = \"110 steps\" }}\n");
        let long = AnyRecipe::parse(&Source { name: "a".into(), text }, &[]).unwrap();
        assert!(
            schedule_problem(&long, &plan)
                .unwrap()
                .contains("warmup is 110 steps, longer than the schedule of 100")
        );
        let sentences = sentences(&recipe, &plan, &lines, Path::new("/"));
        assert!(
            sentences[0]
                .starts_with("duration   about 1 min 11 s: 100 steps of 500 ms, 10 evaluations (20 s)"),
            "{sentences:?}"
        );
        assert!(
            sentences[1].starts_with("disk       up to 4.00 MiB: 4 checkpoints of 1.00 MiB"),
            "{sentences:?}"
        );
        assert!(sentences[2].contains("1.00 MiB measured on rank 0, not predicted"), "{sentences:?}");
    }
}
