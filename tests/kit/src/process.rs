//! Processes under test: waits with limits, signals, output, and the search for remaining processes.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
pub use rustix::process::Signal;
use rustix::process::{Pid, PidfdFlags, kill_process, pidfd_open};

/// The limit for every event, on a machine that is busy with other work.
pub const LONG: Duration = Duration::from_secs(120);

/// Waits until the condition holds, for at most [`LONG`].
///
/// # Panics
/// If the condition does not hold within this time.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < LONG, "waited {LONG:?} for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs `dtrain doctor` again while a check has no answer in its time, as may be beside other tests.
pub fn doctor(mut run: impl FnMut() -> Output) -> Output {
    let mut done = run();
    wait_until("a doctor whose checks answer in time", || {
        // The table wraps lines.
        let words = output_text(&done).split_whitespace().collect::<Vec<_>>().join(" ");
        let is_late = ["no answer within", "does not start within"].iter().any(|late| words.contains(late));
        if is_late {
            done = run();
        }
        !is_late
    });
    done
}

/// Returns when the process has ended, also if it is not a child, or when the time is over.
pub(crate) fn wait_for_end(pid: u32, within: Duration) {
    // A process without a pidfd has ended.
    if let Ok(process) = pidfd_open(id(pid), PidfdFlags::empty()) {
        let timeout = Timespec::try_from(within).unwrap();
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        retry_on_intr(|| poll(&mut ended, Some(&timeout))).unwrap();
    }
}

/// Sends a signal to a process that may have ended.
pub fn kill(pid: u32, signal: Signal) {
    let _ = kill_process(id(pid), signal);
}

/// Sends a signal to a running process.
///
/// # Panics
/// If the process has ended.
#[track_caller]
pub fn signal(pid: u32, signal: Signal) {
    kill_process(id(pid), signal).unwrap_or_else(|error| panic!("{signal:?} to process {pid}: {error}"));
}

fn id(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed()).unwrap()
}

/// Returns processes whose environment has all these prefixes. A final zero byte matches a whole variable.
pub(crate) fn processes_with(wanted: &[&str]) -> Vec<u32> {
    let pids =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        // An ended process has no environment, even before it is reaped.
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        wanted.iter().all(|wanted| {
            environment
                .split_inclusive(|byte| *byte == 0)
                .any(|variable| variable.starts_with(wanted.as_bytes()))
        })
    })
    .collect()
}

/// Finds the process of a rank below the guardian of a launcher, by its environment.
///
/// # Panics
/// If no such process runs.
#[track_caller]
pub fn rank_pid(guardian: u32, rank: usize) -> u32 {
    // The zero byte ends the variable.
    let ranks = processes_with(&[&format!("RANK={rank}\0")]);
    let below = |pid: &u32| parent(*pid).and_then(parent) == Some(guardian);
    ranks.into_iter().rfind(below).expect("the rank is not running")
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}

/// Runs a command to its end and collects what it prints.
///
/// # Panics
/// If the command does not start or does not end within `limit` (then it gets SIGTERM, and SIGKILL later).
#[track_caller]
pub fn finish(command: &mut Command, limit: Duration) -> Output {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    let pid = child.id();
    let (sender, receiver) = channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    match receiver.recv_timeout(limit) {
        Ok(output) => output.expect("the output can be read"),
        Err(_) => {
            // On SIGTERM, a launcher ends its workers too.
            for (signal, patience) in [(Signal::TERM, 10), (Signal::KILL, 1)] {
                kill(pid, signal);
                if receiver.recv_timeout(Duration::from_secs(patience)).is_ok() {
                    break;
                }
            }
            panic!("{command:?} has not ended within {limit:?}")
        }
    }
}

/// Returns a program's exit status and output, for assertions.
pub fn output_text(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Returns the output of a program that ended with this code.
///
/// # Panics
/// If the program ended with another code.
#[track_caller]
pub fn expect_exit_code(output: &Output, code: i32) -> String {
    let text = output_text(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

/// Returns how often to try a timing-dependent case: `usual`, or the number set by `cargo xtask soak`.
pub fn repeats(usual: usize) -> usize {
    let repetitions = std::env::var("DTRAIN_SOAK").ok();
    repetitions.and_then(|number| number.parse().ok()).unwrap_or(usual)
}

/// Tries a case [`repeats`] times, several at once, if it mostly waits. `case` gets the try's number. Its threads have
/// the name of the test, by which a case records what it needs.
pub fn repeat(usual: usize, case: impl Fn(usize) + Sync) {
    const AT_ONCE: usize = 8;
    let (count, next) = (repeats(usual), AtomicUsize::new(0));
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    let cases = || {
        while let Some(n) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|n| *n < count) {
            case(n);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(count) {
            std::thread::Builder::new().name(test.clone()).spawn_scoped(scope, cases).unwrap();
        }
    });
}

/// Installs handlers for ignored signals. A shell's background job inherits INT and QUIT as ignored, and
/// would pass this on to the program under test; a signal with a handler here has its default action there.
pub(crate) fn undo_ignored_signals() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let status = fs::read_to_string(Path::new("/proc/self/status")).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        let ignored = u64::from_str_radix(mask.trim(), 16).unwrap();
        for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2] {
            if ignored & (1 << (signal.as_raw() - 1)) != 0 {
                let flag = std::sync::Arc::default();
                signal_hook::flag::register(signal.as_raw(), flag).unwrap();
            }
        }
    });
}
