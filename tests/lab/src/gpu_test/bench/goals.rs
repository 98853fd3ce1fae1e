//! Summarizes the rounds of a case and checks the goals.

use super::super::finding::Finding;
use super::network::{Mode, peak_flops};
use super::read::Measured;
use super::{Case, Rounds};
use crate::stats::median;

/// The least ratio of dtrain's rate to DDP's.
const SPEED: f64 = 1.05;

/// The least ratio of dtrain's rate to that of torch.compile with CUDA graphs, for small batches.
const GRAPHS: f64 = 0.95;

/// The largest ratio of dtrain's peak memory to DDP's.
const MEMORY: f64 = 1.0;

/// The share of a step's time above which waiting for the loader is reported.
const WAIT_SHARE: f64 = 0.01;

/// A ratio with its goal.
struct Goal {
    text: String,
    /// `None` if one side was not measured.
    is_met: Option<bool>,
}

/// Returns the finding: medians, ratios within rounds, and notes.
pub(super) fn finding(case: &Case, rounds: &Rounds) -> Finding {
    let rates = |mode: Mode| rounds.values(mode, |measured| measured.rate);
    let peaks = |mode: Mode| rounds.values(mode, |measured| measured.peak_allocated);
    // With or without graphs, whichever was faster in the round: users can choose too.
    let best = best(rates(Mode::Dtrain), rates(Mode::Graph));
    let speed = ratio(&rates(Mode::Dtrain), &rates(Mode::Ddp));
    let memory = ratio(&peaks(Mode::Dtrain), &peaks(Mode::Ddp));
    let graphs = ratio(&best, &rates(Mode::CompileGraphs));

    let mut goals = Vec::new();
    if case.has_goals {
        goals.push(goal("DDP's speed", speed, SPEED, f64::ge, "at least"));
        goals.push(goal("DDP's peak memory", memory, MEMORY, f64::le, "at most"));
    }
    if case.is_small {
        let best = "the speed of torch.compile with graphs (dtrain with or without graphs)";
        goals.push(goal(best, graphs, GRAPHS, f64::ge, "at least"));
    }
    let invalid = rounds.invalid_reason();
    let mut note = format_rates(case, rounds);
    for goal in &goals {
        note += &format!("; {}", goal.text);
    }
    let eager = |figure: fn(&Measured) -> f64| {
        ratio(&rounds.values(Mode::Dtrain, figure), &rounds.values(Mode::Eager, figure))
    };
    let (eager_speed, eager_memory) =
        (eager(|measured| measured.rate), eager(|measured| measured.peak_allocated));
    if let (Some(speed), Some(memory)) = (eager_speed, eager_memory) {
        note += &format!("; against eager PyTorch {speed:.3} x the speed and {memory:.3} x the peak memory");
    }
    for more in invalid.iter().cloned().chain(rounds.loader_wait(case)) {
        note += &format!("; {more}");
    }
    for (mode, reason) in &rounds.failed {
        note += &format!("; {} did not run: {reason}", mode.title());
    }
    let own_failed = [Mode::Dtrain, Mode::Graph].iter().any(|mode| rounds.failed.contains_key(mode));
    let missed = goals.iter().any(|goal| goal.is_met == Some(false));
    let all_judged = goals.iter().all(|goal| goal.is_met.is_some());
    let mut finding = if own_failed || missed || invalid.is_some() {
        Finding::failed(note)
    } else if all_judged {
        Finding::passed(note)
    } else {
        // If only PyTorch failed here, dtrain is neither passed nor failed.
        Finding::skipped(note)
    };
    let ratios = [
        ("dtrain_to_ddp", speed),
        ("dtrain_to_eager", eager_speed),
        ("dtrain_graph_to_ddp", ratio(&rates(Mode::Graph), &rates(Mode::Ddp))),
        ("dtrain_graph_to_dtrain", ratio(&rates(Mode::Graph), &rates(Mode::Dtrain))),
        ("best_to_compile", ratio(&best, &rates(Mode::Compile))),
        ("best_to_compile_graphs", graphs),
        ("peak_dtrain_to_ddp", memory),
        ("peak_dtrain_to_eager", eager_memory),
        ("peak_dtrain_graph_to_ddp", ratio(&peaks(Mode::Graph), &peaks(Mode::Ddp))),
    ];
    finding.figures.extend(known(ratios.map(|(name, ratio)| (name.to_owned(), ratio))));
    if !case.has_goals {
        finding.columns.extend(known(columns(rounds)));
    }
    for mode in rounds.measured.keys() {
        finding.figures.extend(known(figures(case, rounds, *mode)));
    }
    finding
}

/// Returns the figures that were measured.
fn known(figures: impl IntoIterator<Item = (String, Option<f64>)>) -> impl Iterator<Item = (String, f64)> {
    figures.into_iter().filter_map(|(name, value)| Some((name, value?)))
}

