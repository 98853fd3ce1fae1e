#![allow(clippy::unwrap_used)]

use super::*;
use crate::tests::images::put;

fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, text) in files {
        put(root.path().join(name), text.as_bytes());
    }
    root
}

const MEMINFO: (&str, &str) =
    ("proc/meminfo", "MemTotal:       2000 kB\nMemFree:  10 kB\nMemAvailable:   1000 kB\nBuffers: 1 kB\n");

#[test]
fn without_a_container_the_systems_memory_counts() {
    assert_eq!(at(machine(&[MEMINFO]).path()), 1_024_000);
    assert_eq!(at(machine(&[]).path()), 0);
    assert_eq!(at(machine(&[("proc/meminfo", "MemAvailable: many kB\n")]).path()), 0);
}

#[test]
fn a_group_s_limit_counts_if_it_is_lower() {
    let group = ("proc/self/cgroup", "0::/job/worker\n");
    let limited = |limit: &str| {
        at(machine(&[
            MEMINFO,
            group,
            ("sys/fs/cgroup/job/worker/memory.max", "max\n"),
            ("sys/fs/cgroup/job/worker/memory.current", "1\n"),
            ("sys/fs/cgroup/job/memory.max", limit),
            ("sys/fs/cgroup/job/memory.current", "70000\n"),
            ("sys/fs/cgroup/job/memory.stat", "anon 5\ninactive_file 20000\nslab 3\n"),
        ])
        .path())
    };
    assert_eq!(limited("150000\n"), 100_000, "150000 - (70000 - 20000)");
    assert_eq!(limited("10000\n"), 0, "over the limit");
    assert_eq!(limited("max\n"), 1_024_000);
    assert_eq!(limited("9000000000\n"), 1_024_000);
}

#[test]
fn a_container_sees_its_own_root() {
    let root = machine(&[
        MEMINFO,
        ("proc/self/cgroup", "0::/../../pod/container\n"),
        ("sys/fs/cgroup/memory.max", "200000\n"),
        ("sys/fs/cgroup/memory.current", "50000\n"),
    ]);
    assert_eq!(at(root.path()), 150_000);
}

#[test]
fn version_1_is_understood() {
    let root = machine(&[
        MEMINFO,
        ("proc/self/cgroup", "7:cpu,cpuacct:/a\n5:memory:/a\n0::/\n"),
        ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "300000\n"),
        ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "100000\n"),
        ("sys/fs/cgroup/memory/a/memory.stat", "cache 1\ntotal_inactive_file 40000\n"),
    ]);
    assert_eq!(at(root.path()), 240_000);
}
