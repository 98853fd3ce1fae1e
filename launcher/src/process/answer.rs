//! What another program answers.

use std::io::{Read, Seek};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What a command prints, if it can be started. One that takes longer than `patience` is killed, and what it has
/// printed by then is the answer.
pub(crate) fn output(command: &mut Command, patience: Duration) -> Option<String> {
    let mut file = tempfile::tempfile().ok()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file.try_clone().ok()?)
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let begun = Instant::now();
    while child.try_wait().ok()?.is_none() {
        if begun.elapsed() > patience {
            let _ = child.kill();
            let _ = child.wait();
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    file.rewind().ok()?;
    let mut bytes = Vec::new();
    file.take(4 << 20).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn a_program_that_prints_is_heard() {
        assert_eq!(
            output(Command::new("echo").arg("frame 0"), PATIENCE).unwrap(),
            "frame 0\n"
        );
        assert_eq!(output(&mut Command::new("/no/such/debugger"), PATIENCE), None);
    }

    #[test]
    fn one_that_does_not_end_is_not_waited_for() {
        let begun = Instant::now();
        let mut command = Command::new("sh");
        command.args(["-c", "echo first; exec sleep 60"]);
        assert_eq!(output(&mut command, Duration::from_secs(2)).unwrap(), "first\n");
        assert!(begun.elapsed() < PATIENCE);
    }
}
