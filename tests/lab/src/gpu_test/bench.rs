//! Compares dtrain with PyTorch on one GPU: the same networks, batches and optimizers, in interleaved rounds.
//!
//! PyTorch's side is tests/bench/gpu.py, with inputs in pinned memory; dtrain's come from its loader.

mod goals;
mod inputs;
mod network;
mod read;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use dtrain_common::env::WorkerEnv;

use super::finding::Finding;
use super::proof::Kind;
use super::suite::{Suite, Training};
use crate::bench::Steps;
use crate::commands::last_lines;
use crate::files::{self, RunFiles};
use network::{Mode, Network};
use read::Measured;

/// The exit code of gpu.py if it cannot run here; its last line on standard error names the reason.
const NOT_HERE: u8 = 3;

/// Advice if nothing can be compared; follows the reason.
const REMEDY: &str = "set --python to a Python that has the packages of tests/bench/requirements.txt";

/// A network with a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    network: Network,
    /// Samples of a step.
    batch: u64,
    steps: Steps,
    /// Starting the kernels takes longer than running them: CUDA graphs matter for such a batch.
    is_small: bool,
}

/// The result of one run.
enum Run {
    Measured(Measured),
    /// This Python or this machine cannot be compared with.
    NotHere(String),
}

/// The results of a case's rounds.
#[derive(Debug, Default)]
struct Rounds {
    /// A measurement per round, in order.
    measured: BTreeMap<Mode, Vec<Measured>>,
    /// Ways with a failed run, and the reason.
    failed: BTreeMap<Mode, String>,
}

/// Returns all cases in their order. A round of each takes a minute or two.
pub(super) fn cases() -> Vec<Case> {
    let case = |network, batch, counted, is_small| Case {
        network,
        batch,
        steps: Steps { skipped: 20, counted },
        is_small,
    };
    // Enough steps to time each way for some seconds on a fast GPU.
    vec![
        case(Network::Resnet50, 8, 200, true),
        case(Network::Resnet50, 64, 100, false),
        case(Network::Resnet50, 256, 40, false),
        case(Network::VitB16, 8, 200, true),
        case(Network::VitB16, 64, 60, false),
        case(Network::VitB16, 128, 40, false),
        case(Network::Gpt2, 1, 200, true),
        case(Network::Gpt2, 4, 80, false),
        case(Network::Gpt2, 16, 40, false),
    ]
}

impl Case {
    /// Returns its name in the table.
    pub(super) fn name(&self) -> String {
        format!("{}, batch {}", self.network.recipe(), self.batch)
    }

    /// Returns an estimate in seconds for a fast GPU: per run a start with its libraries and some seconds of
    /// steps, plus compilation in the first round.
    pub(super) fn seconds(&self, rounds: usize) -> u32 {
        const RUN: u32 = 20;
        const COMPILED: u32 = 60;
        let rounds = u32::try_from(rounds.max(1)).unwrap_or(u32::MAX);
        let modes = if self.is_small { 6 } else { 5 };
        (modes * RUN).saturating_mul(rounds) + if self.is_small { 2 * COMPILED } else { COMPILED }
    }

    /// Trains in all modes for the suite's number of rounds, and compares.
    ///
    /// # Errors
    /// If the user stops it, or if the input cannot be written. A failed way is a finding.
    pub(super) fn run(&self, suite: &Suite<'_>) -> Result<Finding> {
        let Some(python) = &suite.python else {
            return Ok(Finding::skipped(format!("no Python with PyTorch; {REMEDY}")));
        };
        let input = self.network.input(suite)?;
        let mut rounds = Rounds::default();
        for round in 0..suite.rounds.max(1) {
            for mode in Mode::in_round(self.is_small, round) {
                if rounds.failed.contains_key(&mode) {
                    continue;
                }
                let run = match mode.pytorch() {
                    Some(word) => self.pytorch(suite, python, mode, word, round),
                    None => self.dtrain(suite, &input, mode, round),
                };
                match run {
                    Ok(Run::Measured(measured)) => rounds.measured.entry(mode).or_default().push(measured),
                    Ok(Run::NotHere(reason)) => {
                        return Ok(Finding::skipped(format!("{reason}; {REMEDY}")));
                    }
                    Err(error) => {
                        // If the user stopped it, this is no finding.
                        suite.signals.check()?;
                        rounds.measured.remove(&mode);
                        rounds.failed.insert(mode, format!("{error:#}"));
                    }
                }
            }
        }
        Ok(goals::finding(self, &rounds))
    }

