//! Whether the kernel killed a worker because memory ran out, as far as an ordinary user can find out.
//!
//! There are two sources. The kernel's log names the process, but reading it needs privileges. The counters
//! of control groups name no process, but every user can read them; the nearest group that counts is used.

use crate::cause::MemoryKill;
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Component, Path, PathBuf};

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
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let groups = group_files(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
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

/// Returns the files that may count kills of this process's control group, the nearest first.
fn group_files(memberships: &str, mounts: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for (version, name) in [(1, "memory.oom_control"), (2, "memory.events")] {
        let (Some(member), Some((root, point))) = (membership(memberships, version), mount(mounts, version))
        else {
            continue;
        };
        // If the group is outside of this mount, the mount's root is the nearest visible group.
        let below = Path::new(member).strip_prefix(&root).unwrap_or(Path::new(""));
        let is_outside = below.components().any(|part| part == Component::ParentDir);
        let below = if is_outside { Path::new("") } else { below };
        files.extend(below.ancestors().map(|part| point.join(part).join(name)));
    }
    files
}

/// Returns this process's group: in version 1 of the hierarchy for memory, in version 2 of the only one.
fn membership(memberships: &str, version: u8) -> Option<&str> {
    memberships.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let wanted = match version {
            1 => controllers.split(',').any(|name| name == "memory"),
            _ => id == "0" && controllers.is_empty(),
        };
        wanted.then_some(path)
    })
}

/// Returns the mounted group and its mount point.
fn mount(mounts: &str, version: u8) -> Option<(PathBuf, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, point) = (place.next()?, place.next()?);
        let mut kind = kind.split(' ');
        let (name, options) = (kind.next()?, kind.nth(1).unwrap_or_default());
        let wanted = match version {
            1 => name == "cgroup" && options.split(',').any(|option| option == "memory"),
            _ => name == "cgroup2",
        };
        wanted.then(|| (unescaped(root), unescaped(point)))
    })
}

/// Decodes the `\040` of blanks and the `\011` of tabs in `/proc/self/mountinfo`.
fn unescaped(path: &str) -> PathBuf {
    path.replace("\\040", " ").replace("\\011", "\t").into()
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

    const VERSION_1: &str = "\
25 20 0:22 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
30 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
31 25 0:28 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
32 25 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup rw
";
    const VERSION_2: &str = "\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
28 23 0:25 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
";

    fn files(memberships: &str, mounts: &str) -> Vec<String> {
        let files = group_files(memberships, mounts);
        files.iter().map(|file| file.to_str().unwrap().to_owned()).collect()
    }

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
    fn in_version_2_the_own_group_comes_first_and_then_those_above() {
        let found = files("0::/user.slice/user-1000.slice/run.scope\n", VERSION_2);
        let expected = [
            "/sys/fs/cgroup/user.slice/user-1000.slice/run.scope/memory.events",
            "/sys/fs/cgroup/user.slice/user-1000.slice/memory.events",
            "/sys/fs/cgroup/user.slice/memory.events",
            "/sys/fs/cgroup/memory.events",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn in_version_1_it_is_the_hierarchy_of_the_memory_controller() {
        let memberships = "9:cpu,cpuacct:/other\n4:memory:/slurm/job_7\n0::/\n";
        let found = files(memberships, VERSION_1);
        assert_eq!(
            found[..3],
            [
                "/sys/fs/cgroup/memory/slurm/job_7/memory.oom_control",
                "/sys/fs/cgroup/memory/slurm/memory.oom_control",
                "/sys/fs/cgroup/memory/memory.oom_control",
            ]
        );
        assert_eq!(found[3..], ["/sys/fs/cgroup/unified/memory.events"]);
    }

    #[test]
    fn a_containers_mount_begins_at_its_own_group() {
        let mounts = "31 25 0:28 /docker/abc /sys/fs/cgroup/my\\040memory ro - cgroup cgroup rw,memory\n";
        let own = ["/sys/fs/cgroup/my memory/memory.oom_control"];
        assert_eq!(files("4:memory:/docker/abc\n", mounts), own);
        assert_eq!(files("4:memory:/docker/abc/sub\n", mounts).len(), 2);
        assert_eq!(files("4:memory:/elsewhere\n", mounts), own, "not visible from here");
        assert_eq!(files("0::/../../outside\n", VERSION_2), ["/sys/fs/cgroup/memory.events"]);
    }

    #[test]
    fn a_machine_without_control_groups_has_the_machines_counter() {
        assert_eq!(files("", ""), [""; 0]);
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
        fn no_input_panics(a in "(\\PC|\n|:|/|\\.){0,80}", b in "(\\PC|\n| |/| - cgroup2){0,80}") {
            group_files(&a, &b);
            counted(&a);
            killed_pid(&format!("out of memory Killed process {a}"));
        }
    }
}
