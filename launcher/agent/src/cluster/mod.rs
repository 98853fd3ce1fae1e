//! The cluster: agents of several nodes that make one run.
//!
//! One agent leads; every node, also the leader's, has a [`Member`]. Both are pure state machines: they take
//! events with the time, and return actions. The driver moves messages and starts and stops workers.
//!
//! ```text
//!   member                                leader
//!   Join(node) ------------------------>  joining: waits for the nodes
//!              <------------------------  Propose(epoch, ranks)
//!   Ready(epoch, where it listens) ---->  proposed: waits for all
//!              <------------------------  Try(epoch, other nodes), if a node is new
//!   Tried(epoch, failures) ----------->  trying: waits for all
//!              <------------------------  Start(epoch, where rank 0 listens)
//!   Failed(epoch) --------------------->  running
//!              <------------------------  Stop(epoch, reason)
//!   Drained(epoch, report) ------------>  draining: waits for all, or until their leases end
//!              <------------------------  Propose(epoch + 1) or Decided
//! ```
//!
//! An epoch is one attempt with one set of nodes. A message of an earlier epoch is ignored.
//!
//! Invariant: two epochs never run at the same time. A member stops its workers by itself when its lease
//! ends; the leader starts the next epoch only after every lease of the one before has ended ([`lease`]).

pub mod blame;
pub mod leader;
pub mod lease;
pub mod member;
pub mod message;
pub mod ranks;
#[cfg(test)]
mod stops;
pub mod trial;

pub use leader::{ClusterPolicy, Leader};
pub use member::Member;
