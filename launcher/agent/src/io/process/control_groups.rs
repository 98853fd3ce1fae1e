//! The control groups of this process: where the kernel keeps its limits and counters.

use std::fs;
use std::iter::zip;
use std::path::{Component, Path, PathBuf};

/// Returns the paths of a file of this process's control groups, the nearest group first. The file may be
/// missing. It is called `old` in version 1's hierarchy of this controller and `new` in version 2.
pub fn files(controller: &str, old: &str, new: &str) -> Vec<PathBuf> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    files_in(controller, [old, new], &read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
}

fn files_in(controller: &str, names: [&str; 2], memberships: &str, mounts: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for (in_use, name) in zip([Some(controller), None], names) {
        let (Some(member), Some((root, point))) = (membership(memberships, in_use), mount(mounts, in_use))
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

/// Returns this process's group: in version 1 that of the controller's hierarchy; `None` is version 2.
fn membership<'a>(memberships: &'a str, controller: Option<&str>) -> Option<&'a str> {
    memberships.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let wanted = match controller {
            Some(controller) => controllers.split(',').any(|name| name == controller),
            None => id == "0" && controllers.is_empty(),
        };
        wanted.then_some(path)
    })
}

/// Returns the mounted group and its mount point.
fn mount(mounts: &str, controller: Option<&str>) -> Option<(PathBuf, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, point) = (place.next()?, place.next()?);
        let mut kind = kind.split(' ');
        let (name, options) = (kind.next()?, kind.nth(1).unwrap_or_default());
        let wanted = match controller {
            Some(controller) => name == "cgroup" && options.split(',').any(|option| option == controller),
            None => name == "cgroup2",
        };
        wanted.then(|| (unescaped(root), unescaped(point)))
    })
}

/// Decodes the `\040` of blanks and the `\011` of tabs in `/proc/self/mountinfo`.
fn unescaped(path: &str) -> PathBuf {
    path.replace("\\040", " ").replace("\\011", "\t").into()
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

    fn found(memberships: &str, mounts: &str) -> Vec<String> {
        let files = files_in("memory", ["memory.oom_control", "memory.events"], memberships, mounts);
        files.iter().map(|file| file.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn in_version_2_the_own_group_comes_first_and_then_those_above() {
        let found = found("0::/user.slice/user-1000.slice/run.scope\n", VERSION_2);
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
        let found = found(memberships, VERSION_1);
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
        assert_eq!(found("4:memory:/docker/abc\n", mounts), own);
        assert_eq!(found("4:memory:/docker/abc/sub\n", mounts).len(), 2);
        assert_eq!(found("4:memory:/elsewhere\n", mounts), own, "not visible from here");
        assert_eq!(found("0::/../../outside\n", VERSION_2), ["/sys/fs/cgroup/memory.events"]);
    }

    #[test]
    fn a_machine_without_control_groups_has_no_files() {
        assert_eq!(found("", ""), [""; 0]);
    }

    proptest! {
        #[test]
        fn no_input_panics(a in "(\\PC|\n|:|/|\\.){0,80}", b in "(\\PC|\n| |/| - cgroup2){0,80}") {
            files_in("memory", ["old", "new"], &a, &b);
        }
    }
}
