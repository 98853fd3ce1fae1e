//! Whether the kernel killed a worker because memory ran out, as far as an ordinary user can find out.
//!
//! There are two sources. The kernel's log names the process, but reading it needs privileges. The counters
//! of control groups name no process, but every user can read them; the nearest group that counts is used.

use super::control_groups;
use crate::cause::MemoryKill;
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The most bytes of a record of the kernel's log.
const RECORD_BYTES: usize = 8 * 1024;
/// More records than the kernel's log can hold.
const MOST_RECORDS: usize = 100_000;
/// The value of `/proc/self/ns/pid` if process ids are those of the kernel's log.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The state of the system at the start of the run.
#[derive(Debug)]
pub struct MemoryKills {
    /// The nearest file that counts such kills, its meaning, and the count.
    counter: Option<(PathBuf, MemoryKill, u64)>,
    /// The kernel's log, positioned at its end at that time.
    log: Option<File>,
}

impl MemoryKills {
    /// Reads the state. Call it before the first worker starts.
    pub fn note() -> Self {
        let read = |(path, means): (PathBuf, MemoryKill)| count(&path).map(|count| (path, means, count));
        Self { counter: counters().into_iter().find_map(read), log: log_from_now_on() }
    }

    /// Returns a function from the pid of a worker that died of SIGKILL to the evidence of a kill since then.
    pub fn since(&self, pids: &[u32]) -> impl Fn(Option<u32>) -> Option<MemoryKill> + use<> {
        let counter = self.counter.as_ref().filter(|(path, _, before)| count(path) > Some(*before));
        let mut logged = self.log.as_ref().map(killed_pids).unwrap_or_default();
        logged.retain(|pid| pids.contains(pid));
        evidence(counter.map(|(_, means, _)| *means), logged)
    }
}

fn evidence(counted: Option<MemoryKill>, logged: Vec<u32>) -> impl Fn(Option<u32>) -> Option<MemoryKill> {
    move |pid| match pid {
        Some(pid) if logged.contains(&pid) => Some(MemoryKill::Logged),
        _ => counted,
    }
}

/// Returns the files that may count such kills, the nearest first.
fn counters() -> Vec<(PathBuf, MemoryKill)> {
    let groups = control_groups::files("memory", "memory.oom_control", "memory.events");
    let groups = groups.into_iter().map(|path| (path, MemoryKill::Group));
    groups.chain([("/proc/vmstat".into(), MemoryKill::Machine)]).collect()
}

fn count(path: &Path) -> Option<u64> {
    counted(&fs::read_to_string(path).ok()?)
}

/// Returns N of the line `oom_kill N` in `memory.events`, `memory.oom_control` or `/proc/vmstat`.
fn counted(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// Opens the kernel's log at its end; `None` without the right, or if its process ids are not ours.
fn log_from_now_on() -> Option<File> {
    if !sees_the_kernels_pids() {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let log = rustix::fs::open("/dev/kmsg", flags, Mode::empty()).ok()?;
    rustix::fs::seek(&log, SeekFrom::End(0)).ok()?;
    Some(log.into())
}

/// Returns whether process ids of the kernel and drivers are valid here: not so in a container.
pub fn sees_the_kernels_pids() -> bool {
    fs::read_link("/proc/self/ns/pid").is_ok_and(|namespace| namespace == Path::new(FIRST_PID_NAMESPACE))
}

/// Returns the processes that were killed for memory, by the rest of the kernel's log.
fn killed_pids(mut log: &File) -> Vec<u32> {
    let mut record = vec![0; RECORD_BYTES];
    let mut killed = Vec::new();
    for _ in 0..MOST_RECORDS {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(length) => killed.extend(killed_pid(&String::from_utf8_lossy(&record[..length]))),
            // PIPE: unread records were overwritten; the next read returns the oldest record left.
            Err(error) if [Errno::PIPE, Errno::INTR].map(Some).contains(&Errno::from_io_error(&error)) => {}
            Err(_) => break,
        }
    }
    killed
}

fn killed_pid(record: &str) -> Option<u32> {
    let (before, after) = record.split_once("Killed process ")?;
    if !before.to_ascii_lowercase().contains("out of memory") {
        return None;
    }
    let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
    after[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_counter_of_every_kind_of_file_is_read() {
        let events = "low 0\nhigh 0\nmax 41\noom 3\noom_kill 2\noom_group_kill 1\n";
        let control = "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n";
        let vmstat = "nr_free_pages 5340000\npgmajfault 12\noom_kill 1\nnuma_hit 4\n";
        for (text, expected) in [
            (events, Some(2)),
            (control, Some(7)),
            (vmstat, Some(1)),
            ("oom_kill_disable 0\nunder_oom 0\n", None),
            ("oom_kill many\n", None),
            ("", None),
        ] {
            assert_eq!(counted(text), expected, "{text}");
        }
    }

    #[test]
    fn the_machines_counter_comes_last() {
        assert_eq!(counters().last().unwrap().1, MemoryKill::Machine);
    }

    #[test]
    fn the_log_names_the_victim() {
        for (record, expected) in [
            (
                "3,1012,8713,-;Memory cgroup out of memory: Killed process 4242 (python3) total-vm:9kB, anon-rss:7kB",
                Some(4242),
            ),
            ("3,1,2,-;Out of memory: Killed process 7 (a b) total-vm:1kB", Some(7)),
            ("4,1,2,-;Out of memory (oom_kill_allocating_task): Killed process 9", Some(9)),
            ("6,1,2,-;oom_reaper: reaped process 4242 (python3)", None),
            ("6,1,2,-;someone said: Killed process 4242", None),
            ("3,1,2,-;Out of memory: Killed process none", None),
            ("3,1,2,-;Out of memory: Killed process 99999999999999", None),
        ] {
            assert_eq!(killed_pid(record), expected, "{record}");
        }
    }

    #[test]
    fn a_named_process_counts_for_itself_and_a_count_for_all() {
        let since = evidence(Some(MemoryKill::Group), vec![7]);
        assert_eq!(since(Some(7)), Some(MemoryKill::Logged));
        assert_eq!(since(Some(8)), Some(MemoryKill::Group));
        assert_eq!(evidence(None, Vec::new())(Some(7)), None);
    }

    #[test]
    fn equal_counters_mean_no_memory_kill() {
        // Reading works, whatever this machine allows.
        let since = MemoryKills::note().since(&[std::process::id()]);
        assert_ne!(since(Some(std::process::id())), Some(MemoryKill::Logged));
    }

    proptest! {
        #[test]
        fn no_input_panics(a in "(\\PC|\n|:|/|\\.){0,80}") {
            counted(&a);
            killed_pid(&format!("out of memory Killed process {a}"));
        }
    }
}
