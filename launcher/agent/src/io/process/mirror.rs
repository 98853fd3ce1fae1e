//! A pseudo terminal for a worker's output: the worker writes to a terminal, and the launcher reads it.
//!
//! It controls no process: keys, Ctrl-C and job control remain those of the launcher's terminal, which is also the
//! worker's standard input.

use super::modes::is_free;
use super::worker::Worker;
use super::{Family, ShellJob};
use crate::io::output::Stream;
use rustix::process::{Pid, Signal};
use rustix::termios::{
    InputModes, OptionalActions, OutputModes, SpecialCodeIndex, Termios, Winsize, tcgetattr, tcgetpgrp,
    tcgetwinsize, tcsetattr, tcsetwinsize,
};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Keeps a worker's pseudo terminal and the launcher's terminal alike: the worker sees the size of the window, and modes
/// that the worker sets take effect where the keys are read.
#[derive(Debug)]
pub struct Mirror {
    pty: OwnedFd,
    stream: Stream,
    worker: Pid,
    family: Family,
    job: Option<ShellJob>,
    size: Winsize,
    /// The modes at the start: the terminal's, which the pseudo terminal got.
    usual: Termios,
    /// The pseudo terminal's modes when last looked at. The worker may have set others before the first look.
    modes: Termios,
}

impl Mirror {
    /// `pty`: the launcher's end.
    pub fn new(
        pty: &File,
        stream: Stream,
        worker: &Worker,
        family: Family,
        job: Option<ShellJob>,
    ) -> io::Result<Self> {
        let usual = stream.with_fd(|fd| tcgetattr(fd))?;
        Ok(Self {
            pty: pty.as_fd().try_clone_to_owned()?,
            stream,
            worker: worker.pid,
            family,
            job,
            size: tcgetwinsize(pty)?,
            modes: usual.clone(),
            usual,
        })
    }

    /// Looks for changes since the last call.
    pub fn follow(&mut self) {
        if let Ok(size) = self.stream.with_fd(|fd| tcgetwinsize(fd))
            && size != self.size
        {
            self.size = size;
            // Fails only if the worker has closed its end. The kernel signals only processes that a terminal controls.
            let _ = tcsetwinsize(&self.pty, size);
            self.family.signal(self.worker, Signal::WINCH);
        }
        if let Ok(modes) = tcgetattr(&self.pty)
            && differ(&modes, &self.modes)
        {
            self.modes = modes;
            self.stream.with_fd(|fd| self.pass_modes(fd));
        }
    }

    fn pass_modes(&self, terminal: BorrowedFd<'_>) {
        let Self { usual, modes: now, .. } = self;
        let worker_has_it = tcgetpgrp(terminal) == Ok(self.worker);
        if !worker_has_it && self.job.is_some_and(|job| !is_free(terminal, job)) {
            return;
        }
        let mut modes = usual.clone();
        modes.input_modes = now.input_modes;
        modes.local_modes = now.local_modes;
        modes.special_codes = now.special_codes.clone();
        // Programs that draw the whole screen, such as those of curses, switch off both translations of line ends. The
        // pseudo terminal never had that of output.
        if usual.input_modes.difference(now.input_modes).contains(InputModes::ICRNL) {
            modes.output_modes.remove(OutputModes::ONLCR);
        }
        // Fails if the terminal is gone.
        let _ = tcsetattr(terminal, OptionalActions::Now, &modes);
    }
}

fn differ(one: &Termios, other: &Termios) -> bool {
    let parts = |modes: &Termios| {
        let codes = [SpecialCodeIndex::VMIN, SpecialCodeIndex::VTIME, SpecialCodeIndex::VINTR];
        (modes.input_modes, modes.local_modes, codes.map(|code| modes.special_codes[code]))
    };
    parts(one) != parts(other)
}
