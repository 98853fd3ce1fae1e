//! The holder of a lease, and the check whether its process lives.

use std::fs;

use rustix::io::Errno;
use rustix::process::Pid;

use crate::random;

/// The kernel of a holder that cannot read its own.
const UNKNOWN: &str = "unknown";

/// The holder of a lease, as its file names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::run_dir) struct Holder {
    pub(in crate::run_dir) pid: u32,
    /// Start of the process in the kernel's ticks: another process may get its pid later.
    pub(in crate::run_dir) started: u64,
    pub(in crate::run_dir) host: String,
    /// The kernel and namespace of `pid`. If they are unknown, a random text that equals no other.
    pub(in crate::run_dir) namespace: String,
}

impl Holder {
    pub(in crate::run_dir) fn this() -> Self {
        let pid = std::process::id();
        let (started, namespace) = match (start_of(pid), namespace(pid)) {
            (Some(Some(started)), Some(namespace)) => (started, namespace),
            _ => (0, format!("{UNKNOWN}/{:016x}", random::number())),
        };
        Self { pid, started, host: crate::host::name(), namespace }
    }

    /// Returns the file's content at renewal `beat`. Its length is constant, to overwrite in place.
    pub(in crate::run_dir) fn text(&self, beat: u64) -> String {
        let Self { pid, started, host, namespace } = self;
        format!("process {pid} on {host}\nbegan {started} in {namespace}\nbeat {beat:020}\n")
    }

    pub(in crate::run_dir) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let (pid, host) = lines.next()?.strip_prefix("process ")?.split_once(" on ")?;
        let (started, namespace) = lines.next()?.strip_prefix("began ")?.split_once(" in ")?;
        lines.next()?;
        Some(Self {
            pid: pid.parse().ok()?,
            started: started.parse().ok()?,
            host: host.to_owned(),
            namespace: namespace.to_owned(),
        })
    }

    /// Returns whether the process lives; `None` if `here` cannot see it.
    pub(in crate::run_dir) fn is_alive(&self, here: &Self) -> Option<bool> {
        if self.namespace != here.namespace || self.host != here.host {
            return None;
        }
        match start_of(self.pid) {
            Some(started) => Some(started == Some(self.started)),
            // The process may have ended, or /proc may hide it from other users (hidepid).
            None => {
                let pid = Pid::from_raw(self.pid.cast_signed())?;
                (rustix::process::test_kill_process(pid) == Err(Errno::SRCH)).then_some(false)
            }
        }
    }

    /// Returns whether the process runs on the same kernel, perhaps in another container.
    pub(in crate::run_dir) fn is_on_this_kernel(&self, here: &Self) -> bool {
        let kernel = |holder: &Self| holder.namespace.split_once('/').map(|(boot, _)| boot.to_owned());
        kernel(self).is_some_and(|boot| boot != UNKNOWN && Some(boot) == kernel(here))
    }

    pub(in crate::run_dir) fn describe(&self) -> String {
        format!("process {} on {}", self.pid, self.host)
    }
}

/// Returns the kernel and the namespace of process ids; `None` if /proc is absent or of another namespace.
fn namespace(pid: u32) -> Option<String> {
    let counted = fs::read_link("/proc/self").ok()?;
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    let is_known = counted.as_os_str() == pid.to_string().as_str() && !boot.trim().is_empty();
    is_known.then(|| format!("{}/{}", boot.trim(), namespace.display()))
}

/// Returns a process's start in ticks, `Some(None)` if it has ended or is a zombie, `None` if unknown.
fn start_of(pid: u32) -> Option<Option<u64>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold anything; behind it, the state is field 1 and the start time field 20.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let has_ended = matches!(fields.next()?, "Z" | "X");
    let started = fields.nth(18)?.parse().ok()?;
    Some((!has_ended).then_some(started))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_process_is_dead_only_if_that_is_known() {
        let own = Holder::this();
        assert_eq!(own.is_alive(&own), Some(true));
        let earlier = Holder { started: own.started + 1, ..own.clone() };
        assert_eq!(earlier.is_alive(&own), Some(false), "its number is another's");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        let ended = Holder { pid, ..own.clone() };
        assert_eq!(ended.is_alive(&own), Some(false));
        for elsewhere in [
            Holder { namespace: "other/pid:[1]".to_owned(), ..ended.clone() },
            Holder { host: "far".to_owned(), ..ended },
        ] {
            assert_eq!(elsewhere.is_alive(&own), None);
        }
    }

    #[test]
    fn a_lease_names_its_holder() {
        let own = Holder::this();
        assert_eq!(Holder::parse(&own.text(3)), Some(own.clone()));
        for broken in ["", "process 1", &own.text(3)[..20], "\0\0\0\0"] {
            assert_eq!(Holder::parse(broken), None);
        }
    }

    #[test]
    fn unknown_processes_are_all_different() {
        assert_ne!(random::number(), random::number());
        assert_eq!(namespace(std::process::id() + 1), None, "/proc counts otherwise");
    }
}
