//! What was measured, for people as tables and for programs as JSON.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use serde::Serialize;

use super::case::Case;
use super::figures::{Figures, Metric};
use super::machine::Machine;
use super::question::{Benchmark, Comparison, Goal, Table, Target};
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
    /// Figures that have a goal of their own.
    goals: Vec<Aim>,
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

#[derive(Debug, Serialize)]
struct Aim {
    benchmark: Benchmark,
    case: String,
    #[serde(skip)]
    title: &'static str,
    metric: Metric,
    median: f64,
    goal: Goal,
    /// Whether the median meets the goal.
    met: bool,
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
        let (mut ratios, mut goals) = (Vec::new(), Vec::new());
        for &benchmark in &run.benchmarks {
            for table in benchmark.tables() {
                let compared = compare(benchmark, &table, &spread);
                let aims = aim(benchmark, &table, &spread);
                write_table(&mut text, benchmark, &table, &spread);
                write_ratios(&mut text, &compared);
                write_goals(&mut text, &aims);
                text.push('\n');
                ratios.extend(compared);
                goals.extend(aims);
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
            goals,
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

fn aim(benchmark: Benchmark, table: &Table, spread: &impl Fn(Case, Metric) -> Option<Spread>) -> Vec<Aim> {
    let aim = |target: &Target| {
        let Target { case, metric, goal } = *target;
        let median = spread(case, metric)?.median;
        Some(Aim {
            benchmark,
            case: case.name(),
            title: case.title(),
            metric,
            median,
            goal,
            met: goal.is_met(median),
        })
    };
    table.targets.iter().filter_map(aim).collect()
}

/// Width of the first column.
const NAME: usize = 62;
/// Width of a name that is set in by two.
const INNER: usize = NAME - 2;

fn write_table(
    text: &mut String,
    benchmark: Benchmark,
    table: &Table,
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
}

fn write_ratios(text: &mut String, ratios: &[Ratio]) {
    if ratios.is_empty() {
        return;
    }
    // Writing to a String cannot fail.
    let mut line = |content: String| {
        let _ = writeln!(text, "{}", content.trim_end());
    };
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
}

fn write_goals(text: &mut String, aims: &[Aim]) {
    if aims.is_empty() {
        return;
    }
    // Writing to a String cannot fail.
    let _ = writeln!(text, "  {:NAME$} {:>10} {:>10}", "goals", "median", "goal");
    for aim in aims {
        let name = format!("{}: {}", aim.title, heading(aim.metric, ""));
        let median = shown(aim.metric, aim.median);
        let (sign, bound) = match aim.goal {
            Goal::AtLeast(least) => (">=", least),
            Goal::AtMost(most) => ("<=", most),
        };
        let goal = format!("{sign} {}", shown(aim.metric, bound));
        let met = if aim.met { "met" } else { "MISSED" };
        let _ = writeln!(text, "    {name:INNER$} {median:>10} {goal:>10}  {met}");
    }
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
        Metric::WallMs => "from start to end, ms".to_owned(),
        Metric::LauncherPeakBytes => "peak of the launcher, MB".to_owned(),
        Metric::DeathMs => "until the others are told, median death, ms".to_owned(),
        Metric::DeathP99Ms => "until the others are told, 99th percentile, ms".to_owned(),
        Metric::RestartMs => "until all run again, median restart, ms".to_owned(),
        Metric::LinesLost => "lines lost".to_owned(),
        Metric::BlockedMs => "the training waits for a checkpoint, ms".to_owned(),
        Metric::FirstBlockedMs => "the same for the first one, ms".to_owned(),
        Metric::WriteRate => "written and synced beside the training, MB/s".to_owned(),
        Metric::LastWriteRate => "the same of the last one, beside nothing, MB/s".to_owned(),
        Metric::TotalMs => "from its beginning until it is there, ms".to_owned(),
        Metric::AloneStepMs => "step with nothing beside, ms".to_owned(),
        Metric::BesideStepMs => "step beside a write, ms".to_owned(),
        Metric::Slowdown => "step beside a write over one with nothing beside".to_owned(),
        Metric::LoadMs => "loading, ms".to_owned(),
        Metric::FreshStartMs => "from the command to the first step, ms".to_owned(),
        Metric::ResumedStartMs => "the same of a run that resumes, ms".to_owned(),
        Metric::DeathToStepMs => "from the death to the next step, ms".to_owned(),
        Metric::BeyondLoadMs => "the same without loading, ms".to_owned(),
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
        Metric::WallMs => "time",
        Metric::LauncherPeakBytes => "peak memory",
        Metric::DeathMs | Metric::DeathP99Ms => "death",
        Metric::RestartMs => "restart",
        Metric::LinesLost => "lines lost",
        Metric::BlockedMs | Metric::FirstBlockedMs => "waiting",
        Metric::WriteRate => "writing",
        Metric::LastWriteRate => "writing the last",
        Metric::TotalMs => "until it is there",
        Metric::AloneStepMs | Metric::BesideStepMs | Metric::Slowdown => "step",
        Metric::LoadMs => "loading",
        Metric::FreshStartMs | Metric::ResumedStartMs => "start",
        Metric::DeathToStepMs | Metric::BeyondLoadMs => "restart",
    }
}

fn shown(metric: Metric, value: f64) -> String {
    match metric {
        Metric::Rate | Metric::CpuRate | Metric::StepMs | Metric::WaitMs => format!("{value:.1}"),
        Metric::WallMs | Metric::RestartMs | Metric::BlockedMs | Metric::FirstBlockedMs => {
            format!("{value:.1}")
        }
        Metric::TotalMs
        | Metric::AloneStepMs
        | Metric::BesideStepMs
        | Metric::LoadMs
        | Metric::FreshStartMs
        | Metric::ResumedStartMs
        | Metric::DeathToStepMs
        | Metric::BeyondLoadMs => format!("{value:.0}"),
        Metric::WriteRate | Metric::LastWriteRate => format!("{:.0}", value / 1e6),
        Metric::Slowdown => format!("{value:.3}"),
        Metric::DeathMs | Metric::DeathP99Ms => format!("{value:.2}"),
        Metric::LauncherPeakBytes => format!("{:.1}", value / 1e6),
        Metric::WaitShare => format!("{:.1}%", 100.0 * value),
        Metric::TrainingPeakBytes | Metric::OwnPeakBytes | Metric::RunPeakBytes => {
            format!("{:.0}", value / f64::from(1 << 20))
        }
        Metric::Parameters | Metric::LinesLost => format!("{value:.0}"),
        Metric::PixelMean => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests;
