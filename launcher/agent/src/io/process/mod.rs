//! Worker processes: start, watch and signal.
//!
//! Invariant: a worker's process is not reaped before [`Family::sweep`]. Until then its pid, which is also
//! the id of its process group, cannot be given to another process, so a signal never reaches a stranger.

mod answer;
pub mod control_groups;
pub mod descendants;
pub mod descriptors;
mod family;
pub mod handlers;
pub mod memory_kill;
mod mirror;
mod modes;
pub mod open_files;
pub(in crate::io) mod proc;
mod pty;
pub mod search_path;
pub mod sender;
mod shell;
pub mod stacks;
mod terminal;
mod worker;

pub use answer::{ask, has_ended, output, whole_output};
pub use family::Family;
pub use mirror::Mirror;
pub use modes::TerminalModes;
pub use shell::ShellJob;
pub use terminal::Terminal;
pub use worker::{Channel, Streams, Wiring, Worker, WorkerSpec};
