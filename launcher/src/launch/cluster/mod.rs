//! A launch on several nodes: this node's agent finds the others, and does what the leader decides.
//!
//! `meeting` finds the node's role and address, `driver` is the thread that talks to the other nodes, `handle`
//! the main thread's end of it, `node` the main thread's work. `refuse` is for a node that ends before, and for one
//! that was killed.

mod driver;
pub(super) mod handle;
mod holder;
mod meeting;
mod node;
pub(super) mod order;
mod refuse;
mod setup;
mod shorten;
mod words;

pub(crate) use meeting::{Meeting, RendezvousFailed, usual_address};
pub(super) use node::run;
pub(crate) use refuse::report_gone;
pub(super) use refuse::withdraw;
pub(super) use setup::describe;
pub(crate) use words::cannot_connect;
