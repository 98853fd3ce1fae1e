//! The job as the shell knows it, and whether there is a shell that controls it.

use nix::unistd::getpgid;
use rustix::process::{Pid, Signal};

/// The process group that a shell suspends and continues.
#[derive(Clone, Copy, Debug)]
pub struct ShellJob {
    /// Its id.
    pub group: Pid,
    /// A process of it that the shell has started, or one below it.
    member: Pid,
}

impl ShellJob {
    /// The job of a process; none where that is gone.
    pub fn of(member: Pid) -> Option<Self> {
        let group = group_of(member).ok()??;
        Some(Self { group, member })
    }

    /// Whether there is a process that could continue the job after it was suspended: the parent of one of the group, in the
    /// same session. Without one, as in a container or with `ssh host COMMAND`, the kernel suspends nobody either.
    pub fn is_under_a_shell(self) -> bool {
        let mut above = super::descendants::parent_of(self.member);
        while let Some(pid) = above {
            match group_of(pid) {
                Ok(Some(other)) if other == self.group => above = super::descendants::parent_of(pid),
                Ok(_) => {
                    let other = nix::unistd::Pid::from_raw(pid.as_raw_nonzero().get());
                    let session = nix::unistd::getsid(None);
                    return session.is_ok() && nix::unistd::getsid(Some(other)) == session;
                }
                Err(_) => return false,
            }
        }
        false
    }

    /// Suspends it, and by that the launcher and all workers.
    pub(super) fn suspend(self, signal: Signal) {
        // It fails when the job has ended.
        let _ = rustix::process::kill_process_group(self.group, signal);
    }
}

/// The process group; none for one that began outside of this PID namespace, where it has no number.
fn group_of(pid: Pid) -> nix::Result<Option<Pid>> {
    let group = getpgid(Some(nix::unistd::Pid::from_raw(pid.as_raw_nonzero().get())))?;
    Ok(Pid::from_raw(group.as_raw()))
}
