//! The output of other programs.

use dtrain_common::files::in_memory;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs a command and returns its output; kills it after `patience`. `None` if it cannot be started.
pub fn output(command: &mut Command, patience: Duration) -> Option<String> {
    run(command, patience, |_| Ok(Stdio::null())).ok()
}

/// Like [`output`], with standard error too. The error is that of the start.
pub fn whole_output(command: &mut Command, patience: Duration) -> io::Result<String> {
    run(command, patience, |file| Ok(file.try_clone()?.into()))
}

/// Runs a command with `question` as its standard input. Returns its standard output and its standard error.
///
/// # Errors
/// The command cannot be started.
pub fn ask(command: &mut Command, question: &[u8]) -> io::Result<[Vec<u8>; 2]> {
    let mut stdin = in_memory("question")?;
    stdin.write_all(question)?;
    stdin.rewind()?;
    let files = [in_memory("answer")?, in_memory("messages")?];
    let [stdout, stderr] = &files;
    let mut child = command.stdin(stdin).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?).spawn()?;
    // The launcher may have reaped the child with adopted orphans; its exit status is not needed.
    let _ = child.wait();
    let mut said = [Vec::new(), Vec::new()];
    for (mut file, said) in files.into_iter().zip(&mut said) {
        file.rewind()?;
        file.read_to_end(said)?;
    }
    Ok(said)
}

fn run(
    command: &mut Command,
    patience: Duration,
    stderr: impl Fn(&File) -> io::Result<Stdio>,
) -> io::Result<String> {
    let mut file = in_memory("answer")?;
    let mut child = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(stderr(&file)?).spawn()?;
    let pid = Pid::from_raw(child.id().cast_signed());
    let pidfd = pid.map(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()));
    // If the pid is unknown, the process has ended.
    if let Some(Ok(pidfd)) = pidfd
        && !has_ended(&pidfd, Instant::now() + patience)
    {
        let _ = child.kill();
    }
    // The launcher may have reaped the child with adopted orphans; its exit status is not needed.
    let _ = child.wait();
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(4 << 20).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns whether the process ends before `deadline`: its descriptor becomes readable at the end.
pub fn has_ended(pidfd: &OwnedFd, deadline: Instant) -> bool {
    loop {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
        match rustix::event::poll(&mut [PollFd::new(pidfd, PollFlags::IN)], left.as_ref()) {
            Ok(ready) => return ready > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn a_program_that_prints_is_heard() {
        assert_eq!(output(Command::new("echo").arg("frame 0"), PATIENCE).unwrap(), "frame 0\n");
        assert_eq!(output(&mut Command::new("/no/such/debugger"), PATIENCE), None);
        let mut both = Command::new("sh");
        both.args(["-c", "echo one; echo two >&2"]);
        assert_eq!(whole_output(&mut both, PATIENCE).unwrap(), "one\ntwo\n");
        assert!(whole_output(&mut Command::new("/no/such/program"), PATIENCE).is_err());
    }

    #[test]
    fn a_helper_that_does_not_end_is_not_waited_for() {
        let start_time = Instant::now();
        let mut command = Command::new("sh");
        command.args(["-c", "echo first; exec sleep 60"]);
        assert_eq!(output(&mut command, Duration::from_secs(2)).unwrap(), "first\n");
        assert!(start_time.elapsed() < PATIENCE);
    }
}
