//! The workers' output: read per stream, kept in log files, and shown by the one thread that writes to the
//! launcher's standard output and standard error, so that no line is torn and the progress frame stays intact.

mod frame;
mod reader;
mod rotate;
mod screen;
mod sieve;
mod split;
mod tail;
mod unkept;

pub(crate) use reader::Reader;
pub(crate) use rotate::RotatingLog;
pub(crate) use screen::{Screen, shows_frames};
pub(crate) use sieve::Sieve;
pub(crate) use tail::Tail;
pub(crate) use unkept::Unkept;

/// One of the two output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    /// Both, in the order of their file descriptors.
    pub(crate) const BOTH: [Self; 2] = [Self::Stdout, Self::Stderr];

    /// Its usual name, also that of its log file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Where output comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) rank: usize,
    pub(crate) stream: Stream,
}

/// Whole lines of one source, and what becomes of its progress frame after them.
#[derive(Debug)]
pub(crate) struct Chunk {
    source: Source,
    lines: Vec<u8>,
    frame: FrameChange,
}

/// What a source's output does to the progress frame that it is showing.
#[derive(Debug, PartialEq, Eq)]
enum FrameChange {
    Keep,
    /// It was overwritten by a line.
    Clear,
    Show(Vec<u8>),
}
