//! The processes behind the launcher.
//!
//! A launcher killed by SIGKILL cannot clean up. PR_SET_PDEATHSIG ends its workers, but not their children:
//! data loaders, daemons. So `dtrain launch` is two processes. The first is this guardian: it starts the same
//! command again as the launcher, passes signals to it, returns its exit code, and in the end kills every
//! remaining descendant. If the guardian dies, the launcher ends everything.
//!
//! Before a shell turns a process into `dtrain`, it may give it children: readers of `>(...)`, background
//! jobs before `exec dtrain`. They are not the run's. A process with such children is only a front: it starts
//! the guardian as a separate process, which adopts no older process.
//!
//! As process 1 of a container, the guardian or the front is also the parent of every orphan of `docker exec`, so both
//! reap while the run lasts.

use crate::io::fence::Memory;
use crate::io::output::Message;
use crate::io::process::descriptors::{self, Inherited};
use crate::io::process::handlers::{self, LatestOfJob};
use crate::io::process::{Family, ShellJob, TerminalModes, descendants, sender};
use crate::io::temporary::{Temporary, remove_abandoned_beside};
use crate::io::thread;
use crate::local::{Requests, Way};
use crate::signals;
use anyhow::Context;
use dtrain_common::env::{DTRAIN_FRONT, DTRAIN_GUARDIAN, DTRAIN_LEASE, DTRAIN_TEMPORARY};
use dtrain_common::exit::ExitStatus;
use dtrain_common::log_line::LogFormat;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{self, Command, ExitCode};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A started process handles signals within this time, also on a busy machine.
const BEGINNING: Duration = Duration::from_secs(2);

/// The longest wait for the next process to stop; it may have to start a worker first.
const STOPPING: Duration = Duration::from_secs(5);

/// The roles of a process of `dtrain launch`.
pub enum Role {
    /// The command as started by the user, or again by a front.
    Guardian,
    /// The launcher itself.
    Launcher(GuardianInfo),
    /// A process whose parent was killed before the role could be determined.
    Abandoned,
}

/// The guardian and its environment, as the launcher knows them.
#[derive(Clone, Debug)]
pub struct GuardianInfo {
    pub guardian: Pid,
    /// The job as the shell knows it; `None` if it is gone.
    pub job: Option<ShellJob>,
    /// The folder for temporary files. The guardian removes it.
    pub temporary: PathBuf,
    /// The memory of the [fence](super::fence), which the guardian holds.
    pub lease: PathBuf,
}

/// Returns the role of this process, from variables that workers do not inherit.
pub fn role() -> Role {
    let (front, guardian) = (named(DTRAIN_FRONT), named(DTRAIN_GUARDIAN));
    let follows = |named: Option<Pid>| named.is_some() && rustix::process::getppid() == named;
    let path = |variable| std::env::var_os(variable).map(PathBuf::from);
    match (guardian, front.flatten()) {
        (Some(guardian), front) => match (guardian, path(DTRAIN_TEMPORARY), path(DTRAIN_LEASE)) {
            (Some(guardian), Some(temporary), Some(lease)) if follows(Some(guardian)) => {
                let job = ShellJob::of(front.unwrap_or(guardian));
                Role::Launcher(GuardianInfo { guardian, job, temporary, lease })
            }
            _ => Role::Abandoned,
        },
        (None, None) => Role::Guardian,
        // The kernel kills the guardian with its front, unless the front died before this call.
        (None, front) => {
            let arranged = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            if arranged.is_ok() && follows(front) { Role::Guardian } else { Role::Abandoned }
        }
    }
}

/// Returns the process that a variable names, if the variable is set.
fn named(variable: &str) -> Option<Option<Pid>> {
    let named = std::env::var_os(variable)?;
    Some(named.to_str()?.parse().ok().and_then(Pid::from_raw))
}

