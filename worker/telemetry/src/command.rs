//! `log.command`: a shell command that gets the lines on its standard input.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{self, Child, ChildStdin, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use dtrain_common::env::DTRAIN_RUN_DIR;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::Outcome;
use crate::queue::{Message, Queue};

const NAME: &str = "log.command";
/// The time that the command has to end after the input of a complete run: some send their last lines over a network.
const LONG_GRACE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 30 });
/// The same after another end: a batch system may kill the run soon.
const GRACE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });
const POLL: Duration = Duration::from_millis(10);

/// The running command.
#[derive(Debug)]
pub(crate) struct Command {
    queue: Queue,
    child: Child,
    /// Whether the user knows that it takes no more lines.
    is_told: Arc<AtomicBool>,
}

impl Command {
    pub(crate) fn start(text: &str, run_dir: &Path) -> io::Result<Self> {
        let mut shell = process::Command::new("sh");
        // Its own group, so that all of its processes can be ended.
        shell.args(["-c", text]).env(DTRAIN_RUN_DIR, run_dir).stdin(Stdio::piped()).process_group(0);
        let mut child = shell.spawn()?;
        let stdin = child.stdin.take();
        let is_told = Arc::<AtomicBool>::default();
        let told = Arc::clone(&is_told);
        let queue = Queue::start(NAME, move |lines| {
            if let Err(error) = write(stdin, lines) {
                tracing::warn!("{NAME} takes no more lines ({error}); training continues without it");
                told.store(true, Ordering::Relaxed);
            }
        });
        match queue {
            Ok(queue) => Ok(Self { queue, child, is_told }),
            Err(error) => {
                kill(&mut child);
                Err(error)
            }
        }
    }

    pub(crate) fn send(&mut self, line: Arc<[u8]>) {
        self.queue.send(line);
    }

    /// Ends its input, and kills it if it does not end soon.
    pub(crate) fn finish(self, outcome: Outcome) {
        let Self { queue, mut child, is_told } = self;
        let grace = if outcome == Outcome::Complete { LONG_GRACE } else { GRACE };
        let deadline = Instant::now() + grace;
        let rest = queue.end(outcome);
        // The thread may wait for a command that reads nothing.
        let is_read = rest.is_done_within(grace);
        let ended = if is_read { wait(&mut child, deadline) } else { None };
        match ended {
            Some(status) if status.success() || is_told.load(Ordering::Relaxed) => {}
            Some(status) => tracing::warn!("{NAME} has ended with {status}"),
            None => {
                kill(&mut child);
                let seconds = grace.as_secs();
                tracing::warn!("{NAME} has not ended {seconds} s after the end of its input, and was killed");
            }
        }
    }
}

/// Writes lines to the command until one of them ends.
fn write(stdin: Option<ChildStdin>, lines: &Receiver<Message>) -> io::Result<()> {
    let Some(mut stdin) = stdin else { return Ok(()) };
    while let Ok(Message::Line(line)) = lines.recv() {
        stdin.write_all(&line)?;
    }
    Ok(())
}

/// Waits for the end until `deadline`.
fn wait(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => thread::sleep(POLL),
            _ => return None,
        }
    }
}

/// Kills the command with all processes of its group.
fn kill(child: &mut Child) {
    if let Some(group) = Pid::from_raw(child.id().cast_signed()) {
        // Fails if all of them have ended.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use super::*;

    fn line(number: usize) -> Arc<[u8]> {
        format!("{{\"step\":{number}}}\n").into_bytes().into()
    }

    #[test]
    fn a_command_gets_every_line_and_the_run_directory() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::start(
            "cat > \"$DTRAIN_RUN_DIR/lines\"; echo end >> \"$DTRAIN_RUN_DIR/lines\"",
            folder.path(),
        )
        .unwrap();
        (1..=3).for_each(|number| command.send(line(number)));
        command.finish(Outcome::Complete);
        let text = fs::read_to_string(folder.path().join("lines")).unwrap();
        assert_eq!(text, "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\nend\n");
    }

    #[test]
    fn a_command_that_ends_early_takes_no_more_lines() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::start("exit 3", folder.path()).unwrap();
        while command.child.try_wait().unwrap().is_none() {
            thread::sleep(POLL);
        }
        (0..10_000).for_each(|number| command.send(line(number)));
        let began = Instant::now();
        command.finish(Outcome::Complete);
        assert!(began.elapsed() < GRACE);
    }

    #[test]
    fn a_command_that_hangs_loses_lines_and_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let mut command =
            Command::start("sleep 600 & echo $! > \"$DTRAIN_RUN_DIR/pid\"; wait", folder.path()).unwrap();
        let pid = folder.path().join("pid");
        while !fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n')) {
            thread::sleep(POLL);
        }
        let began = Instant::now();
        (0..20_000).for_each(|number| command.send(line(number)));
        assert!(began.elapsed() < GRACE, "a sender never waits");
        command.finish(Outcome::Complete);
        let sleeper: i32 = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
        let sleeper = Pid::from_raw(sleeper).unwrap();
        let deadline = Instant::now() + GRACE;
        // A zombie until its new parent reaps it.
        let state =
            || fs::read_to_string(format!("/proc/{}/stat", sleeper.as_raw_nonzero())).unwrap_or_default();
        while !(state().is_empty() || state().contains(") Z ")) {
            assert!(Instant::now() < deadline, "the child runs on");
            thread::sleep(POLL);
        }
    }
}
