//! dtrain beside PyTorch on one GPU: the same networks, batches and optimizers, trained in turn in interleaved rounds.
//!
//! PyTorch's side is tests/bench/gpu.py, whose input lies ready in pinned memory; dtrain's comes from its loader.

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
use super::site::{Site, Training};
use crate::bench::Steps;
use crate::place::{self, RunFiles};
use crate::started::last_words;
use network::{Network, Way};
use read::Measured;

/// What gpu.py ends with where it cannot be run; its last words say why.
const NOT_HERE: u8 = 3;

/// What is missing where nothing can be compared, behind the reason.
const REMEDY: &str = "give --python a Python with `pip install -r tests/bench/requirements.txt`";

/// A network with a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    network: Network,
    /// Samples of a step.
    batch: u64,
    steps: Steps,
    /// What starts the kernels takes longer than they do: a batch for which CUDA graphs matter.
    is_small: bool,
}

/// How one run of a way ended.
enum Run {
    Measured(Measured),
    /// This Python, or this machine, is not one to compare on.
    NotHere(String),
}

/// What the rounds of a case gave.
#[derive(Debug, Default)]
struct Rounds {
    /// A measurement for each round, in their order.
    measured: BTreeMap<Way, Vec<Measured>>,
    /// The ways that did not run in one of them, and why.
    lost: BTreeMap<Way, String>,
}

/// All of them, in the order in which they are to be run. Each takes a minute or two for a round.
pub(super) fn cases() -> Vec<Case> {
    let case = |network, batch, counted, is_small| Case {
        network,
        batch,
        steps: Steps { skipped: 20, counted },
        is_small,
    };
    // So many steps that each way is timed for some seconds on a fast GPU.
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
    /// What the table calls it.
    pub(super) fn name(&self) -> String {
        format!("{}, batch {}", self.network.recipe(), self.batch)
    }

    /// How long that may take on a fast GPU, in seconds. Guessed: a start with its libraries, compiled kernels in the first round, and
    /// some seconds of steps.
    pub(super) fn seconds(&self, rounds: usize) -> u32 {
        const RUN: u32 = 20;
        const COMPILED: u32 = 60;
        let rounds = u32::try_from(rounds.max(1)).unwrap_or(u32::MAX);
        let ways = if self.is_small { 6 } else { 5 };
        (ways * RUN).saturating_mul(rounds) + if self.is_small { 2 * COMPILED } else { COMPILED }
    }

    /// Trains in all ways, as often as the site says, and compares.
    ///
    /// # Errors
    /// Where the user stops it, or the input cannot be written. A way that fails is a finding.
    pub(super) fn run(&self, site: &Site<'_>) -> Result<Finding> {
        let Some(python) = &site.python else {
            return Ok(Finding::skipped(format!("there is no Python to compare with; {REMEDY}")));
        };
        let input = self.network.input(site)?;
        let mut rounds = Rounds::default();
        for round in 0..site.rounds.max(1) {
            for way in Way::of_round(self.is_small, round) {
                if rounds.lost.contains_key(&way) {
                    continue;
                }
                let run = match way.pytorch() {
                    Some(word) => self.pytorch(site, python, way, word, round),
                    None => self.dtrain(site, &input, way, round),
                };
                match run {
                    Ok(Run::Measured(measured)) => rounds.measured.entry(way).or_default().push(measured),
                    Ok(Run::NotHere(reason)) => {
                        return Ok(Finding::skipped(format!("{reason}; {REMEDY}")));
                    }
                    Err(error) => {
                        // Stopped by the user: no finding.
                        site.signals.check()?;
                        rounds.measured.remove(&way);
                        rounds.lost.insert(way, format!("{error:#}"));
                    }
                }
            }
        }
        Ok(goals::finding(self, &rounds))
    }

    fn dtrain(&self, site: &Site<'_>, input: &Path, way: Way, round: usize) -> Result<Run> {
        let recipe = site.bench.join(format!("gpu-{}.toml", self.network.recipe()));
        let recipe = place::read(&recipe)?;
        let mut sets = vec![
            format!("data.root={}", input.display()),
            format!("train.effective_batch={}", self.batch),
            format!("memory.micro_batch={}", self.batch),
            format!("train.steps={}", self.steps.all()),
        ];
        sets.extend(way.setting().map(str::to_owned));
        let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
        let name = self.folder(way, round);
        let ended =
            site.try_training(&Training { name: &name, recipe: &recipe, ranks: 1, sets: &sets, vars: &[] });
        let run = site.run_dir(&name);
        let measured = ended.and_then(|ended| {
            ended.expect(0)?;
            read::of_dtrain(&RunFiles::read(&run)?, self)
        });
        // Its checkpoint is of a gigabyte and more.
        let checkpoints = run.checkpoints();
        if checkpoints.exists() {
            fs::remove_dir_all(&checkpoints)
                .with_context(|| format!("cannot remove {}", checkpoints.display()))?;
        }
        measured.map(Run::Measured)
    }

    fn pytorch(&self, site: &Site<'_>, python: &Path, way: Way, word: &str, round: usize) -> Result<Run> {
        let out = site.work.join(format!("{}.json", self.folder(way, round)));
        let mut command = Command::new(python);
        for (name, _) in WorkerEnv::single().vars() {
            command.env_remove(name);
        }
        command
            .current_dir(&site.work)
            .env_remove("RUST_LOG")
            // Nothing is left among the sources.
            .env("PYTHONDONTWRITEBYTECODE", "1")
            // What the first round has compiled serves the others, and goes with the suite's folder.
            .env("TORCHINDUCTOR_CACHE_DIR", site.work.join("inductor"))
            .env("TRITON_CACHE_DIR", site.work.join("triton"))
            .stdin(std::process::Stdio::null())
            .arg(site.bench.join("gpu.py"))
            .args(["--model", self.network.recipe(), "--way", word])
            .args(["--batch", &self.batch.to_string()])
            .args(["--steps", &self.steps.counted.to_string()])
            .args(["--skip", &self.steps.skipped.to_string(), "--out"])
            .arg(&out);
        let ended = site.run(&mut command)?;
        if ended.code == NOT_HERE {
            return Ok(Run::NotHere(last_line(&ended.stderr)));
        }
        ended.expect(0)?;
        read::of_pytorch(&place::read(&out)?, self).map(Run::Measured)
    }

    /// The name of a run's files, once in the suite.
    fn folder(&self, way: Way, round: usize) -> String {
        let (network, batch) = (self.network.recipe(), self.batch);
        format!("bench-{network}-{batch}-{}-{round}", way.key())
    }
}

fn last_line(stderr: &str) -> String {
    let words = stderr.lines().rev().find(|line| !line.trim().is_empty());
    words.map_or_else(|| last_words(stderr), |line| line.trim().to_owned())
}
