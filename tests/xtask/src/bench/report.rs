//! What was measured, for people as tables and for programs as JSON.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use serde::Serialize;

use super::case::Case;
use super::figures::{Figures, Metric};
use super::machine::Machine;
use super::question::{Benchmark, Comparison, Goal, Table};
use super::stats::Spread;

/// The JSON file.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Raised when a field changes its meaning.
    format: u32,
    /// The command, as one would type it.
    command: String,
    machine: Machine,
    rounds: usize,
    benchmarks: Vec<Benchmark>,
    cases: BTreeMap<String, CaseReport>,
    ratios: Vec<Ratio>,
    /// What could not be measured, and why.
    failures: Vec<String>,
    #[serde(skip)]
    text: String,
}

#[derive(Debug, Serialize)]
struct CaseReport {
    title: &'static str,
    figures: BTreeMap<Metric, Spread>,
}

#[derive(Debug, Serialize)]
struct Ratio {
    benchmark: Benchmark,
    over: String,
    under: String,
    metric: Metric,
    #[serde(flatten)]
    spread: Spread,
    goal: Option<Goal>,
    /// Whether the median meets the goal.
    met: Option<bool>,
}

/// What a benchmark run was.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) command: String,
    pub(super) machine: Machine,
    pub(super) rounds: usize,
    pub(super) benchmarks: Vec<Benchmark>,
    /// The figures of each round; of cases that failed, none.
    pub(super) measured: BTreeMap<Case, Vec<Figures>>,
    pub(super) failures: Vec<String>,
}

impl Report {
    pub(super) fn new(run: Run) -> Self {
        let spread = |case: Case, metric: Metric| -> Option<Spread> {
            let rounds = run.measured.get(&case)?;
            Spread::of(
                rounds
                    .iter()
                    .map(|figures| figures.get(&metric).copied())
                    .collect::<Option<_>>()?,
            )
        };
        let mut text = String::new();
        let mut ratios = Vec::new();
        for &benchmark in &run.benchmarks {
            for table in benchmark.tables() {
                let compared = compare(benchmark, &table, &spread);
                write_table(&mut text, benchmark, &table, &compared, &spread);
                ratios.extend(compared);
            }
        }
        let cases = run.measured.iter().map(|(case, rounds)| {
            let metrics: Vec<Metric> = rounds
                .first()
                .map(|first| first.keys().copied().collect())
                .unwrap_or_default();
            let figures = metrics
                .into_iter()
                .filter_map(|metric| Some((metric, spread(*case, metric)?)));
            let title = case.title();
            (
                case.name(),
                CaseReport {
                    title,
                    figures: figures.collect(),
                },
            )
        });
        Self {
            format: 1,
            cases: cases.collect(),
            command: run.command,
            machine: run.machine,
            rounds: run.rounds,
            benchmarks: run.benchmarks,
            ratios,
            failures: run.failures,
            text,
        }
    }
}

/// The tables.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn compare(
    benchmark: Benchmark,
    table: &Table,
    spread: &impl Fn(Case, Metric) -> Option<Spread>,
) -> Vec<Ratio> {
    let ratio = |comparison: &Comparison| {
        let Comparison {
            over,
            under,
            metric,
            goal,
        } = *comparison;
        let spread = Spread::ratio(&spread(over, metric)?, &spread(under, metric)?)?;
        Some(Ratio {
            benchmark,
            over: over.name(),
            under: under.name(),
            metric,
            met: goal.map(|goal| goal.is_met(spread.median)),
            spread,
            goal,
        })
    };
    table.comparisons.iter().filter_map(ratio).collect()
}

/// Width of the first column.
const NAME: usize = 62;
/// Width of a name that is set in by two.
const INNER: usize = NAME - 2;

