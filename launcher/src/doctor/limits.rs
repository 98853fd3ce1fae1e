//! Limits of this process and its container: memory, processors, processes, open files, shared memory.

use super::row::Row;
use dtrain_agent::io::process::control_groups;
use dtrain_common::text::{counted, grouped};
use dtrain_common::units::ByteSize;
use rustix::fs::statvfs;
use rustix::process::{Resource, getrlimit};
use rustix::thread::sched_getaffinity;
use std::fs;
use std::path::Path;

const GIB: u64 = 1 << 30;
/// Fewer open files stop data loaders and large runs.
const FEW_FILES: u64 = 1024;
/// Fewer processes and threads stop workers with many loader threads.
const FEW_TASKS: u64 = 4096;
/// Less memory than this holds no worker beside its libraries.
const LITTLE_MEMORY: u64 = 2 * GIB;
/// Less shared memory stops PyTorch's data loaders; containers have 64 MiB.
const LITTLE_SHARED: u64 = GIB;
/// Less cannot hold the smallest run's gradients.
const FULL_SHARED: u64 = 16 << 20;
/// RDMA registers memory that counts as locked.
const LITTLE_LOCKED: u64 = GIB;

/// `None` is no limit.
#[derive(Clone, Copy, Debug, Default)]
struct Limits {
    files: Option<u64>,
    tasks: Option<u64>,
    locked: Option<u64>,
    core: Option<u64>,
    has_rdma: bool,
}

pub(super) fn check_limits() -> Vec<Row> {
    let limit = |resource| getrlimit(resource).current;
    let group = groups("pids", "pids.max", "pids.max").into_iter().min();
    judge_limits(Limits {
        files: limit(Resource::Nofile),
        tasks: [limit(Resource::Nproc), group].into_iter().flatten().min(),
        locked: limit(Resource::Memlock),
        core: limit(Resource::Core),
        has_rdma: fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some()),
    })
}

fn judge_limits(limits: Limits) -> Vec<Row> {
    const WHAT: &str = "limits";
    let Limits { files, tasks, locked, core, has_rdma } = limits;
    let number = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), grouped);
    let is_below = |limit: Option<u64>, least| limit.is_some_and(|limit| limit < least);
    let mut rows = Vec::new();
    if is_below(files, FEW_FILES) {
        let remedy = "run `ulimit -n 65536` first; in a container, start it with `--ulimit nofile=65536`";
        rows.push(Row::warn(WHAT, format!("{} open files per process", number(files)), remedy));
    }
    if is_below(tasks, FEW_TASKS) {
        let remedy = "run `ulimit -u 65536` first; in a container, start it with `--pids-limit -1`";
        rows.push(Row::warn(WHAT, format!("{} processes and threads", number(tasks)), remedy));
    }
    let locked_text = locked.map_or("unlimited".to_owned(), |bytes| ByteSize(bytes).to_string());
    if has_rdma && is_below(locked, LITTLE_LOCKED) {
        let remedy = "run `ulimit -l unlimited` first; under Slurm set LimitMEMLOCK=infinity for slurmd; in a container \
                      use `--ulimit memlock=-1`";
        let value = format!("{locked_text} of locked memory, too little for InfiniBand");
        rows.push(Row::warn(WHAT, value, remedy));
    }
    let core = if core == Some(0) { "off" } else { "on" };
    rows.push(Row::ok(
        WHAT,
        format!(
            "open files {}, processes {}, locked memory {locked_text}, core files {core}",
            number(files),
            number(tasks)
        ),
    ));
    rows
}

pub(super) fn check_memory() -> Vec<Row> {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let limit = groups("memory", "memory.limit_in_bytes", "memory.max").into_iter().min();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let allowed = sched_getaffinity(None).map_or(cores, |cores| cores.count() as usize);
    let memory = |name| kibibytes(&meminfo, name);
    let memory = memory("MemTotal:").zip(memory("MemAvailable:"));
    vec![judge_memory(memory, limit), judge_cores(cores, allowed)]
}

/// Returns a limit of each control group that has one, as a number.
fn groups(controller: &str, old: &str, new: &str) -> Vec<u64> {
    let files = control_groups::files(controller, old, new).into_iter();
    files.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok()).collect()
}

/// Reads a value of `/proc/meminfo`, in bytes.
fn kibibytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// `memory` is the machine's and what is available of it.
fn judge_memory(memory: Option<(u64, u64)>, limit: Option<u64>) -> Row {
    let Some((total, available)) = memory else {
        return Row::warn("memory", "/proc/meminfo cannot be read", "mount /proc");
    };
    let limit = limit.filter(|limit| *limit < total);
    let usable = limit.unwrap_or(total).min(available);
    let container = limit.map(|limit| format!("; limit of the container or job: {}", ByteSize(limit)));
    let value =
        format!("{} of {} free{}", ByteSize(available), ByteSize(total), container.unwrap_or_default());
    match usable < LITTLE_MEMORY {
        true => Row::warn(
            "memory",
            value,
            "end other programs, or ask for more memory (Slurm --mem, docker --memory)",
        ),
        false => Row::ok("memory", value),
    }
}

