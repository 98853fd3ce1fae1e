//! A launch of the run, watched from outside until it ends or is killed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dtrain_common::run_dir::RunDir;

use crate::attempts::has_step;
use crate::marked::Mark;
use crate::started::quiet;
use xtask::process::{Signals, exit_code};

/// A case that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// Between two looks.
const LOOK: Duration = Duration::from_micros(200);

/// A launch that may still run. Dropped, it is killed with all that it has started.
pub(super) struct Launched<'a> {
    signals: &'a Signals,
    child: Child,
    pub(super) mark: Mark,
    begun: Instant,
}

/// How a launch is to be.
pub(super) struct Launch<'a> {
    pub(super) signals: &'a Signals,
    /// The folder with dtrain and dtrain-worker.
    pub(super) programs: &'a Path,
    pub(super) recipe: &'a Path,
    pub(super) run: &'a RunDir,
    pub(super) ranks: usize,
    pub(super) restarts: u32,
    pub(super) sharded: bool,
    /// The checkpoint that it is to begin with; without one it goes on by itself.
    pub(super) from: Option<&'a Path>,
    /// Tells it from all others.
    pub(super) number: u64,
}

impl<'a> Launched<'a> {
    pub(super) fn start(launch: &Launch<'a>) -> Result<Self> {
        let mut command = quiet(&launch.programs.join("dtrain"));
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
        let child = into_log(mark.put(&mut command), &log(launch.run))?.spawn();
        let child = child.with_context(|| format!("cannot start dtrain of {}", launch.programs.display()))?;
        Ok(Self { signals: launch.signals, child, mark, begun: Instant::now() })
    }

    /// Since its start.
    pub(super) fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Looks until there is something to be seen; nothing where the launch has ended before.
    pub(super) fn until<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Result<Option<T>> {
        loop {
            if let Some(seen) = look() {
                return Ok(Some(seen));
            }
            if self.code()?.is_some() {
                return Ok(None);
            }
            thread::sleep(LOOK);
        }
    }

    /// Waits for its end, and says its exit code and after how long the file had its first line of a step.
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
        ensure!(self.age() < LIMIT, "it has not ended within {} s", LIMIT.as_secs());
        let status = self.child.try_wait().context("cannot wait for dtrain")?;
        Ok(status.map(exit_code))
    }
}

impl Drop for Launched<'_> {
    fn drop(&mut self) {
        self.mark.end();
        // Killed or ended: it only has to be asked for its status.
        let _ = self.child.wait();
    }
}

/// What all launches of a run have said.
pub(super) fn log(run: &RunDir) -> PathBuf {
    run.root().with_extension("log")
}

fn into_log<'a>(command: &'a mut Command, path: &Path) -> Result<&'a mut Command> {
    let open = || File::options().create(true).append(true).open(path);
    let file = || open().with_context(|| format!("cannot open {}", path.display()));
    Ok(command.stdin(Stdio::null()).stdout(file()?).stderr(file()?))
}
