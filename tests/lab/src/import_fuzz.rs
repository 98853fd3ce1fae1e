//! `import-fuzz`: imports random modules of PyTorch and compares dtrain's steps on them with eager PyTorch.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;
use xtask::process::Signals;
use xtask::setup::SetArgs;
use xtask::workspace::Workspace;

use crate::exported::{IMPORT, REQUIREMENTS};
use crate::files::{create, find_programs, read};
use crate::machine::Machine;
use crate::python::environment;
use crate::report::{Group, Report, Row, Verdict};

const SCRIPT: &str = "tests/lab/python/import_fuzz.py";

/// The arguments of `import-fuzz`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    set: SetArgs,
    /// Seed of the first module
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of modules
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Keep the files of all modules, and run finished seeds again
    #[arg(long)]
    keep: bool,
    /// Python with torch 2.11
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Folder with dtrain-worker; builds it if absent
    #[arg(long, value_name = "PATH")]
    bin_dir: Option<PathBuf>,
}

/// What the script found of one module.
#[derive(Debug, Deserialize)]
struct Found {
    seed: u64,
    verdict: Kind,
    sentence: Option<String>,
    /// The items of the smallest module with the same finding.
    smallest: Option<Smallest>,
}

#[derive(Debug, Deserialize)]
struct Smallest {
    features: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Equal,
    /// Equal in steps of one part; steps of several parts are refused, because forward writes state.
    Warned,
    /// Refused for a reason that is true of the module.
    Refused,
    /// PyTorch itself cannot run the module's backward. Takes no part in the shares.
    Untrainable,
    Different,
    Crashed,
    /// Refused for a reason that no part of the module explains.
    Unexplained,
}

impl Kind {
    fn is_finding(self) -> bool {
        matches!(self, Self::Different | Self::Crashed | Self::Unexplained)
    }

    /// Returns the script's word.
    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// The most modules that may be refused, in percent.
const MOST_REFUSED: f64 = 15.0;

/// Runs the fuzzer. The exit code is 1 if a module is a finding, or if too many are refused.
pub(crate) fn run(workspace: &Workspace, signals: &Signals, args: &Args) -> Result<u8> {
    let python = match &args.python {
        Some(python) => python.clone(),
        None => environment(workspace, signals, "exported-venv", REQUIREMENTS)?,
    };
    let programs = match find_programs(workspace, signals, &args.set, args.bin_dir.as_deref())? {
        Ok(folder) => folder,
        Err(code) => return Ok(code),
    };
    let work = workspace.target().join("import-fuzz");
    create(&work)?;
    let mut script = Command::new(&python);
    script.current_dir(workspace.root()).args([SCRIPT, IMPORT]);
    script.arg(programs.join("dtrain-worker")).arg(&work);
    script.args(["--seed", &args.seed.to_string(), "--count", &args.count.to_string()]);
    script.args(args.keep.then_some("--keep"));
    let code = signals.run(&mut script)?.code;
    signals.check()?;
    if code != 0 {
        return Ok(code);
    }
    let found = latest(&read(&work.join("found.jsonl"))?, args.seed..args.seed + args.count)?;
    let rows = rows(&found);
    let mut report = Report::new(
        format!("cargo xtask import-fuzz --seed {} --count {}", args.seed, args.count),
        Machine::describe(Some(workspace), serde_json::Value::Null)?,
    );
    report.groups.push(Group { rows, ..Group::new("Random modules beside PyTorch") });
    report.publish(&work.join("results.json"))
}

/// Returns the last result of each seed, of the programs that ran last.
fn latest(lines: &str, seeds: std::ops::Range<u64>) -> Result<BTreeMap<u64, Found>> {
    let mut latest = BTreeMap::new();
    for line in lines.lines() {
        let found: Found = serde_json::from_str(line).context("the script's output")?;
        if seeds.contains(&found.seed) {
            latest.insert(found.seed, found);
        }
    }
    Ok(latest)
}

/// Returns a row for each verdict, and one for each finding.
fn rows(found: &BTreeMap<u64, Found>) -> Vec<Row> {
    let mut counts: BTreeMap<Kind, usize> =
        [Kind::Equal, Kind::Warned, Kind::Refused].map(|kind| (kind, 0)).into();
    for found in found.values() {
        *counts.entry(found.verdict).or_default() += 1;
    }
    let untrainable = counts.remove(&Kind::Untrainable).unwrap_or_default();
    let total = (found.len() - untrainable).max(1) as f64;
    let shares = counts.iter().map(|(kind, count)| {
        let share = 100.0 * *count as f64 / total;
        let row = Row::new(kind.name()).with("modules", *count as f64).with("share, %", share);
        let is_too_much = *kind == Kind::Refused && share > MOST_REFUSED;
        row.with_verdict(Verdict::of(!kind.is_finding() && !is_too_much), "")
    });
    let findings = found.values().filter(|found| found.verdict.is_finding()).map(|found| {
        let parts = found.smallest.as_ref().map(|smallest| smallest.features.join(", "));
        let sentence = found.sentence.clone().unwrap_or_default();
        let note = parts.map_or_else(|| sentence.clone(), |parts| format!("{parts}: {sentence}"));
        Row::new(format!("seed {}: {}", found.seed, found.verdict.name())).with_verdict(Verdict::Failed, note)
    });
    let others =
        (untrainable > 0).then(|| Row::new("untrainable in PyTorch").with("modules", untrainable as f64));
    shares.chain(others).chain(findings).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn verdicts(lines: &[(u64, &str)]) -> Vec<(String, Option<Verdict>)> {
        let line =
            |(seed, verdict): &(u64, &str)| format!("{{\"seed\": {seed}, \"verdict\": {verdict:?}}}\n");
        let text: String = lines.iter().map(line).collect();
        let rows = rows(&latest(&text, 0..100).unwrap());
        rows.into_iter().map(|row| (row.name, row.verdict)).collect()
    }

    #[test]
    fn the_last_result_of_a_seed_counts() {
        let rows = verdicts(&[(1, "different"), (2, "warned"), (1, "equal"), (100, "crashed")]);
        let failed: Vec<_> = rows.iter().filter(|(_, verdict)| *verdict == Some(Verdict::Failed)).collect();
        assert!(failed.is_empty(), "{failed:?}");
        assert_eq!(rows.len(), 3);
    }

    #[test]
    fn findings_and_too_many_refusals_fail() {
        let rows =
            verdicts(&[(1, "unexplained"), (2, "refused"), (3, "equal"), (4, "equal"), (5, "untrainable")]);
        for name in ["refused", "unexplained", "seed 1: unexplained"] {
            assert!(rows.contains(&(name.to_owned(), Some(Verdict::Failed))), "{name} in {rows:?}");
        }
        assert!(rows.contains(&("equal".to_owned(), Some(Verdict::Passed))));
    }
}
