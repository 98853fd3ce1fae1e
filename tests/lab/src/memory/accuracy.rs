//! Compares predictions with the accounting allocator.

use anyhow::{Context, Result};
use serde_json::Value;

use xtask::process::Interrupted;

use super::Bench;
use super::cases::{CASES, Case, UNTUNED};
use crate::report::{Goal, Group, Row, Verdict};
use crate::stats::median;

/// Goals of errors, in percent.
#[derive(Clone, Copy)]
pub(super) struct Goals {
    pub(super) median: Goal,
    pub(super) worst: Goal,
}

/// The goals on fake GPUs, where allocations are libtorch's own. A fake cuDNN takes no workspace, so that predictions that assume
/// one are listed without a goal.
pub(super) const ON_FAKES: Goals = Goals { median: Goal::AtMost(0.5), worst: Goal::AtMost(3.0) };

/// Follows the title of predictions that assume workspaces of cuDNN.
pub(super) const ASSUMED: &str = ", with assumed copies by cuDNN";

const GOALS: Goals = Goals { median: Goal::AtMost(1.0), worst: Goal::AtMost(3.0) };

/// Returns the first stage's peak in the output of `dtrain profile --json`: measured and predicted, in bytes.
pub(crate) fn profiled(json: &str) -> Result<(u64, u64)> {
    let profile: Value = serde_json::from_str(json)?;
    let measured = &profile["stages"][0]["measured"];
    let (peak, predicted) = (measured["peak"].as_u64(), measured["predicted"]["peak"].as_u64());
    peak.zip(predicted).context("no peak was measured")
}

/// Profiles every case: those that the rules were made for, and others.
pub(super) fn run(bench: &Bench<'_>) -> Result<Vec<Group>> {
    let own = profiles(CASES.iter().map(|case| (bench, case)));
    let others = profiles(UNTUNED.iter().map(|case| (bench, case)));
    Ok(vec![
        group("predictions of memory", own, Some(GOALS))?,
        group("sizes without rules made for them", others, Some(GOALS))?,
    ])
}

/// A name with a peak in bytes, measured and predicted.
pub(super) type Found = (String, Result<(u64, u64)>);

/// Profiles cases on demand.
pub(super) fn profiles<'a>(
    cases: impl Iterator<Item = (&'a Bench<'a>, &'a Case)>,
) -> impl Iterator<Item = Found> {
    cases.enumerate().map(|(number, (bench, case))| {
        let found = bench.signals.check().map_err(Into::into).and_then(|()| profile(bench, number, case));
        (case.name.to_owned(), found)
    })
}

/// Lists predictions, and the median and maximum of their errors. A failed one does not hide the others.
pub(super) fn group(title: &str, all: impl Iterator<Item = Found>, goals: Option<Goals>) -> Result<Group> {
    let mut group = Group::new(title);
    let mut errors = Vec::new();
    for (name, found) in all {
        let row = Row::new(&name);
        group.rows.push(match found {
            Ok((peak, predicted)) => {
                let error = 100.0 * (predicted as f64 / peak as f64 - 1.0);
                errors.push(error.abs());
                eprintln!("{name}: {error:+.2}%");
                row.with("measured, MiB", mib(peak))
                    .with("predicted, MiB", mib(predicted))
                    .with("error, %", error)
            }
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => {
                errors.push(f64::INFINITY);
                row.with_verdict(Verdict::Failed, format!("{error:#}"))
            }
        });
    }
    let worst = errors.iter().copied().fold(0.0, f64::max);
    let middle = median(&errors).unwrap_or(f64::NAN);
    for (name, value, goal) in [
        ("median error", middle, goals.map(|it| it.median)),
        ("worst error", worst, goals.map(|it| it.worst)),
    ] {
        group.rows.push(Row::new(name).with("error, %", value).with_goal(value, goal));
    }
    Ok(group)
}

/// Returns a case's peak in bytes, measured and predicted.
fn profile(bench: &Bench<'_>, number: usize, case: &Case) -> Result<(u64, u64)> {
    let recipe = bench.recipe(&format!("case-{number}"), &case.recipe())?;
    let sets: Vec<String> = case.sets.iter().map(|set| (*set).to_owned()).collect();
    let nproc = case.nproc.to_string();
    let ended = bench.dtrain(&["profile", "--stage", "all", "--json", "--nproc", &nproc], &recipe, &sets)?;
    profiled(&ended.stdout)
        .with_context(|| format!("{}: exit code {}\n{}", case.name, ended.code, ended.stderr))
}

pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
