//! Signals: their numbers and names, and the thread that listens for those sent to the launcher.

use super::proc;
use nix::sys::signal::SigSet;
use rustix::process::{Pid, Signal};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// SIGHUP: the terminal went away.
pub(crate) const HUP: i32 = Signal::HUP.as_raw();
/// SIGINT: Ctrl-C.
pub(crate) const INT: i32 = Signal::INT.as_raw();
/// SIGQUIT: Ctrl-\.
pub(crate) const QUIT: i32 = Signal::QUIT.as_raw();
/// SIGABRT: a program that can say where it is does so.
pub(crate) const ABRT: i32 = Signal::ABORT.as_raw();
/// SIGKILL: ends a process at once.
pub(crate) const KILL: i32 = Signal::KILL.as_raw();
/// SIGTERM: please stop.
pub(crate) const TERM: i32 = Signal::TERM.as_raw();
/// SIGCHLD: a child ended.
pub(crate) const CHLD: i32 = Signal::CHILD.as_raw();
/// SIGXFSZ: a file would be larger than allowed.
const XFSZ: i32 = Signal::XFSZ.as_raw();
/// SIGUSR1: for the workers.
pub(crate) const USR1: i32 = Signal::USR1.as_raw();
/// SIGUSR2: for the workers.
pub(crate) const USR2: i32 = Signal::USR2.as_raw();

/// Signals that ask the launcher to stop.
pub(crate) const STOP: [i32; 4] = [INT, TERM, HUP, QUIT];
/// Signals that are only passed on.
pub(crate) const FORWARD: [i32; 2] = [USR1, USR2];
/// Signals that suspend a job: Ctrl-Z, and the use of the terminal from the background.
pub(crate) const SUSPEND: [i32; 3] = [
    Signal::TSTP.as_raw(),
    Signal::TTIN.as_raw(),
    Signal::TTOU.as_raw(),
];
/// SIGCONT: a suspended job goes on.
pub(crate) const CONT: i32 = Signal::CONT.as_raw();
/// Signals by which a shell controls its jobs.
pub(crate) const JOB: [i32; 4] = [SUSPEND[0], SUSPEND[1], SUSPEND[2], CONT];

/// The signal's name, such as `SIGKILL`, or `signal 37` for one that has none.
pub(crate) fn name(signal: i32) -> String {
    const NAMED: [(Signal, &str); 31] = [
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::USR1, "SIGUSR1"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::USR2, "SIGUSR2"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::TERM, "SIGTERM"),
        (Signal::STKFLT, "SIGSTKFLT"),
        (Signal::CHILD, "SIGCHLD"),
        (Signal::CONT, "SIGCONT"),
        (Signal::STOP, "SIGSTOP"),
        (Signal::TSTP, "SIGTSTP"),
        (Signal::TTIN, "SIGTTIN"),
        (Signal::TTOU, "SIGTTOU"),
        (Signal::URG, "SIGURG"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::XFSZ, "SIGXFSZ"),
        (Signal::VTALARM, "SIGVTALRM"),
        (Signal::PROF, "SIGPROF"),
        (Signal::WINCH, "SIGWINCH"),
        (Signal::IO, "SIGIO"),
        (Signal::POWER, "SIGPWR"),
        (Signal::SYS, "SIGSYS"),
    ];
    NAMED
        .iter()
        .find(|(known, _)| known.as_raw() == signal)
        .map_or_else(|| format!("signal {signal}"), |(_, name)| (*name).to_owned())
}

/// Calls `deliver` with the number of every signal of `wanted` that the launcher receives, on a thread of its own.
/// From its return on, none of them kills the launcher. `wanted` is a choice of [`STOP`], [`FORWARD`] and [`JOB`]; `deliver`
/// also hears of SIGCHLD.
///
/// A signal that was ignored when the launcher started stays ignored: that is how `nohup` and the shell's `&` ask
/// for a run that outlives its terminal, and the workers inherit the same. Only SIGCHLD must not stay ignored, or
/// the system would throw away how the workers ended.
///
/// # Errors
/// A handler cannot be installed, or the thread cannot be started.
pub(crate) fn listen(wanted: &[i32], deliver: impl Fn(i32) + Send + 'static) -> io::Result<()> {
    let mut received = signal_hook::iterator::Signals::new(heeded(wanted).chain([CHLD]))?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in received.forever() {
                deliver(signal);
            }
        })?;
    Ok(())
}

/// The latest of the signals of [`JOB`] that this process has received. Whoever handles one of them may be late.
#[derive(Clone, Debug)]
pub(crate) struct LatestOfJob(Arc<AtomicUsize>);

impl LatestOfJob {
    /// From now on. Call it before [`listen`].
    ///
    /// # Errors
    /// A handler cannot be installed.
    pub(crate) fn watch() -> io::Result<Self> {
        let latest = Arc::<AtomicUsize>::default();
        for signal in heeded(&JOB) {
            signal_hook::flag::register_usize(signal, Arc::clone(&latest), number(signal))?;
        }
        Ok(Self(latest))
    }

    /// Whether it was SIGCONT: to suspend the job before it was not meant for now.
    pub(crate) fn is_continue(&self) -> bool {
        self.0.load(Ordering::SeqCst) == number(CONT)
    }
}

