//! Other processes in /proc. In a /proc of another PID namespace, as `unshare --pid` leaves it, the same number is a stranger's.

use std::fs;
use std::path::PathBuf;

/// Whether /proc counts processes as this process does.
pub(super) fn is_ours() -> bool {
    let own = std::process::id().to_string();
    fs::read_link("/proc/self").is_ok_and(|number| number.as_os_str() == own.as_str())
}

/// The process's folder in /proc, also of one that has ended; none where /proc is not ours.
pub(super) fn folder(pid: u32) -> Option<PathBuf> {
    is_ours().then(|| PathBuf::from(format!("/proc/{pid}")))
}
