//! One worker process.

use super::handlers;
use crate::io::thread;
use crate::local::Outcome;
use crate::signals;
use dtrain_common::env::{DTRAIN_FRONT, DTRAIN_GUARDIAN, DTRAIN_TEMPORARY};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// What to start.
#[derive(Clone, Debug)]
pub struct WorkerSpec {
    pub program: PathBuf,
    /// What the program sees as its own name.
    pub arg0: OsString,
    pub args: Vec<OsString>,
    /// Variables in addition to the launcher's own environment.
    pub env: Vec<(&'static str, OsString)>,
    /// The only cores it may use, unless it may use those of the launcher.
    pub cpus: Option<CpuSet>,
    /// Whether it reads the launcher's standard input instead of an empty one.
    pub inherit_stdin: bool,
    /// Whether it writes to the launcher's own standard output instead of a pipe.
    pub inherit_stdout: bool,
}

/// A started worker. Dropping it leaves the process alone; call [`Family::sweep`](super::Family::sweep) once it has ended.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    pub(super) pid: Pid,
}

/// The read ends of a worker's standard output and standard error; none of a stream that is the launcher's own.
pub type Streams = [Option<File>; 2];

impl Worker {
    /// Starts the program in a process group of its own.
    #[expect(unsafe_code, reason = "the one place that acts between fork and exec")]
    pub(super) fn start(spec: &WorkerSpec) -> io::Result<(Self, Streams)> {
        let launcher = Pid::from_raw(std::process::id().cast_signed());
        let mut command = Command::new(&spec.program);
        command
            .arg0(&spec.arg0)
            .args(&spec.args)
            .envs(spec.env.iter().map(|(name, value)| (name, value)))
            .env_remove(DTRAIN_GUARDIAN)
            .env_remove(DTRAIN_FRONT)
            .env_remove(DTRAIN_TEMPORARY)
            .stdin(if spec.inherit_stdin { Stdio::inherit() } else { Stdio::null() })
            .stdout(if spec.inherit_stdout { Stdio::inherit() } else { Stdio::piped() })
            .stderr(Stdio::piped())
            .process_group(0);
        let cpus = spec.cpus;
        let before_exec = move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The launcher may have died before the line above took effect; then nobody would ever send the signal.
            if rustix::process::getppid() != launcher {
                return Err(rustix::io::Errno::SRCH.into());
            }
            if let Some(cpus) = &cpus {
                sched_setaffinity(None, cpus)?;
            }
            handlers::let_the_terminal_stop_it()
        };
        // SAFETY: between fork and exec the closure only makes the system calls prctl, getppid, sched_setaffinity and
        // sigprocmask, and compares two integers; the set of cores lies in the closure itself. It takes no lock and allocates
        // nothing, which is all that is allowed in the child of a process with several threads.
        unsafe { command.pre_exec(before_exec) };
        let mut child = command.spawn()?;
        let pid = Pid::from_raw(child.id().cast_signed());
        let Some(pid) = pid else { unreachable!("a child's pid is positive") };
        let stdout = child.stdout.take().map(OwnedFd::from);
        let streams = [stdout, child.stderr.take().map(OwnedFd::from)].map(|stream| stream.map(File::from));
        Ok((Self { child, pid }, streams))
    }

    /// The worker's process id, which is also its process group's.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Calls `ended` with the worker's pid as soon as it has ended, on a thread of its own. The process stays unreaped.
    pub fn watch(&self, ended: impl FnOnce(Pid, Outcome) + Send + 'static) -> io::Result<()> {
        let pid = self.pid;
        thread::start(format!("wait-{pid}"), move || ended(pid, wait_for_end(pid)))
    }

    /// Sends `signal` to the worker's process group. One whose processes have all ended takes it silently.
    pub fn signal(&self, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else {
            return;
        };
        // It can only fail because nothing is left, or what is left belongs to another user (a set-uid program).
        let _ = rustix::process::kill_process_group(self.pid, signal);
    }

    pub(super) fn sweep(&mut self) {
        self.signal(signals::KILL);
        // The outcome is known already, and a child that cannot be waited for cannot be reaped either.
        let _ = self.child.wait();
    }
}

/// Blocks until the process has ended, and leaves it unreaped.
fn wait_for_end(pid: Pid) -> Outcome {
    loop {
        match rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(Some(status)) => {
                return match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => Outcome::Exited(code),
                    (None, Some(signal)) => Outcome::Signaled(signal),
                    (None, None) => Outcome::Lost,
                };
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Outcome::Lost,
        }
    }
}
