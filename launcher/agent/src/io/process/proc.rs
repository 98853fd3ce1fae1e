//! Other processes in /proc. If /proc is of another PID namespace (`unshare --pid`), its numbers differ.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

/// Returns whether /proc uses the pids of this process's namespace.
pub(super) fn is_ours() -> bool {
    let own = std::process::id().to_string();
    fs::read_link("/proc/self").is_ok_and(|number| number.as_os_str() == own.as_str())
}

/// Returns the process's folder in /proc, also after its end; `None` if /proc is not ours.
pub(super) fn folder(pid: u32) -> Option<PathBuf> {
    is_ours().then(|| PathBuf::from(format!("/proc/{pid}")))
}

/// Returns the path by which other processes of this user open a file of this process, while it is open. They must
/// see the same /proc.
pub(in crate::io) fn path_of(file: &impl AsFd) -> PathBuf {
    let own = fs::read_link("/proc/self").unwrap_or_else(|_| std::process::id().to_string().into());
    PathBuf::from("/proc").join(own).join(format!("fd/{}", file.as_fd().as_raw_fd()))
}
