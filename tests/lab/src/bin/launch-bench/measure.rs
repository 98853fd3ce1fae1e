//! Runs a program to its end and writes its duration and peak memory.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Runs the program; returns its exit code as a shell reports it.
pub(crate) fn run(file: &Path, program: &OsString, args: &[OsString]) -> Result<ExitCode> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot watch for signals")?;
    let shown = program.display();
    let begun = Instant::now();
    let mut child =
        Command::new(program).args(args).spawn().with_context(|| format!("cannot start {shown}"))?;
    let pid = Pid::from_child(&child);
    // Stopping the benchmark stops the launcher too.
    thread::spawn(move || {
        for signal in signals.forever() {
            if let Some(signal) = Signal::from_named_raw(signal) {
                // A program that has just ended needs no signal.
                let _ = kill_process(pid, signal);
            }
        }
    });
    let status = child.wait().with_context(|| format!("cannot wait for {shown}"))?;
    let wall = begun.elapsed();
    // The largest process that was waited for: the launcher, unless a worker was larger.
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("cannot ask for the peak memory")?;
    let measured = serde_json::json!({
        "wall_ms": 1e3 * wall.as_secs_f64(),
        "peak_bytes": 1024 * usage.max_rss(),
    });
    fs::write(file, measured.to_string()).with_context(|| format!("cannot write {}", file.display()))?;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1).into())
}