    fn dtrain(&self, suite: &Suite<'_>, input: &Path, mode: Mode, round: usize) -> Result<Run> {
        let recipe = suite.bench.join(format!("gpu-{}.toml", self.network.recipe()));
        let recipe = files::read(&recipe)?;
        let mut sets = vec![
            format!("data.root={}", input.display()),
            format!("train.effective_batch={}", self.batch),
            format!("memory.micro_batch={}", self.batch),
            format!("train.steps={}", self.steps.all()),
        ];
        sets.extend(mode.setting().map(str::to_owned));
        let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
        let name = self.folder(mode, round);
        let ended =
            suite.try_training(&Training { name: &name, recipe: &recipe, ranks: 1, sets: &sets, vars: &[] });
        let run = suite.run_dir(&name);
        let measured = ended.and_then(|ended| {
            let ended = ended.expect(0)?;
            suite.proofs.add_training(&ended.stderr, 1, Kind::Gpu)?;
            read::read_dtrain(&RunFiles::read(&run)?, self)
        });
        // Its checkpoint takes a gigabyte or more.
        let checkpoints = run.checkpoints();
        if checkpoints.exists() {
            fs::remove_dir_all(&checkpoints)
                .with_context(|| format!("cannot remove {}", checkpoints.display()))?;
        }
        measured.map(Run::Measured)
    }

    fn pytorch(&self, suite: &Suite<'_>, python: &Path, mode: Mode, word: &str, round: usize) -> Result<Run> {
        let out = suite.work.join(format!("{}.json", self.folder(mode, round)));
        let mut command = Command::new(python);
        for (name, _) in WorkerEnv::single().vars() {
            command.env_remove(name);
        }
        command
            .current_dir(&suite.work)
            .env_remove("RUST_LOG")
            // Keeps the source tree clean.
            .env("PYTHONDONTWRITEBYTECODE", "1")
            // Later rounds reuse the first round's kernels. The cache goes with the suite's folder.
            .env("TORCHINDUCTOR_CACHE_DIR", suite.work.join("inductor"))
            .env("TRITON_CACHE_DIR", suite.work.join("triton"))
            .stdin(std::process::Stdio::null())
            .arg(suite.bench.join("gpu.py"))
            .args(["--model", self.network.recipe(), "--way", word])
            .args(["--batch", &self.batch.to_string()])
            .args(["--steps", &self.steps.counted.to_string()])
            .args(["--skip", &self.steps.skipped.to_string(), "--out"])
            .arg(&out);
        let ended = suite.run(&mut command)?;
        if ended.code == NOT_HERE {
            return Ok(Run::NotHere(last_line(&ended.stderr)));
        }
        ended.expect(0)?;
        read::read_pytorch(&files::read(&out)?, self).map(Run::Measured)
    }

    /// Returns the unique name of a run's files.
    fn folder(&self, mode: Mode, round: usize) -> String {
        let (network, batch) = (self.network.recipe(), self.batch);
        format!("bench-{network}-{batch}-{}-{round}", mode.key())
    }
}

fn last_line(stderr: &str) -> String {
    let words = stderr.lines().rev().find(|line| !line.trim().is_empty());
    words.map_or_else(|| last_lines(stderr), |line| line.trim().to_owned())
}