fn write_table(
    text: &mut String,
    benchmark: Benchmark,
    table: &Table,
    ratios: &[Ratio],
    spread: &impl Fn(Case, Metric) -> Option<Spread>,
) {
    // Writing to a String cannot fail.
    let mut line = |content: String| {
        let _ = writeln!(text, "{}", content.trim_end());
    };
    line(format!("{}: {}", benchmark.name(), table.title));
    for &metric in &table.metrics {
        let head = heading(metric, table.unit);
        line(format!(
            "  {head:NAME$} {:>10} {:>10} {:>10}",
            "median", "lowest", "highest"
        ));
        for case in &table.cases {
            let figures = match spread(*case, metric) {
                Some(spread) => {
                    [spread.median, spread.lowest, spread.highest].map(|value| shown(metric, value))
                }
                None => ["-", "-", "-"].map(str::to_owned),
            };
            let [median, lowest, highest] = figures;
            let title = case.title();
            line(format!(
                "    {title:INNER$} {median:>10} {lowest:>10} {highest:>10}"
            ));
        }
    }
    if ratios.is_empty() {
        line(String::new());
        return;
    }
    line(format!(
        "  {:NAME$} {:>10} {:>10} {:>10}",
        "ratios, within each round", "median", "lowest", "highest"
    ));
    for ratio in ratios {
        let goal = match (ratio.goal, ratio.met) {
            (Some(goal), Some(true)) => format!("goal {goal}, met"),
            (Some(goal), _) => format!("goal {goal}, MISSED"),
            (None, _) => String::new(),
        };
        let name = format!(
            "{} : {} ({})",
            short(&ratio.over),
            short(&ratio.under),
            word(ratio.metric)
        );
        let Spread {
            median,
            lowest,
            highest,
            ..
        } = ratio.spread;
        line(format!(
            "    {name:INNER$} {median:>10.3} {lowest:>10.3} {highest:>10.3}  {goal}"
        ));
    }
    line(String::new());
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, ">= {least}"),
            Self::AtMost(most) => write!(f, "<= {most}"),
        }
    }
}

/// A case's name within its table.
fn short(name: &str) -> &str {
    name.split_once('/').map_or(name, |(_, case)| case)
}

fn heading(metric: Metric, unit: &str) -> String {
    match metric {
        Metric::Rate => unit.to_owned(),
        Metric::CpuRate => format!("{unit}, of processor time"),
        Metric::StepMs => "step, ms".to_owned(),
        Metric::WaitMs => "waiting for the other ranks in a step, ms".to_owned(),
        Metric::WaitShare => "the same as share of the step".to_owned(),
        Metric::TrainingPeakBytes => "peak after the last training step, MiB".to_owned(),
        Metric::OwnPeakBytes => "the same without GPU libraries, MiB".to_owned(),
        Metric::RunPeakBytes => "peak of the whole run, largest rank, MiB".to_owned(),
        Metric::Parameters => "parameters".to_owned(),
        Metric::PixelMean => "mean of the values".to_owned(),
    }
}

fn word(metric: Metric) -> &'static str {
    match metric {
        Metric::Rate => "rate",
        Metric::CpuRate => "processor time",
        Metric::StepMs => "step",
        Metric::WaitMs | Metric::WaitShare => "waiting",
        Metric::TrainingPeakBytes => "training",
        Metric::OwnPeakBytes => "without GPU libraries",
        Metric::RunPeakBytes => "whole run",
        Metric::Parameters => "parameters",
        Metric::PixelMean => "mean",
    }
}

fn shown(metric: Metric, value: f64) -> String {
    match metric {
        Metric::Rate | Metric::CpuRate | Metric::StepMs | Metric::WaitMs => format!("{value:.1}"),
        Metric::WaitShare => format!("{:.1}%", 100.0 * value),
        Metric::TrainingPeakBytes | Metric::OwnPeakBytes | Metric::RunPeakBytes => {
            format!("{:.0}", value / f64::from(1 << 20))
        }
        Metric::Parameters => format!("{value:.0}"),
        Metric::PixelMean => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests;
