//! Signals by number: those that the launcher handles, and the names of all.

use rustix::process::Signal;

pub const HUP: i32 = Signal::HUP.as_raw();
pub const INT: i32 = Signal::INT.as_raw();
pub const QUIT: i32 = Signal::QUIT.as_raw();
pub const ABRT: i32 = Signal::ABORT.as_raw();
pub const KILL: i32 = Signal::KILL.as_raw();
pub const TERM: i32 = Signal::TERM.as_raw();
pub const CHLD: i32 = Signal::CHILD.as_raw();
pub const USR1: i32 = Signal::USR1.as_raw();
pub const USR2: i32 = Signal::USR2.as_raw();

/// Signals that ask the launcher to stop.
pub const STOP: [i32; 4] = [INT, TERM, HUP, QUIT];
/// Those of which a second one kills.
pub const URGENT: [i32; 2] = [INT, TERM];

/// Returns whether a signal to stop adds nothing to an earlier one.
pub fn is_same_request(first: i32, signal: i32) -> bool {
    URGENT.contains(&first) || !URGENT.contains(&signal)
}

/// Signals that are only passed on.
pub const FORWARD: [i32; 2] = [USR1, USR2];
/// Signals that suspend a job: Ctrl-Z, and the use of the terminal from the background.
pub const SUSPEND: [i32; 3] = [Signal::TSTP.as_raw(), Signal::TTIN.as_raw(), Signal::TTOU.as_raw()];
pub const CONT: i32 = Signal::CONT.as_raw();
/// Signals by which a shell controls its jobs.
pub const JOB: [i32; 4] = [SUSPEND[0], SUSPEND[1], SUSPEND[2], CONT];

/// Returns the signal's name, such as `SIGKILL`, or `signal 37` for a signal without a name.
pub fn name(signal: i32) -> String {
    let known = nix::sys::signal::Signal::try_from(signal);
    known.map_or_else(|_| format!("signal {signal}"), |known| known.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_common_signal_has_its_name() {
        for (signal, expected) in [(HUP, "SIGHUP"), (KILL, "SIGKILL"), (6, "SIGABRT"), (11, "SIGSEGV")] {
            assert_eq!(name(signal), expected);
        }
        assert_eq!(name(37), "signal 37");
        assert_eq!((1..=31).filter(|n| name(*n).starts_with("signal")).count(), 0);
    }
}
