//! The parts that act on the system: processes, their output and heartbeats, the store of PyTorch.

pub mod guardian;
pub mod heartbeats;
pub mod memory_copies;
pub mod output;
pub mod process;
pub mod store;
pub mod temporary;
mod thread;
