//! A launch of the run, observed from outside until it ends or is killed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dtrain_common::run_dir::RunDir;

use crate::attempts::has_step;
use crate::commands::cpu_command;
use crate::marked::Mark;
use xtask::process::{Signals, exit_code};

/// The time after which a case counts as a hang.
const LIMIT: Duration = Duration::from_secs(120);

/// The interval between checks.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// A launch that may still run. Dropping it kills it with all its processes.
pub(super) struct RunningLaunch<'a> {
    signals: &'a Signals,
    child: Child,
    pub(super) mark: Mark,
    begun: Instant,
}

/// The settings of a launch.
pub(super) struct LaunchOptions<'a> {
    pub(super) signals: &'a Signals,
    /// The folder with dtrain and dtrain-worker.
    pub(super) programs: &'a Path,
    pub(super) recipe: &'a Path,
    pub(super) run: &'a RunDir,
    pub(super) ranks: usize,
    pub(super) restarts: u32,
    pub(super) sharded: bool,
    /// The checkpoint for `--resume`; without it, the run resumes automatically.
    pub(super) from: Option<&'a Path>,
    /// A unique number of this launch.
    pub(super) number: u64,
}

impl<'a> RunningLaunch<'a> {
    pub(super) fn start(launch: &LaunchOptions<'a>) -> Result<Self> {
        let mut command = cpu_command(&launch.programs.join("dtrain"));
        command
            .arg("launch")
            .args(["--nproc", &launch.ranks.to_string()])
            .args(["--max-restarts", &launch.restarts.to_string()])
            .arg("--run-dir")
            .arg(launch.run.root())
            .args(["--set", &format!("memory.shard_optimizer={}", launch.sharded)])
            .args(launch.from.iter().flat_map(|from| ["--resume".as_ref(), from.as_os_str()]))
            .arg(launch.recipe)
            .env("DTRAIN_WORKER", launch.programs.join("dtrain-worker"));
        let mark = Mark::new(launch.number);
        let child = into_log(mark.add_to(&mut command), &log(launch.run))?.spawn();
        let child = child.with_context(|| format!("cannot start dtrain of {}", launch.programs.display()))?;
        Ok(Self { signals: launch.signals, child, mark, begun: Instant::now() })
    }

    /// Returns the time since its start.
    pub(super) fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Calls `condition` until it returns a value; `None` if the launch ends before.
    pub(super) fn wait_for<T>(&mut self, mut condition: impl FnMut() -> Option<T>) -> Result<Option<T>> {
        loop {
            if let Some(seen) = condition() {
                return Ok(Some(seen));
            }
            if self.code()?.is_some() {
                return Ok(None);
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits for the end; returns the exit code and the time at which `log` had its first line of a step.
    pub(super) fn wait(&mut self, log: &Path) -> Result<(u8, Option<Duration>)> {
        let mut first = None;
        loop {
            let code = self.code()?;
            if first.is_none() && has_step(log) {
                first = Some(self.age());
            }
            if let Some(code) = code {
                return Ok((code, first));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn code(&mut self) -> Result<Option<u8>> {
        self.signals.check()?;
        ensure!(self.age() < LIMIT, "the launch did not end within {} s", LIMIT.as_secs());
        let status = self.child.try_wait().context("cannot wait for dtrain")?;
        Ok(status.map(exit_code))
    }
}

impl Drop for RunningLaunch<'_> {
    fn drop(&mut self) {
        self.mark.kill_all();
        // The launch has ended: this call only collects its status.
        let _ = self.child.wait();
    }
}

/// Returns the file with the output of all launches of a run.
pub(super) fn log(run: &RunDir) -> PathBuf {
    run.root().with_extension("log")
}

fn into_log<'a>(command: &'a mut Command, path: &Path) -> Result<&'a mut Command> {
    let open = || File::options().create(true).append(true).open(path);
    let file = || open().with_context(|| format!("cannot open {}", path.display()));
    Ok(command.stdin(Stdio::null()).stdout(file()?).stderr(file()?))
}
