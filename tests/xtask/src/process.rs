//! Child processes: their signals, exit codes and standard error.

use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// A signal asked this program to stop.
#[derive(Debug, thiserror::Error)]
#[error("stopped by {}: run the same command again to continue", name(*.0))]
pub struct Interrupted(i32);

impl Interrupted {
    /// Returns the exit code that a shell reports for a program killed by the signal.
    pub fn exit_code(&self) -> u8 {
        u8::try_from(128 + self.0).unwrap_or(u8::MAX)
    }
}

fn name(signal: i32) -> String {
    signal_hook::low_level::signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}

/// Reports an error, and returns this program's exit code.
pub fn to_exit_code(outcome: Result<u8>) -> ExitCode {
    ExitCode::from(outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        error.downcast_ref::<Interrupted>().map_or(1, Interrupted::exit_code)
    }))
}

/// The end of a child process.
#[derive(Debug)]
pub struct Finished {
    /// Its exit code, or 128 + n if signal n ended it.
    pub code: u8,
    /// Its standard error, if requested.
    pub stderr: String,
}

impl Finished {
    /// Returns whether the exit code is 0.
    pub fn success(&self) -> bool {
        self.code == 0
    }
}

/// The signals that ask this program to stop. While they are watched, they do not kill this program: it
/// always waits for its child, so that no pip or training keeps running and temporary files are removed.
#[derive(Debug)]
pub struct Signals {
    received: Arc<AtomicUsize>,
}

impl Signals {
    /// Starts to watch.
    pub fn watch() -> Result<Self> {
        let received = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register_usize(signal, received.clone(), signal as usize)
                .with_context(|| format!("cannot watch for {}", name(signal)))?;
        }
        Ok(Self { received })
    }

    /// Returns an error after a signal. Call it wherever work can be interrupted.
    pub fn check(&self) -> Result<(), Interrupted> {
        match self.received.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Interrupted(i32::try_from(signal).unwrap_or_default())),
        }
    }

    /// Runs a child to its end. If its standard error is a pipe, shows it immediately and returns it.
    pub fn run(&self, command: &mut Command) -> Result<Finished> {
        self.check()?;
        let child = command.spawn();
        let mut child = child.with_context(|| format!("cannot start {}", program_name(command)))?;
        let reader = child.stderr.take().map(|pipe| thread::spawn(move || tee(pipe)));
        let code =
            self.wait(&mut child).with_context(|| format!("cannot wait for {}", program_name(command)))?;
        let stderr = reader.and_then(|reader| reader.join().ok()).unwrap_or_default();
        Ok(Finished { code, stderr })
    }

    /// Runs a child as [`Self::run`] does, with a pipe for its standard error.
    pub fn run_capturing_stderr(&self, command: &mut Command) -> Result<Finished> {
        self.run(command.stderr(Stdio::piped()))
    }

    /// Polls instead of blocking: before the child is reaped, its process id is valid for signals.
    fn wait(&self, child: &mut Child) -> io::Result<u8> {
        let mut forwarded = 0;
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(exit_code(status));
            }
            let signal = self.received.load(Ordering::Relaxed);
            if signal != forwarded {
                forwarded = signal;
                forward(signal, child);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }
}

/// Sends `signal` to the child, except for Ctrl-C: the terminal sends it to the child too, and some programs
/// end at once on a second one.
fn forward(signal: usize, child: &Child) {
    let signal = match i32::try_from(signal) {
        Ok(SIGTERM) => Signal::TERM,
        Ok(SIGHUP) => Signal::HUP,
        _ if io::stdin().is_terminal() || io::stderr().is_terminal() => return,
        _ => Signal::INT,
    };
    // A child that has just ended needs no signal.
    let _ = kill_process(Pid::from_child(child), signal);
}

/// Returns the command's program, for an error.
pub fn program_name(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

/// Returns the exit code as a shell reports it: 128 + n if signal n ended the process.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Copies a child's standard error to ours and returns it.
fn tee(pipe: impl io::Read) -> String {
    let mut kept = String::new();
    let mut reader = BufReader::new(pipe);
    let mut line = Vec::new();
    while let Ok(1..) = reader.read_until(b'\n', &mut line) {
        // Our standard error is closed, but the child's output is still needed for an error.
        let _ = io::stderr().write_all(&line);
        kept.push_str(&String::from_utf8_lossy(&line));
        line.clear();
    }
    kept
}
