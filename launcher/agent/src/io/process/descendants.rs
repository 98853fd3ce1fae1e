//! What workers have started and left behind: processes that changed their process group or session outlive a signal to the
//! group. A subreaper gets them as its own children when their parent is gone, and can find and end them.

use super::{descriptors, proc};
use rustix::fs::FileType;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A process in the kernel's hands takes a kill only later; it is not waited for any longer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Who reads the output ends soon after it, unless somebody else holds it open too.
const LAST_LINES: Duration = Duration::from_secs(2);

/// From now on, processes below this one whose parent has gone become its children.
pub fn adopt() -> io::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(Into::into)
}

/// Kills and reaps all children of this process, and those that become its children by that. No child may be waited for.
pub fn end_all() {
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
            reap(child, begun + PATIENCE);
        }
    }
}

fn reap(child: Pid, deadline: Instant) {
    let ended = || rustix::process::waitpid(Some(child), WaitOptions::NOHANG);
    while Instant::now() <= deadline && matches!(ended(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(1));
    }
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

/// Whether this process has children, perhaps such as a shell made before it became this program.
pub fn any() -> bool {
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    rustix::process::waitid(WaitId::All, ended).is_ok()
}

/// Closes standard output and standard error, and waits for those children that read them, as `>(...)` does.
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

/// The children as the kernel lists them, which is quick but may leave one out while others end.
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

/// The children of this process, those that have ended and are not reaped included; none where /proc is not ours.
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

/// The parent in `/proc/PID/stat`: the second field behind the name, which is in parentheses and may hold anything.
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
