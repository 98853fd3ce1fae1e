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

/// Ends rank 1 `after` all are ready; others wait for SIGTERM. After a restart, all note only their start.
pub(crate) fn run(folder: &Path, after: Duration, started: i128) -> Result<ExitCode> {
    let rank = variable("RANK")?;
    if variable("TORCHELASTIC_RESTART_COUNT")? > 0 {
        write(&mut create(folder, "restarted", rank)?, started)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut signals = Signals::new([SIGTERM]).context("cannot watch for SIGTERM")?;
    thread::spawn(|| {
        thread::sleep(TIME_LIMIT);
        // Fails only if this process has ended.
        let _ = kill_process(getpid(), Signal::KILL);
    });
    let mut note = create(folder, if rank == DYING { "died" } else { "stopped" }, rank)?;
    create(folder, "ready", rank)?;
    if rank == DYING {
        let workers = variable("WORLD_SIZE")?;
        let ready = |rank| folder.join(format!("ready.{rank}")).exists();
        while !(0..workers).all(ready) {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(after);
        // The reaction time includes the rest of this process's life.
        write(&mut note, now())?;
        return Ok(ExitCode::FAILURE);
    }
    if signals.forever().next().is_some() {
        write(&mut note, now())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn create(folder: &Path, what: &str, rank: u32) -> Result<File> {
    let path = folder.join(format!("{what}.{rank}"));
    File::create(&path).with_context(|| format!("cannot make {}", path.display()))
}

fn write(note: &mut File, time: i128) -> Result<()> {
    note.write_all(time.to_string().as_bytes()).context("cannot write a note")
}
