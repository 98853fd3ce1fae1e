//! Several agents on this machine, as of several nodes.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

use super::super::figures::{Figures, Metric};
use super::super::runner::Runner;
use super::run::start;
use super::{NEVER_MS, WORKERS, notes};
use crate::commands::POLL_INTERVAL;

/// The head start of the first agent, which then leads on both sides.
const HEAD_START: Duration = Duration::from_millis(500);

impl Runner<'_> {
    /// Starts agents at once, and measures until the last worker's start.
    pub(super) fn start_agents(
        &self,
        agents: u32,
        line: &[OsString],
        notes: &Path,
        folder: &Path,
    ) -> Result<Figures> {
        let begun = now()?;
        self.run_agents(agents, line, folder)?;
        Ok([(Metric::StartedMs, notes::time_from(begun, notes, "started", 0..agents)?)].into())
    }

    /// Measures from the death of a worker to the last SIGTERM and the last restart on two agents.
    pub(super) fn restart_agents(&self, line: &[OsString], notes: &Path, folder: &Path) -> Result<Figures> {
        self.run_agents(2, line, folder)?;
        let death = notes::time_to_sigterm(notes)?;
        Ok([(Metric::DeathMs, death), (Metric::RestartMs, notes::time_to_restart(notes)?)].into())
    }

    /// Kills the second of two agents when all workers are ready.
    pub(super) fn lose_agent(&self, line: &[OsString], notes: &Path, folder: &Path) -> Result<Figures> {
        let mut agents = Agents { running: Vec::new(), notes: Vec::new() };
        for number in 0..2 {
            let own = notes.join(number.to_string());
            fs::create_dir_all(&own).with_context(|| format!("cannot make {}", own.display()))?;
            let errors =
                fs::File::create(folder.join(format!("{number}.err"))).context("cannot create a file")?;
            let mut command = start(line, folder);
            command.env("LAUNCH_BENCH_NOTES", &own).stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
            agents.running.push(command.spawn().context("cannot start an agent")?);
            agents.notes.push(own);
            thread::sleep(HEAD_START);
        }
        let all_ready = || agents.notes.iter().flat_map(|own| ready(own)).count() == WORKERS as usize;
        ensure!(self.wait(Duration::from_secs(60), all_ready)?, "the workers do not start");
        let killed = now()?;
        agents.running[1].kill().context("cannot kill an agent")?;
        let survivors = || ready(&agents.notes[0]).map(|(rank, _)| rank);
        let is_noted = |rank: u32| notes::time(&agents.notes[0], &format!("stopped.{rank}")).is_ok();
        let is_noticed = self.wait(Duration::from_millis(NEVER_MS), || survivors().all(is_noted))?;
        let time = match is_noticed {
            true => notes::time_from(killed, &agents.notes[0], "stopped", survivors())?,
            false => NEVER_MS as f64,
        };
        Ok([(Metric::NoticedMs, time)].into())
    }

    /// Runs agents with the same command line to their ends.
    fn run_agents(&self, agents: u32, line: &[OsString], folder: &Path) -> Result<()> {
        self.run_all((0..agents).map(|_| start(line, folder)).collect(), folder)
    }

    /// Returns whether the condition held within this time.
    fn wait(&self, limit: Duration, condition: impl Fn() -> bool) -> Result<bool> {
        let end = Instant::now() + limit;
        while !condition() {
            self.signals.check()?;
            if Instant::now() > end {
                return Ok(false);
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(true)
    }
}

/// Two agents, each with the folder of its workers' notes. Drop kills them and their workers, which torchrun
/// leaves behind.
struct Agents {
    running: Vec<Child>,
    notes: Vec<PathBuf>,
}

impl Drop for Agents {
    fn drop(&mut self) {
        for agent in &mut self.running {
            // It may have ended.
            let _ = agent.kill();
            let _ = agent.wait();
        }
        for (_, worker) in self.notes.iter().flat_map(|notes| ready(notes)) {
            let _ = kill_process(worker, Signal::KILL);
        }
    }
}

/// Returns rank and process of the workers that are ready to note their SIGTERM.
fn ready(notes: &Path) -> impl Iterator<Item = (u32, Pid)> {
    (0..WORKERS).filter_map(|rank| {
        let pid = notes::time(notes, &format!("ready.{rank}")).ok()?;
        Some((rank, Pid::from_raw(i32::try_from(pid).ok()?)?))
    })
}

/// Returns nanoseconds on the workers' clock.
fn now() -> Result<u64> {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)).context("the clock")
}
