//! The two output streams, and what is passed from the readers to the screen.

use rustix::termios::LocalModes;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    /// Both, in the order of their file descriptors.
    pub const BOTH: [Self; 2] = [Self::Stdout, Self::Stderr];

    /// Its usual name, also that of its log file.
    pub fn name(self) -> &'static str {
        ["stdout", "stderr"][self.index()]
    }

    /// Its place in [`Stream::BOTH`].
    pub fn index(self) -> usize {
        self as usize
    }

    pub(super) fn with_fd<T>(self, act: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        match self {
            Self::Stdout => act(io::stdout().as_fd()),
            Self::Stderr => act(io::stderr().as_fd()),
        }
    }

    /// Whether the launcher's own is a terminal that lets processes in the background write to it, as workers are.
    pub fn takes_background_writes(self) -> bool {
        let modes = self.with_fd(|fd| rustix::termios::tcgetattr(fd));
        modes.is_ok_and(|modes| !modes.local_modes.contains(LocalModes::TOSTOP))
    }

    pub fn is_terminal(self) -> bool {
        self.with_fd(|fd| fd.is_terminal())
    }
}

/// Where output comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    pub rank: usize,
    pub stream: Stream,
}

/// What one source writes to the screen.
#[derive(Debug)]
pub struct Chunk {
    pub(super) source: Source,
    pub(super) output: Output,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Output {
    pub(super) text: Vec<u8>,
    pub(super) start: Start,
    /// What becomes of the source's progress frame.
    pub(super) frame: FrameChange,
}

impl Output {
    pub(super) fn new(text: Vec<u8>, start: Start) -> Self {
        Self { text, start, frame: FrameChange::Keep }
    }
}

/// What the first byte of an output begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Start {
    Line,
    /// Nothing: it continues the line that its source left open. The prefix is for a line that came between.
    Continued(Vec<u8>),
    /// Whatever the program made of it.
    Raw,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum FrameChange {
    Keep,
    /// It was overwritten by a line.
    Clear,
    Show(Vec<u8>),
}
