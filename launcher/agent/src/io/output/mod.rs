//! The workers' output: read per stream, kept in log files, and shown by one thread in whole lines.

mod failed_logs;
mod frame;
mod line_filter;
mod present;
mod reader;
mod rotate;
mod screen;
mod split;
mod stream;
mod tail;

pub use failed_logs::FailedLogs;
pub use line_filter::LineFilter;
pub use present::{FrameStyle, Style};
pub use reader::{Input, Reader};
pub use rotate::RotatingLog;
pub use screen::{Screen, can_draw_frames};
pub use stream::{Chunk, Source, Stream};
pub use tail::Tail;