fn number(signal: i32) -> usize {
    signal.unsigned_abs() as usize
}

/// Those that were not ignored when this program started.
fn heeded(wanted: &[i32]) -> impl Iterator<Item = i32> {
    let ignored = ignored_at_start();
    wanted
        .iter()
        .copied()
        .filter(move |signal| ignored & (1 << (signal - 1)) == 0)
}

/// Suspends this process, all its threads, until it gets SIGCONT.
pub(crate) fn stop_this_process() {
    // A process may always signal itself.
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
}

/// From its return on, this thread and those that it starts may write to the terminal and lend it although their process group
/// is not the terminal's, also after `stty tostop`. Programs that they start inherit that, see [`let_the_terminal_stop_it`].
///
/// # Errors
/// The system refuses to change the set of blocked signals.
pub(crate) fn write_to_any_terminal() -> io::Result<()> {
    let mut output = SigSet::empty();
    output.add(nix::sys::signal::Signal::SIGTTOU);
    output.thread_block().map_err(Into::into)
}

/// Undoes [`write_to_any_terminal`] for a program that is about to be executed; may be called between fork and exec.
///
/// # Errors
/// The system refuses to change the set of blocked signals.
pub(super) fn let_the_terminal_stop_it() -> io::Result<()> {
    let mut output = SigSet::empty();
    output.add(nix::sys::signal::Signal::SIGTTOU);
    output.thread_unblock().map_err(Into::into)
}

/// Whether the process has a handler for the signal, or holds it back to fetch it: it does not die of it. Also where nobody knows.
pub(crate) fn is_handled_by(pid: u32, signal: i32) -> bool {
    let Some(status) = status(pid) else {
        return true;
    };
    let has = |set: &str| parse_set(&status, set).is_some_and(|set| set & (1 << (signal - 1)) != 0);
    has("SigCgt:") || has("SigBlk:")
}

/// Whether the signal stops the process: it neither ignores it, nor holds it back, nor has a handler for it. Not where nobody knows.
pub(super) fn is_stopped_by(pid: Pid, signal: Signal) -> bool {
    let status = status(pid.as_raw_nonzero().get().cast_unsigned()).unwrap_or_default();
    let is_free = |set| parse_set(&status, set).is_some_and(|set| set & (1 << (signal.as_raw() - 1)) == 0);
    ["SigIgn:", "SigBlk:", "SigCgt:"].into_iter().all(is_free)
}

/// From its return on, writing a file beyond the limit of file sizes (`ulimit -f`) fails as on a full disk, which can
/// be told, and no longer kills the launcher. A handler is not inherited through exec: programs start with the
/// signal as it was.
///
/// # Errors
/// The handler cannot be installed.
pub(crate) fn survive_file_size_limit() -> io::Result<()> {
    if ignored_at_start() & (1 << (XFSZ - 1)) == 0 {
        signal_hook::flag::register(XFSZ, Arc::default())?;
    }
    Ok(())
}

/// The set of ignored signals as a bit mask (bit n-1 is signal n); none where it cannot be read.
fn ignored_at_start() -> u64 {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| parse_set(&status, "SigIgn:"))
        .unwrap_or(0)
}

fn status(pid: u32) -> Option<String> {
    std::fs::read_to_string(proc::folder(pid)?.join("status")).ok()
}

/// One of the sets of signals in a process's status.
fn parse_set(status: &str, set: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix(set))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_common_signal_has_its_name() {
        for (signal, expected) in [
            (HUP, "SIGHUP"),
            (KILL, "SIGKILL"),
            (6, "SIGABRT"),
            (11, "SIGSEGV"),
        ] {
            assert_eq!(name(signal), expected);
        }
        assert_eq!(name(37), "signal 37");
        assert_eq!((1..=31).filter(|n| name(*n).starts_with("signal")).count(), 0);
    }

    #[test]
    fn the_ignored_set_is_read_from_the_status_file() {
        // HUP (bit 0) and PIPE (bit 12).
        assert_eq!(
            parse_set("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t0\n", "SigIgn:"),
            Some(0x1001)
        );
        assert_eq!(parse_set("Name:\tx\n", "SigIgn:"), None);
    }

    #[test]
    fn what_came_last_of_suspending_and_continuing_is_known() {
        let latest = LatestOfJob::watch().ok();
        for (signal, is_continue) in [(Signal::TSTP, false), (Signal::CONT, true), (Signal::TTIN, false)] {
            assert!(rustix::process::kill_process(rustix::process::getpid(), signal).is_ok());
            let begun = std::time::Instant::now();
            // Another thread may be the one that is interrupted.
            while latest.as_ref().map(LatestOfJob::is_continue) != Some(is_continue) {
                assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{signal:?}");
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_process_has_a_handler_from_when_it_makes_one() {
        let own = std::process::id();
        assert!(!is_handled_by(own, USR2));
        assert!(signal_hook::flag::register(USR2, Arc::default()).is_ok());
        assert!(is_handled_by(own, USR2));
        assert!(
            is_handled_by(u32::MAX, USR2),
            "one that is gone does not die of it"
        );
    }
}
