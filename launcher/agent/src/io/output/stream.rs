//! The two output streams, and what is passed from the readers to the screen.

use rustix::termios::LocalModes;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};

/// One of the two output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    /// Both, in the order of their file descriptors.
    pub const BOTH: [Self; 2] = [Self::Stdout, Self::Stderr];

    /// Its usual name, also that of its log file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }

    /// Its place in [`Stream::BOTH`].
    pub fn index(self) -> usize {
        match self {
            Self::Stdout => 0,
            Self::Stderr => 1,
        }
    }

    /// Does something with the launcher's own.
    pub(super) fn with_fd<T>(self, act: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        match self {
            Self::Stdout => act(io::stdout().as_fd()),
            Self::Stderr => act(io::stderr().as_fd()),
        }
    }

    /// Whether the launcher's own is a terminal that lets processes in the background write to it, as workers are.
    pub fn takes_background_writes(self) -> bool {
        self.with_fd(|fd| {
            let modes = rustix::termios::tcgetattr(fd);
            modes.is_ok_and(|modes| !modes.local_modes.contains(LocalModes::TOSTOP))
        })
    }

    /// Whether the launcher's own is a terminal.
    pub fn is_terminal(self) -> bool {
        self.with_fd(|fd| fd.is_terminal())
    }
}

/// Where output comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The worker.
    pub rank: usize,
    /// Which of its streams.
    pub stream: Stream,
}

/// What one source writes to the screen, and what becomes of its progress frame after that.
#[derive(Debug)]
pub struct Chunk {
    pub(super) source: Source,
    pub(super) text: Vec<u8>,
    pub(super) start: Start,
    pub(super) frame: FrameChange,
}

/// What the first byte of a chunk begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// A line.
    Line,
    /// Nothing: it goes on with the line of its source that was left open. The prefix is for the case that somebody else
    /// has written meanwhile.
    Continued(Vec<u8>),
    /// Whatever the program made of it.
    Raw,
}

/// What a source's output does to the progress frame that it is showing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FrameChange {
    Keep,
    /// It was overwritten by a line.
    Clear,
    Show(Vec<u8>),
}
