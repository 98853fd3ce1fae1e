//! The process that stands behind the launcher.
//!
//! A launcher that is killed by SIGKILL (`kill -9`, the memory killer) can clean up nothing. Its workers die with it, by
//! PR_SET_PDEATHSIG, but what they have started does not: data loaders, daemons. So `dtrain launch` is two processes. The
//! first is this guardian: it starts the same command once more as the launcher proper, passes signals on to it and its exit
//! code back, and when the launcher has ended, however that came about, ends every process that is left below it. Should the
//! guardian itself be killed, the launcher notices and ends everything.

use crate::process::{descendants, signals};
use anyhow::Context;
use dtrain_common::env::DTRAIN_GUARDIAN;
use dtrain_common::exit::ExitStatus;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode};

/// What this process is.
pub(crate) enum Role {
    /// The command as the user started it.
    Guardian,
    /// The launcher proper, with this guardian behind it.
    Launcher(Pid),
    /// A launcher whose guardian was killed before this could be asked.
    Abandoned,
}

/// Which of the two this process is. Workers do not inherit the variable that tells it.
pub(crate) fn role() -> Role {
    let Some(named) = std::env::var_os(DTRAIN_GUARDIAN) else {
        return Role::Guardian;
    };
    match rustix::process::getppid() {
        Some(parent) if named.to_str() == Some(&parent.as_raw_nonzero().to_string()) => {
            Role::Launcher(parent)
        }
        _ => Role::Abandoned,
    }
}

/// Runs this command as the launcher proper, and stays behind it. Signals that are not `handled` do to the guardian what they do
/// to any program, and the launcher then ends everything.
///
/// # Errors
/// The launcher cannot be started.
pub(crate) fn stand_behind(handled: &[i32]) -> anyhow::Result<ExitCode> {
    descendants::adopt().context("cannot become the parent of processes that are left behind")?;
    let mut args = std::env::args_os();
    let mut command = Command::new("/proc/self/exe");
    if let Some(name) = args.next() {
        command.arg0(name);
    }
    let mut launcher = command
        .args(args)
        .env(DTRAIN_GUARDIAN, std::process::id().to_string())
        // A terminal's Ctrl-C reaches the guardian alone, and through it the launcher once.
        .process_group(0)
        .spawn()
        .context("cannot start the launcher's own process")?;
    let Some(pid) = Pid::from_raw(launcher.id().cast_signed()) else {
        unreachable!("a child's pid is positive");
    };
    signals::listen(handled, move |signal| {
        if let Some(signal) = Signal::from_named_raw(signal) {
            // It fails only when the launcher has ended, and then there is nobody to be told.
            let _ = rustix::process::kill_process(pid, signal);
        }
    })
    .context("cannot receive signals")?;
    let status = launcher
        .wait()
        .context("cannot wait for the launcher's own process")?;
    descendants::end_all();
    Ok(match (status.code(), status.signal()) {
        (Some(code), _) => ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, signal) => {
            let signal = signal.unwrap_or(signals::KILL);
            let _ = writeln!(
                io::stderr(),
                "dtrain: the launcher (pid {pid}) was killed by {}; its workers and what they had started were ended",
                signals::name(signal)
            );
            ExitStatus::Signal(signal).into()
        }
    })
}

/// Calls `abandoned` when the guardian dies, on a thread of its own.
///
/// # Errors
/// The guardian cannot be watched, or the thread not be started.
pub(crate) fn watch(guardian: Pid, abandoned: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let pidfd = match rustix::process::pidfd_open(guardian, PidfdFlags::empty()) {
        Ok(pidfd) => Some(pidfd),
        Err(rustix::io::Errno::SRCH) => None,
        Err(error) => return Err(error.into()),
    };
    std::thread::Builder::new()
        .name("guardian".to_owned())
        .stack_size(crate::process::SMALL_STACK)
        .spawn(move || {
            // Readable means ended. Should the guardian have died before it was opened, its pid may be another's by now.
            while let Some(pidfd) = &pidfd
                && rustix::process::getppid() == Some(guardian)
                && rustix::event::poll(&mut [PollFd::new(pidfd, PollFlags::IN)], None)
                    .is_err_and(|error| error == rustix::io::Errno::INTR)
            {}
            abandoned();
        })?;
    Ok(())
}
