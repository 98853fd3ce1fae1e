//! One worker process.

use super::{descendants, handlers, pty};
use crate::io::output::Stream;
use crate::io::thread;
use crate::local::Outcome;
use crate::signals;
use dtrain_common::env::{DTRAIN_FRONT, DTRAIN_GUARDIAN, DTRAIN_RDZV_SECRET, DTRAIN_TEMPORARY};
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The command of a worker and its surroundings.
#[derive(Clone, Debug)]
pub struct WorkerSpec {
    pub program: PathBuf,
    /// The name that the program sees as its own.
    pub arg0: OsString,
    pub args: Vec<OsString>,
    /// Variables in addition to the launcher's environment.
    pub env: Vec<(&'static str, OsString)>,
    /// The only cores that the worker may use; `None` for the launcher's cores.
    pub cpus: Option<CpuSet>,
    /// Whether the worker reads the launcher's standard input; else its input is empty.
    pub inherit_stdin: bool,
    pub wiring: Wiring,
    /// The worker's limit of open files; `None` for the launcher's.
    pub open_files: Option<Rlimit>,
}

/// How the launcher gets a worker's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    /// Both streams through one channel, which keeps their order.
    Together(Channel),
    /// Standard output and standard error.
    Apart([Channel; 2]),
}

impl Wiring {
    /// Returns the channel of this stream.
    pub fn channel(self, stream: Stream) -> Channel {
        match self {
            Self::Together(channel) => channel,
            Self::Apart(channels) => channels[stream.index()],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    Pipe,
    /// A pseudo terminal like the launcher's terminal; a pipe if the system has no pseudo terminals.
    Pty,
}

impl Channel {
    /// Returns the launcher's end and the worker's. `stream` is the launcher's terminal.
    fn open(self, stream: Stream) -> io::Result<(OwnedFd, OwnedFd)> {
        match self {
            Self::Pty => pty::open(stream).or_else(|_| Self::Pipe.open(stream)),
            Self::Pipe => io::pipe().map(|(read, write)| (read.into(), write.into())),
        }
    }
}

/// A started worker. Dropping does not end it; call [`Family::sweep`](super::Family::sweep) after its end.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    pub(super) pid: Pid,
}

/// The launcher's ends of standard output and standard error; only the first if they are together.
pub type Streams = [Option<File>; 2];

impl Worker {
    /// Starts the program in a new process group.
    #[expect(unsafe_code, reason = "the one place that acts between fork and exec")]
    pub(super) fn start(spec: &WorkerSpec) -> io::Result<(Self, Streams)> {
        let launcher = Pid::from_raw(std::process::id().cast_signed());
        let (streams, [stdout, stderr]) = open(spec.wiring)?;
        let mut command = Command::new(&spec.program);
        command
            .arg0(&spec.arg0)
            .args(&spec.args)
            .envs(spec.env.iter().map(|(name, value)| (name, value)))
            .env_remove(DTRAIN_GUARDIAN)
            .env_remove(DTRAIN_FRONT)
            .env_remove(DTRAIN_TEMPORARY)
            .env_remove(DTRAIN_RDZV_SECRET)
            .stdin(if spec.inherit_stdin { Stdio::inherit() } else { Stdio::null() })
            .stdout(stdout)
            .stderr(stderr)
            .process_group(0);
        let (cpus, open_files) = (spec.cpus, spec.open_files);
        let before_exec = move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // If the launcher died before the line above took effect, the signal would never come.
            if rustix::process::getppid() != launcher {
                return Err(rustix::io::Errno::SRCH.into());
            }
            if let Some(cpus) = &cpus {
                sched_setaffinity(None, cpus)?;
            }
            if let Some(limit) = open_files {
                setrlimit(Resource::Nofile, limit)?;
            }
            handlers::let_the_terminal_stop_it()
        };
        // SAFETY: between fork and exec, the closure only makes the system calls prctl, getppid,
        // sched_setaffinity, prlimit and sigprocmask, and compares two integers; it holds the set of cores itself. It
        // takes no lock and allocates nothing, as a child of a process with several threads must.
        unsafe { command.pre_exec(before_exec) };
        let child = command.spawn()?;
        let pid = Pid::from_raw(child.id().cast_signed());
        let Some(pid) = pid else { unreachable!("a child's pid is positive") };
        Ok((Self { child, pid }, streams))
    }

    /// Returns the worker's process id, which is also the id of its process group.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Calls `ended` with the worker's pid on a new thread when the worker ends. Does not reap the process.
    pub fn watch(&self, ended: impl FnOnce(Pid, Outcome) + Send + 'static) -> io::Result<()> {
        let pid = self.pid;
        thread::start(format!("wait-{pid}"), move || ended(pid, wait_for_end(pid)))
    }

    /// Sends `signal` to the worker's process group, but a user signal to the worker alone: it would kill processes
    /// that have no handler for it, such as data loaders. If all processes have ended, nothing happens.
    pub fn signal(&self, number: i32) {
        let Some(signal) = Signal::from_named_raw(number) else {
            return;
        };
        // These fail only if no process is left, or the rest belongs to another user (a set-uid program).
        if signals::FORWARD.contains(&number) {
            // The worker is not reaped before the sweep, so its pid is still its own.
            let _ = rustix::process::kill_process(self.pid, signal);
            return;
        }
        let _ = rustix::process::kill_process_group(self.pid, signal);
        if signals::STOP.contains(&number) {
            // A stopped process (SIGSTOP, or reading from a terminal in the background) must handle the signal first.
            let _ = rustix::process::kill_process_group(self.pid, Signal::CONT);
        }
    }

    /// Kills the rest of the process group, and reaps the worker if it ends within `patience`. Returns whether it has.
    pub(super) fn sweep(&mut self, patience: Duration) -> bool {
        self.signal(signals::KILL);
        descendants::reap(self.pid, Instant::now() + patience)
    }
}

/// Opens the channels. Returns the launcher's ends, and the worker's two.
fn open(wiring: Wiring) -> io::Result<(Streams, [OwnedFd; 2])> {
    match wiring {
        Wiring::Together(channel) => {
            let (read, stdout) = channel.open(Stream::Stdout)?;
            let stderr = stdout.try_clone()?;
            Ok(([Some(read.into()), None], [stdout, stderr]))
        }
        Wiring::Apart([stdout, stderr]) => {
            let (stdout, stderr) = (stdout.open(Stream::Stdout)?, stderr.open(Stream::Stderr)?);
            Ok(([Some(stdout.0.into()), Some(stderr.0.into())], [stdout.1, stderr.1]))
        }
    }
}

/// Blocks until the process has ended, and does not reap it.
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