/// Runs this command again as the launcher and waits. Signals not in `handled` keep their effect. On several
/// nodes, `has_lease`, a launcher that stands still is killed when its lease has ended. `report` is called after
/// the end of a launcher that was killed, with the number of its member: no process of it runs any more.
pub fn run_guardian(
    handled: &[i32],
    has_lease: bool,
    format: LogFormat,
    report: impl FnOnce(u64),
) -> anyhow::Result<ExitCode> {
    let inherited = descriptors::inherited();
    let own = OsString::from(process::id().to_string());
    let family = Family::default();
    if !has_more_rights_than_its_user() {
        // The launcher and the workers read the lease in this process's memory. If the user cannot read the program file,
        // they could not. This fails never.
        let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable);
    }
    let modes = ShellJob::of(rustix::process::getpid()).and_then(TerminalModes::note);
    let restore_terminal = || modes.iter().for_each(TerminalModes::restore);
    if descendants::any() {
        let code = run_again(&family, handled, inherited, &[(DTRAIN_FRONT, own)], None, format)?;
        descendants::finish_readers();
        restore_terminal();
        return Ok(code);
    }
    descendants::adopt().context("cannot become the parent of orphaned processes")?;
    let temporary = Temporary::make_with(|warning| Message::warning(warning).print(format))?;
    let memory = Memory::create().context("cannot create the memory of the lease")?;
    let variables = [
        (DTRAIN_GUARDIAN, own),
        (DTRAIN_TEMPORARY, temporary.path().into()),
        (DTRAIN_LEASE, memory.path().into()),
    ];
    let fenced = has_lease.then_some(&memory);
    let own_folder = temporary.path().to_owned();
    thread::start("cleanup", move || remove_abandoned_beside(&own_folder))
        .context("cannot start a thread")?;
    let code = run_again(&family, handled, inherited, &variables, fenced, format)?;
    // A reader of the output must not wait for the cleanup.
    descriptors::close_output();
    let is_empty = family.end_orphans();
    // No process is left that could change it again.
    restore_terminal();
    // Of processes that are left, the leader must wait for the end of the lease.
    if let Some(member) = memory.member().filter(|_| is_empty) {
        report(member);
    }
    drop(temporary);
    Ok(code)
}

/// Returns whether the program file gives this process rights that its user does not have.
fn has_more_rights_than_its_user() -> bool {
    let (user, effective) = (rustix::process::getuid(), rustix::process::geteuid());
    let has_capabilities = || rustix::thread::capabilities(None).is_ok_and(|sets| !sets.permitted.is_empty());
    user != effective || !user.is_root() && has_capabilities()
}

/// Starts this command again with these variables, passes signals to it, and returns its exit code. `fenced`: its
/// lease.
fn run_again(
    family: &Family,
    handled: &[i32],
    inherited: Inherited,
    variables: &[(&str, OsString)],
    fenced: Option<&Memory>,
    format: LogFormat,
) -> anyhow::Result<ExitCode> {
    let mut args = std::env::args_os();
    let mut command = Command::new("/proc/self/exe");
    if let Some(name) = args.next() {
        command.arg0(name);
    }
    // Signals are handled before the next process exists, so that no signal ends this process alone.
    let next_process = Arc::new(OnceLock::new());
    let receiver = Arc::clone(&next_process);
    let wanted: Vec<i32> = handled.iter().chain(&signals::JOB).copied().collect();
    let latest = LatestOfJob::watch().context("cannot receive signals")?;
    let relatives = family.clone();
    // The process of the user behind this guardian, if there is another one.
    let front = named(DTRAIN_FRONT).flatten();
    let (mut requests, start_time) = (Requests::default(), Instant::now());
    handlers::listen(&wanted, move |signal, sender| match Signal::from_named_raw(signal) {
        Some(Signal::CHILD) => relatives.reap_orphans(),
        None => {}
        // As the launcher: one request may come directly and by the front.
        Some(_)
            if front.is_some() && signals::URGENT.contains(&signal) && {
                let way = if sender == front { Way::Guardian } else { Way::Direct };
                requests.on(way, start_time.elapsed()).is_none()
            } => {}
        Some(signal) => pass_on(receiver.wait(), signal, sender, &latest),
    })
    .context("cannot receive signals")?;
    command
        .args(args)
        .envs(variables.iter().map(|(name, value)| (name, value)))
        // Ctrl-C at a terminal reaches only the first process, which passes it to each of the others once.
        .process_group(0);
    let mut next = family.start_next(&mut command).context("cannot start the launcher's own process")?;
    // The next process has these files now. A reader at their other end must not wait for this process.
    drop(inherited);
    let Some(pid) = Pid::from_raw(next.id().cast_signed()) else {
        unreachable!("a child's pid is positive");
    };
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())
        .context("cannot watch the launcher's own process")?;
    let _ = next_process.set((pid, pidfd));
    if let Some(memory) = fenced {
        let launcher = Arc::clone(&next_process);
        memory.watch(move || end_still_launcher(launcher.wait(), format)).context("cannot start a thread")?;
    }
    let status = next.wait().context("cannot wait for the launcher's own process")?;
    Ok(exit_code(next.id(), status, format))
}

