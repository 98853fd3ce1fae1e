//! The memory that is free for this process.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the free memory of the host in bytes, or of a control group if that is less; 0 if unknown.
pub fn free_host_bytes() -> u64 {
    at(Path::new("/"))
}

/// Returns the same for a machine whose files are below `root`.
fn at(root: &Path) -> u64 {
    let system = fs::read_to_string(root.join("proc/meminfo")).ok();
    let system = system.as_deref().and_then(meminfo);
    system.into_iter().chain(groups(root).into_iter().filter_map(|folder| left(&folder))).min().unwrap_or(0)
}

/// Reads MemAvailable of /proc/meminfo, in bytes.
fn meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the folders of this process's control groups, innermost first: version 2, and version 1's memory
/// controller. Inside a container only the root of the tree may be visible.
fn groups(root: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut folders = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let tree = if controllers.is_empty() {
            "sys/fs/cgroup"
        } else if controllers.split(',').any(|it| it == "memory") {
            "sys/fs/cgroup/memory"
        } else {
            continue;
        };
        let own = Path::new(path.trim_start_matches('/'));
        folders.extend(own.ancestors().map(|group| root.join(tree).join(group)));
    }
    folders
}

/// Returns the rest of a group's limit in bytes, if it has one. The inactive file cache counts as free.
fn left(folder: &Path) -> Option<u64> {
    let number =
        |name: &str| -> Option<u64> { fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok() };
    let limit = number("memory.max").or_else(|| number("memory.limit_in_bytes"))?;
    let used = number("memory.current").or_else(|| number("memory.usage_in_bytes"))?;
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let cached = stat.lines().find_map(|line| {
        line.strip_prefix("inactive_file ").or_else(|| line.strip_prefix("total_inactive_file "))
    });
    let cached = cached.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

#[cfg(test)]
mod tests;
