//! The workers' output: read per stream, kept in log files, and shown by one thread in whole lines.

mod frame;
mod present;
mod reader;
mod rotate;
mod screen;
mod sieve;
mod split;
mod stream;
mod tail;
mod unkept;

pub use present::{Frames, Style};
pub use reader::Reader;
pub use rotate::RotatingLog;
pub use screen::{Screen, draws_frames};
pub use sieve::Sieve;
pub use stream::{Chunk, Source, Stream};
pub use tail::Tail;
pub use unkept::Unkept;
