//! What carries out decisions: processes, their output and signs of life, the store where they meet.

pub mod guardian;
pub mod heartbeats;
pub mod memory_copies;
pub mod output;
pub mod process;
pub mod store;
pub mod temporary;
mod thread;
