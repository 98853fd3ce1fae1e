//! Signal handling of the launcher and of other processes.

use super::proc;
use crate::signals::{CHLD, CONT, JOB};
use nix::sys::signal::SigSet;
use rustix::process::{Pid, Signal};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// SIGXFSZ: a file would exceed the size limit.
const XFSZ: i32 = Signal::XFSZ.as_raw();

/// Calls `deliver` on a new thread for SIGCHLD and every signal of `wanted`, with the process that sent it, if the kernel
/// names one. After the return, none of them kills the launcher.
///
/// A signal that was ignored at the launcher's start stays ignored: `nohup` and the shell's `&` use that for
/// runs that outlive their terminal. Only SIGCHLD must not be ignored, or the workers' outcomes are lost.
pub fn listen(wanted: &[i32], mut deliver: impl FnMut(i32, Option<Pid>) + Send + 'static) -> io::Result<()> {
    let mut received = SignalsInfo::<WithOrigin>::new(heeded(wanted).chain([CHLD]))?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for origin in received.forever() {
            deliver(origin.signal, origin.process.and_then(|sender| Pid::from_raw(sender.pid)));
        }
    })?;
    Ok(())
}

/// The latest signal of [`JOB`] that this process has received. Handlers may run late.
#[derive(Clone, Debug)]
pub struct LatestOfJob(Arc<AtomicUsize>);

impl LatestOfJob {
    /// Starts recording. Call it before [`listen`].
    pub fn watch() -> io::Result<Self> {
        let latest = Arc::<AtomicUsize>::default();
        for signal in heeded(&JOB) {
            signal_hook::flag::register_usize(signal, Arc::clone(&latest), number(signal))?;
        }
        Ok(Self(latest))
    }

    /// Returns whether the latest was SIGCONT: an earlier request to suspend the job is then outdated.
    pub fn is_continue(&self) -> bool {
        self.0.load(Ordering::SeqCst) == number(CONT)
    }
}

fn number(signal: i32) -> usize {
    signal.unsigned_abs() as usize
}

/// Returns the signals that were not ignored when this program started.
fn heeded(wanted: &[i32]) -> impl Iterator<Item = i32> {
    let ignored = ignored_at_start();
    let is_heeded = move |signal: &i32| ignored & (1 << (signal - 1)) == 0;
    wanted.iter().copied().filter(is_heeded)
}

/// Suspends all threads of this process until SIGCONT.
pub fn stop_this_process() {
    // A process may always signal itself.
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
}

/// Lets this thread and its later threads write to the terminal from the background and lend it, also after
/// `stty tostop`. Programs started by them inherit that, see `let_the_terminal_stop_it`.
pub fn write_to_any_terminal() -> io::Result<()> {
    terminal_output().thread_block().map_err(Into::into)
}

/// Undoes [`write_to_any_terminal`] for a new program; may be called between fork and exec.
pub(super) fn let_the_terminal_stop_it() -> io::Result<()> {
    terminal_output().thread_unblock().map_err(Into::into)
}

fn terminal_output() -> SigSet {
    SigSet::from(nix::sys::signal::Signal::SIGTTOU)
}

/// Returns whether the process handles or blocks the signal, and so survives it; true if unknown.
pub fn is_handled_by(pid: u32, signal: i32) -> bool {
    let Some(status) = status(pid) else {
        return true;
    };
    let has = |set: &str| parse_set(&status, set).is_some_and(|set| set & (1 << (signal - 1)) != 0);
    has("SigCgt:") || has("SigBlk:")
}

/// Returns whether the signal stops the process: it neither ignores, blocks nor handles the signal.
pub(super) fn is_stopped_by(pid: Pid, signal: Signal) -> bool {
    let status = status(pid.as_raw_nonzero().get().cast_unsigned()).unwrap_or_default();
    let is_free = |set| parse_set(&status, set).is_some_and(|set| set & (1 << (signal.as_raw() - 1)) == 0);
    ["SigIgn:", "SigBlk:", "SigCgt:"].into_iter().all(is_free)
}

/// Makes writes beyond `ulimit -f` fail like on a full disk. New programs get the default signal action.
pub fn survive_file_size_limit() -> io::Result<()> {
    if ignored_at_start() & (1 << (XFSZ - 1)) == 0 {
        signal_hook::flag::register(XFSZ, Arc::default())?;
    }
    Ok(())
}

/// Returns the ignored signals as a bit mask (bit n-1 is signal n); 0 if they cannot be read.
fn ignored_at_start() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    parse_set(&status, "SigIgn:").unwrap_or(0)
}

fn status(pid: u32) -> Option<String> {
    std::fs::read_to_string(proc::folder(pid)?.join("status")).ok()
}

fn parse_set(status: &str, set: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix(set))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signals::USR2;

    #[test]
    fn the_ignored_set_is_read_from_the_status_file() {
        // HUP (bit 0) and PIPE (bit 12).
        assert_eq!(parse_set("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t0\n", "SigIgn:"), Some(0x1001));
        assert_eq!(parse_set("Name:\tx\n", "SigIgn:"), None);
    }

    #[test]
    fn the_last_of_suspend_and_continue_counts() {
        let latest = LatestOfJob::watch().ok();
        let signals = [Signal::CONT, Signal::TSTP, Signal::CONT, Signal::TTIN];
        // Each changes the answer, so that its handler has run before the next signal.
        for (signal, is_continue) in signals.into_iter().zip([true, false, true, false]) {
            assert!(rustix::process::kill_process(rustix::process::getpid(), signal).is_ok());
            let start_time = std::time::Instant::now();
            // The kernel may interrupt another thread.
            while latest.as_ref().map(LatestOfJob::is_continue) != Some(is_continue) {
                assert!(start_time.elapsed() < std::time::Duration::from_secs(30), "{signal:?}");
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_process_has_a_handler_from_when_it_makes_one() {
        let own = std::process::id();
        let start_time = std::time::Instant::now();
        // While the main thread starts another thread, it blocks all signals.
        while is_handled_by(own, USR2) {
            assert!(start_time.elapsed() < std::time::Duration::from_secs(30));
            std::thread::yield_now();
        }
        assert!(signal_hook::flag::register(USR2, Arc::default()).is_ok());
        assert!(is_handled_by(own, USR2));
        assert!(is_handled_by(u32::MAX, USR2), "one that is gone does not die of it");
    }
}