/// Returns the columns of the table: rates, their ratios within rounds, and peaks.
fn columns(rounds: &Rounds) -> Vec<(String, Option<f64>)> {
    let rates = |mode: Mode| rounds.values(mode, |measured| measured.rate);
    let peaks = |mode: Mode| rounds.values(mode, |measured| measured.peak_allocated / f64::from(1 << 30));
    let dtrain = rates(Mode::Dtrain);
    let all = [Mode::Dtrain, Mode::Graph, Mode::Eager, Mode::Compile];
    let mut columns: Vec<(String, Option<f64>)> =
        all.map(|mode| (format!("{} /s", mode.title()), median(&rates(mode)))).into();
    columns.extend([
        ("dtrain / eager".to_owned(), ratio(&dtrain, &rates(Mode::Eager))),
        ("dtrain / compile".to_owned(), ratio(&dtrain, &rates(Mode::Compile))),
    ]);
    columns.extend(all.map(|mode| (format!("{}, GiB", mode.title()), median(&peaks(mode)))));
    columns.push(("rounds".to_owned(), Some(dtrain.len() as f64)));
    columns
}

impl Rounds {
    /// Returns a figure of each round of a way; empty if the way was not measured.
    fn values(&self, mode: Mode, figure: impl Fn(&Measured) -> f64) -> Vec<f64> {
        self.measured.get(&mode).map_or_else(Vec::new, |rounds| rounds.iter().map(figure).collect())
    }

    /// Returns the peak operations per second of the measured GPU.
    fn peak_flops(&self) -> Option<f64> {
        let mut all = self.measured.values().flatten();
        peak_flops(all.find_map(|measured| measured.gpu.as_deref())?)
    }

    /// Returns the reason if the comparison is invalid.
    fn invalid_reason(&self) -> Option<String> {
        let mut all = self
            .measured
            .iter()
            .flat_map(|(mode, rounds)| rounds.iter().map(|measured| (*mode, measured.parameters)));
        let (first, expected) = all.next()?;
        let (mode, other) = all.find(|(_, parameters)| *parameters != expected)?;
        Some(format!(
            "the networks differ: {} has {expected} parameters and {} has {other}",
            first.title(),
            mode.title()
        ))
    }

    /// Returns a note if dtrain waits long for its loader: then the loader is measured, not the step.
    fn loader_wait(&self, case: &Case) -> Option<String> {
        let waited = median(&self.values(Mode::Dtrain, |it| it.wait_data_ms.unwrap_or(0.0)))?;
        let counted = (case.batch * case.network.per_sample()) as f64;
        let step_ms = 1e3 * counted / median(&self.values(Mode::Dtrain, |it| it.rate))?;
        (waited > WAIT_SHARE * step_ms)
            .then(|| format!("dtrain waits {waited:.2} of {step_ms:.2} ms per step for its loader"))
    }
}

/// Returns the medians as the beginning of a sentence.
fn format_rates(case: &Case, rounds: &Rounds) -> String {
    let rate = |mode: &Mode| {
        let rate = median(&rounds.values(*mode, |measured| measured.rate))?;
        Some(format!("{} {rate:.0}", mode.title()))
    };
    let all: Vec<String> = rounds.measured.keys().filter_map(rate).collect();
    if all.is_empty() {
        return "no measurements".to_owned();
    }
    format!("{}/s: {}", case.network.unit(), all.join(", "))
}

fn goal(text: &str, ratio: Option<f64>, bound: f64, holds: fn(&f64, &f64) -> bool, bound_text: &str) -> Goal {
    match ratio {
        Some(ratio) => {
            let is_met = holds(&ratio, &bound);
            let missed = if is_met { "" } else { ", missed" };
            Goal {
                text: format!("dtrain has {ratio:.3} x {text} (goal: {bound_text} {bound}{missed})"),
                is_met: Some(is_met),
            }
        }
        None => Goal { text: format!("unknown ratio to {text}"), is_met: None },
    }
}

/// Returns the figures of one mode.
fn figures(case: &Case, rounds: &Rounds, mode: Mode) -> [(String, Option<f64>); 5] {
    let (key, unit) = (mode.key(), case.network.unit());
    let middle = |figure: fn(&Measured) -> f64| median(&rounds.values(mode, figure));
    let rate = middle(|measured| measured.rate);
    let mfu = rate.zip(rounds.peak_flops()).map(|(rate, peak)| rate * case.network.flops() / peak);
    let waited = match mode {
        Mode::Dtrain | Mode::Graph => middle(|measured| measured.wait_data_ms.unwrap_or(0.0)),
        _ => None,
    };
    [
        (format!("{key}_{unit}_per_s"), rate),
        (format!("{key}_mfu"), mfu),
        (format!("{key}_peak_allocated_bytes"), middle(|measured| measured.peak_allocated)),
        (format!("{key}_peak_reserved_bytes"), middle(|measured| measured.peak_reserved)),
        (format!("{key}_wait_data_ms"), waited),
    ]
}

/// Returns the larger value of each round; if one way was not measured, the other's values.
fn best(one: Vec<f64>, other: Vec<f64>) -> Vec<f64> {
    if one.len() != other.len() {
        return if other.is_empty() { one } else { other };
    }
    one.into_iter().zip(other).map(|(one, other)| one.max(other)).collect()
}

/// Returns the median of the ratios within the rounds that both have: a slow round does not change it.
fn ratio(over: &[f64], under: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> = over.iter().zip(under).map(|(over, under)| over / under).collect();
    median(&ratios).filter(|ratio| ratio.is_finite())
}

#[cfg(test)]
mod tests;
