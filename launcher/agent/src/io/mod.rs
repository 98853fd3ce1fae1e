//! The parts that act on the system: processes, their output and heartbeats, the store of PyTorch, network
//! interfaces, and connections between the agents of several nodes.

pub mod fence;
pub mod guardian;
pub mod heartbeats;
pub mod interfaces;
mod mailbox;
pub mod memory_copies;
pub mod output;
pub mod process;
mod sockets;
pub mod store;
pub mod temporary;
mod thread;
pub mod wire;
