//! Trains, saves, kills, and reads the results.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use dtrain_common::result::RunResult;
use dtrain_common::run_dir::RunDir;
use serde_json::Value;

use super::super::figures::{Figures, Metric};
use super::super::runner::Runner;
use super::{CONTEXT, CheckpointCase, EVERY, STEPS, Saver, disk};
use crate::attempts::{attempts, has_step, stderr};
use crate::files::read;
use crate::marked::{Mark, Process};
use crate::stats::median;

/// Bytes of model and moments.
const STATE: u64 = 1_060_000_000;

/// The time after which a run that has not reached its kill counts as a hang.
const LIMIT: Duration = Duration::from_secs(300);

impl Runner<'_> {
    /// Runs one round.
    pub(in super::super) fn run_checkpoint(&self, case: CheckpointCase, folder: &Path) -> Result<Figures> {
        // This round must not wait for the writes of the case before.
        rustix::fs::sync();
        match case {
            CheckpointCase::Disk(_) => {
                let rates: Vec<f64> = (0..disk::WRITES)
                    .map(|_| {
                        self.signals.check()?;
                        disk::write(folder, STATE)
                    })
                    .collect::<Result<_>>()?;
                let rate = median(&rates).context("nothing was written")?;
                Ok([(Metric::WriteRate, rate), (Metric::LastWriteRate, rate)].into())
            }
            CheckpointCase::DuringTraining(Saver::Dtrain, threads) => {
                let run = RunDir::new(folder.join("run"));
                self.run_expecting(0, self.training(&run, threads, STEPS), 0, folder)?;
                let mut figures = super::read::read_dtrain(&read(&run.metrics())?)?;
                let plan: Value = serde_json::from_str(&read(&run.plan())?).context("plan.json")?;
                let parameters = plan["parameters"].as_f64();
                figures.insert(Metric::Parameters, parameters.context("plan.json has no parameters")?);
                // The resumed run loads before its first step.
                self.run_expecting(0, self.training(&run, threads, STEPS + 1), 1, folder)?;
                figures.insert(Metric::LoadMs, read_result(&run, |result| result.resume_ms)?);
                Ok(figures)
            }
            CheckpointCase::DuringTraining(saver, threads) => {
                let out = folder.join("checkpoint.json");
                let mut python = self.python("checkpoint.py");
                python
                    .args(["--way", saver.name(), "--context", &CONTEXT.to_string()])
                    .args(["--steps", &STEPS.to_string(), "--every", &EVERY.to_string()])
                    .arg("--folder")
                    .arg(folder.join("checkpoints"))
                    .arg("--out")
                    .arg(&out)
                    .env("OMP_NUM_THREADS", threads.to_string());
                self.run_expecting(0, python, 0, folder)?;
                super::read::read_torch(&read(&out)?, saver == Saver::Save)
            }
            CheckpointCase::Restart => self.restart(folder),
        }
    }

    fn training(&self, run: &RunDir, threads: u32, steps: u64) -> Command {
        let mut launch = self.dtrain("checkpoint");
        launch
            .args(["--nproc", "1", "--run-dir"])
            .arg(run.root())
            .args(["--set", &format!("train.steps={steps}")])
            .args(["--set", &format!("checkpoint.every={EVERY} steps")])
            .args(["--set", &format!("data.root={}", self.text.display())])
            .env("OMP_NUM_THREADS", threads.to_string());
        launch
    }

    /// Starts, resumes, then kills the workers three steps after a checkpoint; the launcher restarts them.
    fn restart(&self, folder: &Path) -> Result<Figures> {
        /// All cores for one rank, as users run it.
        const THREADS: u32 = 2;
        /// Last steps of the first two runs, with checkpoints; the third is killed after `KILLED_AFTER`.
        const ENDS: [u64; 2] = [2, 3];
        const KILLED_AFTER: u64 = 6;
        let run = RunDir::new(folder.join("run"));
        let mut starts = Vec::new();
        for (number, end) in ENDS.into_iter().enumerate() {
            self.run_expecting(0, self.training(&run, THREADS, end), number, folder)?;
            starts.push(read_result(&run, |result| result.startup_ms)?);
        }
        let mark = Mark::new(0);
        let mut command = self.training(&run, THREADS, EVERY);
        mark.add_to(&mut command).args(["--max-restarts", "1"]);
        let to_step = thread::scope(|scope| {
            let launch = scope.spawn(|| self.run_expecting(0, command, ENDS.len(), folder));
            let until = |seen: &dyn Fn() -> bool| -> Result<Instant> {
                let begun = Instant::now();
                while !seen() {
                    self.signals.check()?;
                    ensure!(
                        begun.elapsed() < LIMIT && !launch.is_finished(),
                        "the run ended or hung before the kill"
                    );
                    thread::sleep(Duration::from_millis(1));
                }
                Ok(Instant::now())
            };
            let killed = until(&|| step_ms(&run, KILLED_AFTER).is_some()).map(|_| {
                let next = stderr(&run, attempts(&run));
                mark.workers().into_iter().for_each(Process::kill);
                (Instant::now(), next)
            });
            let stepped = killed.and_then(|(at, next)| Ok(until(&|| has_step(&next))? - at));
            if stepped.is_err() {
                mark.kill_all();
            }
            let ended = launch.join().unwrap_or_else(|_| Err(anyhow!("a thread of the benchmark panicked")));
            let took = stepped?;
            ended.map(|()| 1e3 * took.as_secs_f64())
        })?;
        let first = ENDS[1] + 1;
        let step = step_ms(&run, first).with_context(|| format!("metrics.jsonl has no step {first}"))?;
        let load = read_result(&run, |result| result.resume_ms)?;
        let begins = to_step - step;
        Ok([
            (Metric::FreshStartMs, starts[0]),
            (Metric::ResumedStartMs, starts[1]),
            (Metric::LoadMs, load),
            (Metric::DeathToStepMs, begins),
            (Metric::BeyondLoadMs, begins - load),
        ]
        .into())
    }
}

fn read_result(run: &RunDir, figure: fn(RunResult) -> Option<f64>) -> Result<f64> {
    let result = RunResult::read(&run.result()).context("result.json")?;
    result.and_then(figure).context("result.json has no start time")
}

/// Returns the duration of a step if it has ended.
fn step_ms(run: &RunDir, step: u64) -> Option<f64> {
    let text = std::fs::read_to_string(run.metrics()).ok()?;
    let of = |line: &str| {
        let line: Value = serde_json::from_str(line).ok()?;
        (line.get("loss").is_some() && line["step"] == step).then(|| line["step_ms"].as_f64())?
    };
    text.lines().rev().find_map(of)
}