/// Kills a launcher that stands still, and so its workers.
fn end_still_launcher((_, pidfd): &(Pid, OwnedFd), format: LogFormat) {
    Message::error(
        "dtrain: the launcher stood still until its lease ended: it and its workers are killed, because the other nodes \
         continue without them",
    )
    .print(format);
    // Fails only if the launcher has ended.
    let _ = rustix::process::pidfd_send_signal(pidfd, Signal::KILL);
}

/// Passes a signal to the next process. A signal that suspends the job also suspends this process.
fn pass_on((pid, pidfd): &(Pid, OwnedFd), signal: Signal, sender: Option<Pid>, latest: &LatestOfJob) {
    // The launcher names the sender of a signal to the workers, and must know this process as that of a request to stop.
    let sender = sender.filter(|_| signals::FORWARD.contains(&signal.as_raw()));
    // Fails only if the next process has ended: no receiver is left.
    let send = || {
        let _ = sender::pass_on(pidfd.as_fd(), signal, sender);
    };
    if !signals::SUSPEND.contains(&signal.as_raw()) {
        wait_for_handler(*pid, signal);
        send();
    } else if ShellJob::of(rustix::process::getpid()).is_some_and(ShellJob::is_under_a_shell)
        && !latest.is_continue()
    {
        send();
        // The shell's prompt appears when this process stops, after the last line of output.
        if stops(*pid, STOPPING, || latest.is_continue()) {
            handlers::stop_this_process();
        }
    }
}

/// Waits until a new process has a handler for the signal; without a handler the signal would kill it.
fn wait_for_handler(pid: Pid, signal: Signal) {
    let start_time = Instant::now();
    let pid = pid.as_raw_nonzero().get().cast_unsigned();
    while !handlers::is_handled_by(pid, signal.as_raw()) && start_time.elapsed() < BEGINNING {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns true if the process stops, or still runs after `patience`; false if it ends, or `is_over`.
fn stops(pid: Pid, patience: Duration, is_over: impl Fn() -> bool) -> bool {
    let start_time = Instant::now();
    let change =
        WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    while !is_over() {
        match rustix::process::waitid(WaitId::Pid(pid), change) {
            Ok(Some(status)) => return status.stopping_signal().is_some() && !is_over(),
            Ok(None) if start_time.elapsed() < patience => std::thread::sleep(Duration::from_millis(2)),
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
    false
}

fn exit_code(pid: u32, status: process::ExitStatus, format: LogFormat) -> ExitCode {
    if let Some(code) = status.code() {
        return ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX));
    }
    let signal = status.signal().unwrap_or(signals::KILL);
    Message::error(format!(
        "dtrain: the launcher (pid {pid}) was killed by {}; all its processes are ended",
        signals::name(signal)
    ))
    .print(format);
    ExitStatus::Signal(signal).into()
}

/// Calls `abandoned` on a new thread when the guardian dies.
pub fn watch(guardian: Pid, abandoned: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let pidfd = match rustix::process::pidfd_open(guardian, PidfdFlags::empty()) {
        Ok(pidfd) => Some(pidfd),
        Err(rustix::io::Errno::SRCH) => None,
        Err(error) => return Err(error.into()),
    };
    thread::start("guardian", move || {
        // A readable descriptor means ended. The pid may be another process's if the guardian died before.
        while let Some(pidfd) = &pidfd
            && rustix::process::getppid() == Some(guardian)
            && rustix::event::poll(&mut [PollFd::new(pidfd, PollFlags::IN)], None)
                .is_err_and(|error| error == rustix::io::Errno::INTR)
        {}
        abandoned();
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_process_that_ends_instead_of_stopping_has_not_stopped() {
        for (script, signal, expected) in [
            ("trap 'exit 0' TSTP; while :; do sleep 0.01; done", Signal::TSTP, false),
            ("exec sleep 600", Signal::STOP, true),
        ] {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
            if !expected {
                wait_for_handler(pid, signal);
            }
            rustix::process::kill_process(pid, signal).unwrap();
            assert_eq!(stops(pid, Duration::from_secs(60), || false), expected);
            let _ = child.kill();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_process_that_does_not_stop_is_not_waited_for_for_ever() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        assert!(stops(pid, Duration::from_millis(50), || false), "it is only late");
        assert!(!stops(pid, Duration::from_secs(60), || true), "it continues already");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
