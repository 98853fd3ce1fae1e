//! Running and ended commands, with a time limit.

use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use xtask::process::{Signals, exit_code, program_name};

/// The time after which a command counts as a hang.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

/// The interval between checks of processes.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// An ended command.
#[derive(Debug)]
pub(crate) struct FinishedCommand {
    /// Its exit code, or 128 + n if signal n ended it.
    pub(crate) code: u8,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
}

impl FinishedCommand {
    /// Fails with its last output if it did not end with `code`.
    pub(crate) fn expect(self, code: u8) -> Result<Self> {
        ensure!(
            self.code == code,
            "exit code {}, expected {code}: {}",
            self.code,
            last_lines(&format!("{}\n{}", self.stdout, self.stderr))
        );
        Ok(self)
    }

    /// Fails if its standard error does not contain `text`.
    pub(crate) fn expect_stderr(self, text: &str) -> Result<Self> {
        ensure!(
            self.stderr.contains(text),
            "standard error does not contain `{text}`: {}",
            last_lines(&self.stderr)
        );
        Ok(self)
    }
}

/// A command that may still run. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct RunningCommand {
    child: Child,
    /// Reads its standard error from the start: a full pipe would stop a training with its line per step.
    stderr: Option<JoinHandle<String>>,
    command_line: String,
    /// The time at which it is killed.
    kill_at: Instant,
}

/// Runs a command to its end without input; kills it after the limit, or on Ctrl-C.
pub(crate) fn run_to_end(signals: &Signals, command: &mut Command) -> Result<FinishedCommand> {
    signals.check()?;
    let command_line = program_name(command);
    let begun = Instant::now();
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {command_line}"))?;
    RunningCommand::new(child, command_line, None).wait(signals, begun)
}

impl RunningCommand {
    /// Wraps a new process and its command line. `deadline` limits its time further.
    pub(crate) fn new(mut child: Child, command_line: String, deadline: Option<Instant>) -> Self {
        let kill_at = Instant::now() + LIMIT;
        Self {
            stderr: child.stderr.take().map(reader),
            child,
            command_line,
            kill_at: deadline.map_or(kill_at, |deadline| kill_at.min(deadline)),
        }
    }

    /// Returns its process id.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Fails with its last output if it has ended.
    pub(crate) fn expect_running(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait().context("cannot wait")? else {
            return Ok(());
        };
        let stderr = self.stderr.take().and_then(|reader| reader.join().ok());
        bail!(
            "{} ended with code {}: {}",
            self.command_line,
            exit_code(status),
            last_lines(&stderr.unwrap_or_default())
        )
    }

    /// Takes its standard output, to read it during the run.
    pub(crate) fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Sends SIGTERM, as a batch system does.
    pub(crate) fn terminate(&self) {
        // It may have ended.
        let _ = kill_process(self.pid(), Signal::TERM);
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
    }

    /// Waits for its end; fails after the limit.
    pub(crate) fn wait(mut self, signals: &Signals, begun: Instant) -> Result<FinishedCommand> {
        let stdout = self.child.stdout.take().map(reader);
        let status = loop {
            match self.child.try_wait().context("cannot wait")? {
                Some(status) => break Some(status),
                None if Instant::now() > self.kill_at => break None,
                None => {}
            }
            // It may have received the signal too; its drop ends it in any case.
            signals.check()?;
            thread::sleep(POLL_INTERVAL);
        };
        let took = begun.elapsed();
        if status.is_none() {
            self.kill();
            let _ = self.child.wait();
        }
        let join = |reader: Option<JoinHandle<String>>| {
            reader.and_then(|reader| reader.join().ok()).unwrap_or_default()
        };
        let (stdout, stderr) = (join(stdout), join(self.stderr.take()));
        let Some(status) = status else {
            bail!(
                "{} was killed after {:.0} s: {}",
                self.command_line,
                took.as_secs_f64(),
                last_lines(&stderr)
            );
        };
        Ok(FinishedCommand { code: exit_code(status), stdout, stderr, took })
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
    }
}

/// Reads a pipe to its end in a thread.
fn reader(mut pipe: impl std::io::Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // After an error, keeps the part that was read.
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Returns a CPU-only command with one thread per rank, as torchrun sets it, without outer variables.
pub(crate) fn cpu_command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("OMP_NUM_THREADS", "1")
        .env("CUDA_VISIBLE_DEVICES", "")
        .env_remove("RANK")
        .env_remove("WORLD_SIZE")
        .env_remove("RUST_LOG");
    command
}

/// Returns a text without its middle if it is longer than this number of characters.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let (first, last) = (text.chars().take(most / 2), text.chars().skip(count - most / 2));
    first.chain(" ... ".chars()).chain(last).collect()
}

/// Returns the last non-empty lines, joined. One line may be a whole tensor.
pub(crate) fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(3)..].iter().map(|line| shortened(line, 300));
    last.collect::<Vec<_>>().join(" | ")
}
