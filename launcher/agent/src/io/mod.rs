//! The parts that act on the system: processes, their output and heartbeats, the store of PyTorch, network
//! interfaces, and connections between several nodes: those of their agents, and trials of others.

pub mod fence;
pub mod guardian;
pub mod heartbeats;
pub mod interfaces;
mod mailbox;
pub mod memory_copies;
pub mod output;
pub mod probe;
pub mod process;
mod sockets;
pub mod store;
pub mod temporary;
mod thread;
pub mod wire;
