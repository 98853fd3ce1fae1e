//! What workers have started and left behind: processes that changed their process group or session (daemons, data loaders of a
//! worker that was killed) outlive a signal to the group. A subreaper gets them as its own children when their parent is
//! gone, and can find and end them.

use rustix::process::{Pid, Signal, WaitOptions};
use std::fs;
use std::io;
use std::time::{Duration, Instant};

/// A process in the kernel's hands (a hanging disk, a driver) takes a kill only later; it is not waited for any longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// From now on, processes below this one whose parent has gone become its children.
///
/// # Errors
/// The system has no such thing (Linux before 3.4).
pub(crate) fn adopt() -> io::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(Into::into)
}

/// Kills and reaps all children of this process, and those that become its children by that. Call it when no child is
/// needed or waited for any more.
pub(crate) fn end_all() {
    let begun = Instant::now();
    loop {
        let children = children();
        if children.is_empty() || begun.elapsed() > PATIENCE {
            return;
        }
        for &child in &children {
            // Not reaped yet, so the pid is no stranger's.
            let _ = rustix::process::kill_process(child, Signal::KILL);
        }
        for child in children {
            while begun.elapsed() <= PATIENCE
                && matches!(
                    rustix::process::waitpid(Some(child), WaitOptions::NOHANG),
                    Ok(None)
                )
            {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// The children of this process, those that have ended and are not reaped included.
fn children() -> Vec<Pid> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            (parent(&stat)? == own).then(|| Pid::from_raw(pid))?
        })
        .collect()
}

/// The parent in a line of `/proc/PID/stat`: the second field behind the name, which stands in parentheses and may hold
/// anything.
fn parent(stat: &str) -> Option<i32> {
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_parent_is_found_behind_any_name() {
        assert_eq!(parent("12 (sh) S 7 12 12 0 -1"), Some(7));
        assert_eq!(parent("12 (a) b) (c) R 9 12"), Some(9));
        assert_eq!(parent("12 (sh"), None);
        assert_eq!(parent(""), None);
    }

    #[test]
    fn a_child_is_found() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        assert!(children().contains(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!children().contains(&pid));
    }
}
