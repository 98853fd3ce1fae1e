//! The workers' output: read per stream, kept in log files, and shown by one thread in whole lines.

mod failed_logs;
mod form;
mod frame;
mod line_filter;
mod message;
pub mod paint;
mod present;
mod reader;
mod rotate;
mod screen;
mod split;
mod stream;
mod tail;
mod warnings;

pub use failed_logs::FailedLogs;
pub use form::Form;
pub use line_filter::LineFilter;
pub use message::Message;
pub use present::{FrameStyle, Style};
pub use reader::{Input, Reader};
pub use rotate::RotatingLog;
pub use screen::{Screen, can_draw_frames};
pub use stream::{Chunk, Source, Stream};
pub use tail::Tail;
pub use warnings::Warnings;
