//! Compares dtrain with PyTorch on one GPU: the same networks, batches and optimizers, in interleaved rounds.
//!
//! PyTorch's side is tests/bench/gpu.py, with inputs in pinned memory; dtrain's come from its loader.

mod goals;
mod inputs;
mod loaders;
mod network;
mod read;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result};
use dtrain_common::env::WorkerEnv;
use dtrain_test_kit::no_values::NO_VALUES;

use super::check::Check;
use super::finding::Finding;
use super::proof::Kind;
use super::suite::{Suite, Training};
use crate::bench::Steps;
use crate::commands::last_lines;
use crate::files::{self, RunFiles};
use crate::report::Verdict;
pub(super) use inputs::{Images, images};
pub(super) use loaders::loaders;
use network::{Mode, Network};
use read::Measured;

/// The exit code of gpu.py if it cannot run here; its last line on standard error names the reason.
pub(super) const NOT_HERE: u8 = 3;

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
    /// Whether the goals are judged, which are about PyTorch's DistributedDataParallel.
    has_goals: bool,
}

/// A result, or why this Python or this machine cannot be compared with.
pub(super) type Here<T> = Result<T, String>;

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
        has_goals: true,
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
        self.run_rounds(suite, 0..suite.rounds.max(1), &mut Rounds::default())
    }

    /// The same for some rounds; the earlier ones are in `rounds`.
    fn run_rounds(
        &self,
        suite: &Suite<'_>,
        numbers: std::ops::Range<usize>,
        rounds: &mut Rounds,
    ) -> Result<Finding> {
        let Some(python) = &suite.python else {
            return Ok(Finding::skipped(format!("no Python with PyTorch; {REMEDY}")));
        };
        let input = self.network.input(suite)?;
        for round in numbers {
            for mode in Mode::in_round(self, round) {
                if rounds.failed.contains_key(&mode) || suite.is_fake && mode.compiles() {
                    continue;
                }
                let name = self.folder(mode, round);
                let run = match mode.pytorch() {
                    Some(word) => self.pytorch(suite, python, word, &name),
                    None => self.dtrain(suite, &input, mode, &name).map(Ok),
                };
                match run {
                    Ok(Ok(measured)) => rounds.measured.entry(mode).or_default().push(measured),
                    Ok(Err(reason)) => return Ok(Finding::skipped(format!("{reason}; {REMEDY}"))),
                    Err(error) => {
                        // If the user stopped it, this is no finding.
                        suite.signals.check()?;
                        if suite.is_late() && !rounds.measured.is_empty() {
                            // Results of earlier runs remain.
                            break;
                        }
                        rounds.measured.remove(&mode);
                        rounds.failed.insert(mode, format!("{error:#}"));
                    }
                }
            }
        }
        let found = goals::finding(self, rounds);
        if suite.is_fake && rounds.failed.is_empty() {
            let note = format!(
                "{NO_VALUES} and load no kernels of Triton, so torch.compile was left out: {}",
                found.note
            );
            return Ok(Finding { verdict: Verdict::Skipped, note, ..found });
        }
        Ok(found)
    }

    fn dtrain(&self, suite: &Suite<'_>, input: &Path, mode: Mode, name: &str) -> Result<Measured> {
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
        let ended = suite.try_training(&Training { name, recipe: &recipe, ranks: 1, sets: &sets, vars: &[] });
        let run = suite.run_dir(name);
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
        measured
    }

    fn pytorch(&self, suite: &Suite<'_>, python: &Path, word: &str, name: &str) -> Result<Here<Measured>> {
        let out = suite.work.join(format!("{name}.json"));
        let ended = suite.run(&mut self.pytorch_command(suite, python, word, (self.steps, &out)))?;
        if ended.code == NOT_HERE {
            return Ok(Err(last_line(&ended.stderr)));
        }
        ended.expect(0)?;
        read::read_pytorch(&files::read(&out)?, self).map(Ok)
    }

    fn pytorch_command(
        &self,
        suite: &Suite<'_>,
        python: &Path,
        word: &str,
        (steps, out): (Steps, &Path),
    ) -> Command {
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
            .args(["--steps", &steps.counted.to_string()])
            .args(["--skip", &steps.skipped.to_string(), "--out"])
            .arg(out);
        command
    }

    /// Returns the unique name of a run's files.
    fn folder(&self, mode: Mode, round: usize) -> String {
        let (network, batch) = (self.network.recipe(), self.batch);
        format!("bench-{network}-{batch}-{}-{round}", mode.key())
    }
}

/// Returns the networks of the first hour, at batches that fill a fast GPU.
fn first_cases() -> [Case; 3] {
    let case = |network, batch, counted| Case {
        network,
        batch,
        steps: Steps { skipped: 10, counted },
        is_small: false,
        has_goals: false,
    };
    [case(Network::Resnet50, 64, 60), case(Network::VitB16, 64, 40), case(Network::Gpt2, 8, 40)]
}

/// Returns a check for each round of each network of the first hour. A later round has the results of all.
pub(super) fn first_rounds() -> Vec<Check> {
    const ROUNDS: usize = 5;
    let cases = first_cases().map(|case| (case, Rc::new(RefCell::new(Rounds::default()))));
    let check = |round: usize, (case, rounds): &(Case, Rc<RefCell<Rounds>>)| {
        let (case, rounds) = (*case, Rc::clone(rounds));
        Check {
            name: case.name(),
            // Four starts of programs, and some seconds of steps.
            seconds: 60,
            run: Box::new(move |suite| case.run_rounds(suite, round..round + 1, &mut rounds.borrow_mut())),
        }
    };
    (0..ROUNDS).flat_map(|round| cases.each_ref().map(|case| check(round, case))).collect()
}

/// Starts to compile the networks of the first hour: later runs take the kernels from the cache.
pub(super) fn compile_in_background(suite: &Suite<'_>) -> Result<()> {
    let Some(python) = suite.python.as_deref().filter(|_| !suite.is_fake) else { return Ok(()) };
    for case in first_cases() {
        let steps = Steps { skipped: 1, counted: 1 };
        let out = suite.work.join(format!("compile-{}.json", case.network.recipe()));
        let word = Mode::Compile.pytorch().unwrap_or_default();
        let started = suite.start(&mut case.pytorch_command(suite, python, word, (steps, &out)))?;
        suite.background.borrow_mut().push(started);
    }
    Ok(())
}

/// Waits for the compilers: they would slow measurements.
pub(super) fn await_compilers(suite: &Suite<'_>) -> Result<()> {
    for compiler in suite.background.take() {
        if let Err(error) = compiler.wait(suite.signals, Instant::now()) {
            suite.signals.check()?;
            eprintln!("  {error:#}");
        }
    }
    Ok(())
}

pub(super) fn last_line(stderr: &str) -> String {
    let words = stderr.lines().rev().find(|line| !line.trim().is_empty());
    words.map_or_else(|| last_lines(stderr), |line| line.trim().to_owned())
}
