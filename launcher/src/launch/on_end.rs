//! `--on-end` and `log.on_end`: a shell command that gets the result of a run.

use crossbeam_channel::Receiver;
use dtrain_agent::io::output::Message;
use dtrain_agent::io::process::Family;
use dtrain_common::env::DTRAIN_RUN_DIR;
use dtrain_common::files::in_memory;
use dtrain_common::run_dir::RunDir;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{self, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

/// The time that the command has.
const LIMIT: Duration = Duration::from_secs(30);
/// The wait for the end of a killed command.
const AFTER_KILL: Duration = Duration::from_secs(2);

/// How the launcher waits: until the receiver disconnects, for at most this time, or until a request to stop. Returns whether a
/// request came first.
pub(super) type Wait<'a> = &'a dyn Fn(&Receiver<()>, Duration) -> bool;

/// Runs the command with `result` as its standard input. A request to stop, or the end of its time, kills it. Returns a
/// warning if it fails.
pub(super) fn follow(
    command: &str,
    result: &[u8],
    run_dir: Option<&RunDir>,
    family: &Family,
    wait: Wait<'_>,
) -> Option<Message> {
    let failed = run(LIMIT, command, result, run_dir.map(RunDir::root), family, wait).err()?;
    Some(Message::warning(format!("dtrain: warning: the command of on_end {failed}")))
}

fn run(
    limit: Duration,
    command: &str,
    result: &[u8],
    run_dir: Option<&Path>,
    family: &Family,
    wait: Wait<'_>,
) -> Result<(), String> {
    let not_started = |error: io::Error| format!("cannot start: {error}");
    let mut stdin = in_memory("result").map_err(not_started)?;
    stdin.write_all(result).and_then(|()| stdin.rewind()).map_err(not_started)?;
    let mut shell = Command::new("sh");
    // Its own group, so that all of its processes can be ended.
    shell.args(["-c", command]).stdin(stdin).process_group(0);
    if let Some(run_dir) = run_dir {
        shell.env(DTRAIN_RUN_DIR, run_dir);
    }
    let mut child = family.start_next(&mut shell).map_err(not_started)?;
    let group = Pid::from_raw(child.id().cast_signed());
    let (alive, done) = crossbeam_channel::bounded(0);
    let (ended, status) = crossbeam_channel::bounded(1);
    let reap = move || {
        // Cannot fail: there is room for it.
        drop(ended.send(child.wait()));
        drop(alive);
    };
    std::thread::Builder::new().name("on-end".to_owned()).spawn(reap).map_err(not_started)?;
    let was_asked = wait(&done, limit);
    match status.try_recv() {
        Ok(status) => judge(status),
        Err(_) => {
            // Fails if it has just ended.
            let _ = group.map(|group| kill_process_group(group, Signal::KILL));
            let _ = done.recv_timeout(AFTER_KILL);
            Err(match was_asked {
                true => "was killed on request".to_owned(),
                false => format!("did not end within {} s, and was killed", limit.as_secs()),
            })
        }
    }
}

fn judge(status: io::Result<ExitStatus>) -> Result<(), String> {
    match status {
        Ok(status) if !status.success() => Err(format!("ended with {status}")),
        // An unknown end is no failure.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::inbox::Inbox;
    use super::super::inbox::tests::inbox;
    use super::*;
    use dtrain_agent::local::Event;
    use dtrain_agent::signals;
    use std::fs;
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(60);

    fn run_with(inbox: &Inbox, limit: Duration, command: &str, run_dir: Option<&Path>) -> Result<(), String> {
        let wait = |done: &Receiver<()>, limit| inbox.wait(done, Some(limit), false).abandoned;
        run(limit, command, b"{}", run_dir, &inbox.family, &wait)
    }

    #[test]
    fn a_command_gets_the_result_and_the_run_directory() {
        let folder = tempfile::tempdir().unwrap();
        let of = |command: &str| run_with(&inbox(), LONG, command, Some(folder.path()));
        assert_eq!(of("cat > $DTRAIN_RUN_DIR/result"), Ok(()));
        assert_eq!(fs::read(folder.path().join("result")).unwrap(), b"{}");
        assert_eq!(of("exit 3"), Err("ended with exit status: 3".to_owned()));
        assert_eq!(of("kill -TERM $$"), Err("ended with signal: 15 (SIGTERM)".to_owned()));
    }

    #[test]
    fn a_command_that_hangs_ends_with_its_children_after_its_time_or_on_request() {
        let command = "sleep 600 & sleep 600";
        let began = Instant::now();
        let failed = run_with(&inbox(), Duration::from_millis(100), command, None);
        assert_eq!(failed, Err("did not end within 0 s, and was killed".to_owned()));
        let inbox = inbox();
        let sender = inbox.sender.clone();
        let asked = std::thread::spawn(move || {
            // An earlier one may be the end of the same request as the run's.
            std::thread::sleep(Duration::from_millis(600));
            sender.send(Event::Stop { signal: signals::INT, again: false }).unwrap();
        });
        let failed = run_with(&inbox, LONG, command, None);
        assert_eq!(failed, Err("was killed on request".to_owned()));
        asked.join().unwrap();
        assert!(began.elapsed() < LONG);
    }
}