/// `allowed` are the cores on which this process may run; a quota of its time leaves `cores`.
fn judge_cores(cores: usize, allowed: usize) -> Row {
    let value = counted(cores, "CPU core");
    let quota = || format!("{value} of {allowed}, by the container's limit");
    Row::ok("processors", if cores < allowed { quota() } else { value })
}

pub(super) fn check_shared_memory() -> Vec<Row> {
    let folder = Path::new("/dev/shm");
    let sizes = statvfs(folder).ok().map(|it| (it.f_blocks * it.f_frsize, it.f_bavail * it.f_frsize));
    vec![judge_shared_memory(sizes)]
}

/// `sizes` are the total and the free bytes of `/dev/shm`.
fn judge_shared_memory(sizes: Option<(u64, u64)>) -> Row {
    const WHAT: &str = "shared memory";
    let Some((total, free)) = sizes else {
        let remedy = "mount it: `mount -t tmpfs shm /dev/shm`";
        return Row::fail(WHAT, "/dev/shm is missing; NCCL and PyTorch's data loaders need it", remedy);
    };
    let value = format!("{} of {} free in /dev/shm", ByteSize(free), ByteSize(total));
    let enlarge = "start the container with `--shm-size=8g` (or `--ipc=host`); in Kubernetes mount an emptyDir with \
                   `medium: Memory`";
    if free < FULL_SHARED {
        let full = "remove files of ended programs (`ls -l /dev/shm`), or enlarge it";
        Row::fail(WHAT, value, if total < LITTLE_SHARED { enlarge } else { full })
    } else if total < LITTLE_SHARED {
        Row::warn(WHAT, format!("{value}: too little for PyTorch's data loaders"), enlarge)
    } else {
        Row::ok(WHAT, value)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::row::Level;
    use super::*;

    #[test]
    fn low_limits_are_warnings_with_commands() {
        let good = Limits {
            files: Some(20_000),
            tasks: None,
            locked: Some(8 << 20),
            core: Some(0),
            has_rdma: false,
        };
        let said = "open files 20,000, processes unlimited, locked memory 8.00 MiB, core files off";
        assert_eq!(judge_limits(good), [Row::ok("limits", said)]);
        let bad = Limits { files: Some(256), tasks: Some(100), core: None, has_rdma: true, ..good };
        let rows = judge_limits(bad);
        let levels: Vec<Level> = rows.iter().map(|row| row.level).collect();
        assert_eq!(levels, [Level::Warn, Level::Warn, Level::Warn, Level::Ok]);
        for (row, command) in rows.iter().zip(["ulimit -n", "--pids-limit", "LimitMEMLOCK"]) {
            assert!(row.remedy.as_ref().unwrap().contains(command), "{row:?}");
        }
        assert_eq!(judge_limits(Limits { locked: None, has_rdma: true, ..good }).len(), 1);
    }

    #[test]
    fn the_smaller_of_machine_and_container_counts() {
        let meminfo = "MemTotal:       4194304 kB\nMemAvailable:    1048576 kB\n";
        assert_eq!(kibibytes(meminfo, "MemTotal:"), Some(4 * GIB));
        assert_eq!(kibibytes(meminfo, "MemFree:"), None);
        let free = Row::ok("memory", "8.00 GiB of 16.00 GiB free");
        let judge = |available, limit| judge_memory(Some((16 * GIB, available)), limit);
        assert_eq!(judge(8 * GIB, None), free);
        // Version 1 has a huge number for no limit.
        assert_eq!(judge(8 * GIB, Some(u64::MAX >> 1)), free);
        let small = judge(8 * GIB, Some(GIB));
        assert!(small.level == Level::Warn && small.value.ends_with("job: 1.00 GiB"), "{small:?}");
        assert_eq!(judge(GIB, None).level, Level::Warn);
        assert_eq!(judge_memory(None, None).value, "/proc/meminfo cannot be read");
        assert_eq!(judge_cores(1, 8).value, "1 CPU core of 8, by the container's limit");
        assert_eq!(judge_cores(8, 8).value, "8 CPU cores");
    }

    #[test]
    fn a_containers_shared_memory_is_too_small() {
        let docker = judge_shared_memory(Some((64 << 20, 64 << 20)));
        assert!(docker.level == Level::Warn && docker.remedy.unwrap().contains("--shm-size=8g"));
        assert_eq!(judge_shared_memory(Some((8 * GIB, GIB))).level, Level::Ok);
        let full = judge_shared_memory(Some((8 * GIB, 1 << 20)));
        assert!(full.level == Level::Fail && full.remedy.unwrap().contains("ls -l /dev/shm"));
        let tiny = judge_shared_memory(Some((1 << 20, 1 << 20)));
        assert!(tiny.level == Level::Fail && tiny.remedy.unwrap().contains("--shm-size=8g"));
        assert_eq!(judge_shared_memory(None).level, Level::Fail);
    }
}
