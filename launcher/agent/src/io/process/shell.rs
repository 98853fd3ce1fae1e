//! The job as the shell knows it, and whether a shell controls it.

use nix::unistd::getpgid;
use rustix::process::{Pid, Signal};

/// The process group that a shell suspends and continues.
#[derive(Clone, Copy, Debug)]
pub struct ShellJob {
    pub group: Pid,
    /// A process of the job, started by the shell or below such a process.
    member: Pid,
}

impl ShellJob {
    /// Returns the job of a process; `None` if the process is gone.
    pub fn of(member: Pid) -> Option<Self> {
        let group = group_of(member).ok()??;
        Some(Self { group, member })
    }

    /// Returns whether a process could continue the suspended job: a parent of the group, in the same
    /// session. Without one, as in a container or with `ssh host COMMAND`, the kernel does not suspend it.
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

    /// Suspends the job: the launcher and with it all workers.
    pub(super) fn suspend(self, signal: Signal) {
        // Fails if the job has ended.
        let _ = rustix::process::kill_process_group(self.group, signal);
    }
}

/// Returns the process group; `None` if it began outside of this PID namespace and has no number here.
fn group_of(pid: Pid) -> nix::Result<Option<Pid>> {
    let group = getpgid(Some(nix::unistd::Pid::from_raw(pid.as_raw_nonzero().get())))?;
    Ok(Pid::from_raw(group.as_raw()))
}
