//! Turns the measurements of a benchmark into rows: the figures of every case, and the ratios between cases.

use std::collections::BTreeMap;

use super::benchmarks::Benchmark;
use super::case::Case;
use super::figures::{Figures, Metric};
use super::table::Table;
use crate::report::{Goal, Group, Row};
use crate::stats::Spread;

/// Returns the groups of a benchmark; failed cases have no figures.
pub(super) fn groups(benchmark: Benchmark, measured: &BTreeMap<Case, Vec<Figures>>) -> Vec<Group> {
    let tables = benchmark.tables();
    tables.iter().map(|table| group(benchmark, table, measured)).collect()
}

fn group(benchmark: Benchmark, table: &Table, measured: &BTreeMap<Case, Vec<Figures>>) -> Group {
    let spread = |case: Case, metric: Metric, scale: f64| -> Option<Spread> {
        let rounds = measured.get(&case)?.iter();
        Spread::of(rounds.map(|figures| Some(figures.get(&metric)? * scale)).collect::<Option<_>>()?)
    };
    let mut group = Group::new(format!("{}: {}", benchmark.name(), table.title));
    for &metric in &table.metrics {
        let (text, unit, scale) = metric_format(metric, table.unit);
        for &case in &table.cases {
            let target = table.targets.iter().find(|target| target.case == case && target.metric == metric);
            let goal = target.map(|target| match target.goal {
                Goal::AtLeast(least) => Goal::AtLeast(least * scale),
                Goal::AtMost(most) => Goal::AtMost(most * scale),
            });
            let row = Row::new(format!("{}: {text}", case.title()));
            group.rows.push(match spread(case, metric, scale) {
                Some(spread) => row.with_spread(&spread, unit, goal),
                None => row,
            });
        }
    }
    for comparison in &table.comparisons {
        let of = |case| spread(case, comparison.metric, 1.0);
        // Within each round: a slow round does not change the ratio.
        let ratio = of(comparison.over).zip(of(comparison.under));
        if let Some(ratio) = ratio.and_then(|(over, under)| Spread::ratio(&over, &under)) {
            let (text, ..) = metric_format(comparison.metric, table.unit);
            let name = format!("{} : {}, {text}", comparison.over.title(), comparison.under.title());
            group.rows.push(Row::new(name).with_spread(&ratio, "ratio", comparison.goal));
        }
    }
    group
}

/// Returns a metric's text, its unit, and the factor from the value to the shown number.
fn metric_format(metric: Metric, rate: &'static str) -> (&'static str, &'static str, f64) {
    const MIB: f64 = 1.0 / (1 << 20) as f64;
    match metric {
        Metric::Rate => ("rate", rate, 1.0),
        Metric::CpuRate => ("rate per processor second", rate, 1.0),
        Metric::StepMs => ("step", "ms", 1.0),
        Metric::WaitMs => ("wait for the other ranks in a step", "ms", 1.0),
        Metric::WaitShare => ("this wait, share of the step", "%", 100.0),
        Metric::TrainingPeakBytes => ("peak after the last training step", "MiB", MIB),
        Metric::OwnPeakBytes => ("this peak without GPU libraries", "MiB", MIB),
        Metric::RunPeakBytes => ("peak of the whole run, largest rank", "MiB", MIB),
        Metric::Parameters => ("parameters", "", 1.0),
        Metric::PixelMean => ("mean of the values", "", 1.0),
        Metric::WallMs => ("from start to end", "ms", 1.0),
        Metric::LauncherPeakBytes => ("peak of the launcher", "MB", 1e-6),
        Metric::DeathMs => ("from a death to the last SIGTERM, median", "ms", 1.0),
        Metric::DeathP99Ms => ("from a death to the last SIGTERM, 99th percentile", "ms", 1.0),
        Metric::RestartMs => ("from a death to the last restarted worker, median", "ms", 1.0),
        Metric::StartedMs => ("until all workers have started", "ms", 1.0),
        Metric::NoticedMs => ("until the other agent's workers receive SIGTERM", "ms", 1.0),
        Metric::LinesLost => ("lines lost", "", 1.0),
        Metric::BlockedMs => ("training waits for a checkpoint", "ms", 1.0),
        Metric::FirstBlockedMs => ("training waits for the first checkpoint", "ms", 1.0),
        Metric::WriteRate => ("written and synced during training", "MB/s", 1e-6),
        Metric::LastWriteRate => ("written and synced after training", "MB/s", 1e-6),
        Metric::TotalMs => ("from its start to its end", "ms", 1.0),
        Metric::AloneStepMs => ("step without a write", "ms", 1.0),
        Metric::BesideStepMs => ("step during a write", "ms", 1.0),
        Metric::Slowdown => ("step during a write : step without", "ratio", 1.0),
        Metric::LoadMs => ("loading", "ms", 1.0),
        Metric::FreshStartMs => ("from the command to the first step", "ms", 1.0),
        Metric::ResumedStartMs => ("from the command to the first step of a resumed run", "ms", 1.0),
        Metric::DeathToStepMs => ("from the death to the next step", "ms", 1.0),
        Metric::BeyondLoadMs => ("from the death to the next step, minus loading", "ms", 1.0),
    }
}
