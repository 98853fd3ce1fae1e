//! The two output streams, and the data that readers send to the screen.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    /// Both streams, in the order of their file descriptors.
    pub const BOTH: [Self; 2] = [Self::Stdout, Self::Stderr];

    /// Returns the stream's usual name, which is also that of its log file.
    pub fn name(self) -> &'static str {
        ["stdout", "stderr"][self.index()]
    }

    /// Returns the index in [`Stream::BOTH`].
    pub fn index(self) -> usize {
        self as usize
    }

    pub(in crate::io) fn with_fd<T>(self, act: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        match self {
            Self::Stdout => act(io::stdout().as_fd()),
            Self::Stderr => act(io::stderr().as_fd()),
        }
    }

    /// Returns whether the launcher's two streams are the same file, pipe or terminal.
    pub fn are_one() -> bool {
        let file = |stream: Self| stream.with_fd(|fd| rustix::fs::fstat(fd));
        match (file(Self::Stdout), file(Self::Stderr)) {
            (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
            _ => false,
        }
    }

    /// Returns whether colours are shown there: on a terminal, unless the user decides otherwise by `--color`, `NO_COLOR`,
    /// `CLICOLOR_FORCE` or `TERM=dumb`.
    pub fn has_colours(self) -> bool {
        let choice = match self {
            Self::Stdout => anstream::AutoStream::choice(&io::stdout()),
            Self::Stderr => anstream::AutoStream::choice(&io::stderr()),
        };
        choice != anstream::ColorChoice::Never
    }

    pub fn is_terminal(self) -> bool {
        self.with_fd(|fd| fd.is_terminal())
    }
}

/// A stream of a worker; both in one have the name of standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    pub rank: usize,
    pub stream: Stream,
}

/// Output of one source for the screen.
#[derive(Debug)]
pub struct Chunk {
    pub(super) source: Source,
    pub(super) output: Output,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Output {
    pub(super) text: Vec<u8>,
    pub(super) start: Start,
    pub(super) frame: FrameChange,
}

impl Output {
    pub(super) fn new(text: Vec<u8>, start: Start) -> Self {
        Self { text, start, frame: FrameChange::Keep }
    }
}

/// How the text of an output begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Start {
    Line,
    /// With the rest of the source's unfinished line. The prefix is used if another line came between.
    Continued(Vec<u8>),
    /// At any place in a line.
    Raw,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum FrameChange {
    Keep,
    /// A line has overwritten the frame.
    Clear,
    Show(Vec<u8>),
}
