//! Control groups with little memory.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use crate::need::{Need, Skipped, require};

/// A control group with a memory limit below this process's group, removed when dropped.
pub struct SmallGroup(PathBuf);

impl SmallGroup {
    /// Creates a group of `bytes` bytes.
    ///
    /// # Errors
    /// If this machine does not allow it, see [`require`].
    pub fn new(name: &str, bytes: usize) -> Result<Self, Skipped> {
        let why = |why| format!("no control group with a memory limit can be made here: {why}");
        require(Need::Cgroup, Self::make(name, bytes).map_err(why))
    }

    /// Returns a script of `sh -c SCRIPT sh PROGRAM ARGS...` that runs a program in the group.
    pub fn enter(&self) -> String {
        format!("echo $$ > '{}/cgroup.procs' && exec \"$@\"", self.0.display())
    }

    fn make(name: &str, bytes: usize) -> Result<Self, String> {
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let path_of =
            |prefix: &str| own.lines().find_map(|line| line.split_once(prefix)).map(|(_, path)| path);
        let (parent, limit) = match (path_of(":memory:"), path_of("0::")) {
            (Some(path), _) => (format!("/sys/fs/cgroup/memory{path}"), "memory.limit_in_bytes"),
            (None, Some(path)) => (format!("/sys/fs/cgroup{path}"), "memory.max"),
            (None, None) => return Err("this process is in no control group".to_owned()),
        };
        let folder = PathBuf::from(parent).join(format!("dtrain-test-{}-{name}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let group = Self(folder);
        // Without the memory controller this file does not exist and cannot be created.
        let file = group.0.join(limit);
        fs::write(&file, bytes.to_string()).map_err(|error| format!("{}: {error}", file.display()))?;
        // With swap, a kill would need a limit of swap too.
        let swap = fs::read_to_string("/proc/swaps").unwrap_or_default();
        if swap.lines().count() > 1 {
            return Err("this machine swaps".to_owned());
        }
        Ok(group)
    }
}

impl Drop for SmallGroup {
    fn drop(&mut self) {
        // A group is busy for a moment after its last process has ended.
        for _ in 0..200 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            sleep(Duration::from_millis(10));
        }
    }
}
