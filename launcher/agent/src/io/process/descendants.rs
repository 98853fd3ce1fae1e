//! Processes that workers started and left behind. If they changed their process group or session, a signal
//! to the group misses them. A subreaper adopts them when their parent ends, and can kill them.

use super::{descriptors, proc};
use rustix::fs::FileType;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The longest wait for a killed process: the kernel may delay the kill.
const PATIENCE: Duration = Duration::from_secs(10);
/// The wait for readers of the output; they end soon after it, unless another process holds it open.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Makes this process the new parent of descendants whose parent ends.
pub fn adopt() -> io::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(Into::into)
}

/// Kills and reaps all children, and new ones adopted meanwhile, except `stuck` ones, which got SIGKILL and do not end. No
/// other thread may wait for a child. Returns whether no other child is left; false if /proc does not show the children.
pub fn end_all(stuck: &[Pid]) -> bool {
    let start_time = Instant::now();
    loop {
        let mut children = children();
        children.retain(|child| !stuck.contains(child));
        if children.is_empty() {
            return proc::is_ours();
        }
        if start_time.elapsed() > PATIENCE {
            return false;
        }
        for &child in &children {
            // The child is not reaped yet, so its pid belongs to no other process.
            let _ = rustix::process::kill_process(child, Signal::KILL);
        }
        for child in children {
            reap(child, start_time + PATIENCE);
        }
    }
}

/// Reaps a child, and returns whether it has ended by the deadline.
pub(super) fn reap(child: Pid, deadline: Instant) -> bool {
    // An error: the child is reaped, or cannot be.
    let runs = || matches!(rustix::process::waitpid(Some(child), WaitOptions::NOHANG), Ok(None));
    while runs() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

pub(super) fn parent_of(pid: Pid) -> Option<Pid> {
    if pid == rustix::process::getpid() {
        return rustix::process::getppid();
    }
    let stat = fs::read_to_string(file(pid, "stat")?).ok()?;
    Pid::from_raw(parent(&stat)?)
}

fn file(pid: Pid, name: &str) -> Option<PathBuf> {
    proc::folder(pid.as_raw_nonzero().get().cast_unsigned()).map(|folder| folder.join(name))
}

/// Returns whether this process has children, perhaps made by a shell before it became this program.
pub fn any() -> bool {
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    rustix::process::waitid(WaitId::All, ended).is_ok()
}

/// Closes standard output and standard error, and waits for children that read them, as `>(...)` does.
pub fn finish_readers() {
    let identity = |pipe: BorrowedFd<'_>| {
        let stat = rustix::fs::fstat(pipe).ok()?;
        let is_pipe = FileType::from_raw_mode(stat.st_mode).is_fifo();
        is_pipe.then_some((stat.st_dev, stat.st_ino))
    };
    let written = [identity(io::stdout().as_fd()), identity(io::stderr().as_fd())];
    let reads = |child: &Pid| {
        let input = file(*child, "fd/0").and_then(|input| fs::metadata(input).ok());
        input.is_some_and(|input| written.contains(&Some((input.dev(), input.ino()))))
    };
    let readers: Vec<Pid> = children().into_iter().filter(reads).collect();
    descriptors::close_output();
    let deadline = Instant::now() + LAST_LINES;
    for reader in readers {
        reap(reader, deadline);
    }
}

/// Returns the kernel's list of children: fast, but it may miss a child while others end.
pub(super) fn listed_children() -> Vec<Pid> {
    let Some(threads) = fs::read_dir("/proc/self/task").ok().filter(|_| proc::is_ours()) else {
        return Vec::new();
    };
    let lists = threads.flatten().map(|thread| thread.path().join("children"));
    let mut children = Vec::new();
    for list in lists.filter_map(|list| fs::read_to_string(list).ok()) {
        let pids = list.split_whitespace().filter_map(|pid| pid.parse().ok());
        children.extend(pids.filter_map(Pid::from_raw));
    }
    children
}

/// Returns all children, also unreaped ones; no child if /proc belongs to another PID namespace.
fn children() -> Vec<Pid> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let Some(entries) = fs::read_dir("/proc").ok().filter(|_| proc::is_ours()) else {
        return Vec::new();
    };
    let child = |entry: io::Result<fs::DirEntry>| {
        let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        (parent(&stat)? == own).then(|| Pid::from_raw(pid))?
    };
    entries.filter_map(child).collect()
}

/// Returns the parent in `/proc/PID/stat`: the second field after the name in parentheses.
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
