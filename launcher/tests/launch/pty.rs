//! A (pseudo) terminal, and a shell on it.

use crate::harness::{Scene, wait_until};
use rustix::process::Pid;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetpgrp, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

/// The user's side of a terminal.
pub(crate) struct Pty {
    pub(crate) person: OwnedFd,
    name: String,
}

impl Pty {
    pub(crate) fn new(columns: u16) -> Self {
        let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&person).unwrap();
        unlockpt(&person).unwrap();
        let name = ptsname(&person, Vec::new()).unwrap().into_string().unwrap();
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&person, size).unwrap();
        Self { person, name }
    }

    /// Gives the command the terminal as all its streams.
    pub(crate) fn attach(&self, command: &mut Command) {
        let open = || {
            let file = File::options().read(true).write(true).open(&self.name);
            Stdio::from(file.unwrap())
        };
        command.stdin(open()).stdout(open()).stderr(open());
    }

    /// Runs a command that has the terminal. Returns all that it shows, and its exit code.
    pub(crate) fn run(self, mut command: Command) -> (Vec<u8>, Option<i32>) {
        let mut child = command.spawn().unwrap();
        drop(command);
        let mut shown = Vec::new();
        // After the last process has closed the terminal, reading fails instead of ending.
        let _ = File::from(self.person).read_to_end(&mut shown);
        wait_until("the command to end", || child.try_wait().unwrap().is_some());
        (shown, child.wait().unwrap().code())
    }
}

/// A bash with job control, on a new terminal.
pub(crate) struct Shell {
    child: Child,
    person: File,
    shown: Arc<Mutex<Vec<u8>>>,
    /// Bytes of the output that `expect` has passed.
    seen: usize,
}

impl Shell {
    /// Starts the shell in a new scene's folder. `$DTRAIN` is the launcher.
    pub(crate) fn start() -> (Scene, Self) {
        let scene = Scene::new();
        let pty = Pty::new(200);
        let words = ["--ctty", "bash", "--norc", "--noprofile", "-i"];
        let mut command = scene.adapt(Command::new("setsid"), &words).into_command::<&str>(&[]);
        command.env("TERM", "dumb").env("PS1", "ready> ").env("DTRAIN", env!("CARGO_BIN_EXE_dtrain"));
        pty.attach(&mut command);
        let child = command.spawn().unwrap();
        drop(command);
        let person = File::from(pty.person);
        let shown = Arc::<Mutex<Vec<u8>>>::default();
        let (mut screen, all) = (person.try_clone().unwrap(), Arc::clone(&shown));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // After the last process has closed the terminal, reading fails instead of ending.
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                all.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        let mut shell = Self { child, person, shown, seen: 0 };
        shell.expect("ready> ");
        (scene, shell)
    }

    /// Types a line.
    pub(crate) fn line(&mut self, line: &str) {
        self.keys(format!("{line}\n").as_bytes());
    }

    /// Types these keys; `\x03` is Ctrl-C, `\x1a` is Ctrl-Z.
    pub(crate) fn keys(&mut self, keys: &[u8]) {
        self.person.write_all(keys).unwrap();
    }

    /// Waits until a job, and not the shell, has the terminal.
    #[track_caller]
    pub(crate) fn wait_until_a_job_has_the_terminal(&self) {
        let shell = Pid::from_raw(self.child.id().cast_signed());
        wait_until("a job to have the terminal", || tcgetpgrp(&self.person).ok() != shell);
    }

    /// Returns the process group that gets typed keys and Ctrl-C.
    pub(crate) fn foreground(&self) -> u32 {
        let group = tcgetpgrp(&self.person).unwrap();
        group.as_raw_nonzero().get().cast_unsigned()
    }

    /// Waits until the terminal shows this text after the previously expected text.
    #[track_caller]
    pub(crate) fn expect(&mut self, text: &str) {
        let mut found = None;
        let shown = Arc::clone(&self.shown);
        let all = || String::from_utf8_lossy(&shown.lock().unwrap()).into_owned();
        let begun = std::time::Instant::now();
        while found.is_none() {
            found = all()[self.seen..].find(text);
            assert!(
                found.is_some() || begun.elapsed() < crate::harness::LONG,
                "the terminal does not show {text:?} after byte {}:\n{}",
                self.seen,
                all()
            );
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        self.seen += found.unwrap() + text.len();
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until all these processes are suspended.
#[track_caller]
pub(crate) fn wait_until_suspended(pids: impl Fn() -> Vec<u32>) {
    wait_until("all to be suspended", || pids().into_iter().all(is_suspended));
}

fn is_suspended(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
    // D: a shell waits for its suspended child to execute a program.
    state.starts_with(['T', 'D'])
}
