//! A group of workers of which one dies. Each notes its events with times of the machine's clock.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Signal, getpid, kill_process};
use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

use crate::variable;

/// The worker that dies.
const DYING: u32 = 1;

/// Ends every worker after this time, whatever its launcher does.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Returns nanoseconds on the clock that all processes of a machine share.
pub(crate) fn now() -> i128 {
    let time = clock_gettime(ClockId::Monotonic);
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

/// Notes the start of a worker.
pub(crate) fn start(folder: &Path, started: i128) -> Result<()> {
    write(&mut create(folder, "started", variable("RANK")?)?, started)
}

/// Ends rank 1 `after` all are ready; others wait for SIGTERM. After a restart, all note only their start.
///
/// After the death is noted, every start is a restart: torchrun counts restarts on the failed node only.
pub(crate) fn run(folder: &Path, after: Duration, started: i128) -> Result<ExitCode> {
    let rank = variable("RANK")?;
    let death = folder.join(format!("died.{DYING}"));
    if variable("TORCHELASTIC_RESTART_COUNT")? > 0 || death.metadata().is_ok_and(|note| note.len() > 0) {
        write(&mut create(folder, "restarted", rank)?, started)?;
        return Ok(ExitCode::SUCCESS);
    }
    if rank != DYING {
        return wait(folder).map(|()| ExitCode::SUCCESS);
    }
    limit_life();
    let mut note = create(folder, "died", rank)?;
    create(folder, "ready", rank)?;
    let workers = variable("WORLD_SIZE")?;
    let ready = |rank| folder.join(format!("ready.{rank}")).exists();
    while !(0..workers).all(ready) {
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(after);
    // The reaction time includes the rest of this process's life.
    write(&mut note, now())?;
    Ok(ExitCode::FAILURE)
}

/// Notes that it is ready, with its process, and then the time of its SIGTERM.
pub(crate) fn wait(folder: &Path) -> Result<()> {
    let rank = variable("RANK")?;
    let mut signals = Signals::new([SIGTERM]).context("cannot watch for SIGTERM")?;
    limit_life();
    let mut note = create(folder, "stopped", rank)?;
    write(&mut create(folder, "ready", rank)?, getpid().as_raw_nonzero().get().into())?;
    if signals.forever().next().is_some() {
        write(&mut note, now())?;
    }
    Ok(())
}

fn limit_life() {
    thread::spawn(|| {
        thread::sleep(TIME_LIMIT);
        // Fails only if this process has ended.
        let _ = kill_process(getpid(), Signal::KILL);
    });
}

fn create(folder: &Path, what: &str, rank: u32) -> Result<File> {
    let path = folder.join(format!("{what}.{rank}"));
    File::create(&path).with_context(|| format!("cannot make {}", path.display()))
}

fn write(note: &mut File, time: i128) -> Result<()> {
    note.write_all(time.to_string().as_bytes()).context("cannot write a note")
}
