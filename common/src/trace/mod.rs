//! Timelines of steps: the spans that a process records, and the files that hold them.
//!
//! [`span`] marks a part of the program. While nothing is recorded, it is one load and one branch.

mod file;
mod recorder;

pub use file::{Event, FileError, Meta, RankTrace};
pub use recorder::{Kind, Recorded, Span, bytes_span, is_recording, named_span, span, start, stop};
