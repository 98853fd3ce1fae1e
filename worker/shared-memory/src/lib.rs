//! Memory that the ranks of one machine share, and reductions over it. The crate wraps the operating system
//! and atomics; it does not know tensors.
//!
//! - [`Segment`]: shared memory with a region for every rank. One rank creates it, the others open it with a
//!   [`Ticket`]. [`Region`] is the region of one rank and keeps it mapped
//! - [`Control`]: announces the progress of each rank and detects ranks that died
//! - [`Member`]: one rank of the team. [`Member::start`] starts an [`Operation`] over the regions of a
//!   segment and returns a [`Pending`]. One thread per process executes the operations in order
//! - [`Pool`]: blocks of bytes that any process writes, each once, and all read
//! - [`Sealed`]: bytes that one process writes once and the others read in place
//!
//! Order of use: rank 0 creates a control segment and a ticket ([`Control::create`]); the others open it
//! ([`Control::open`]); after all have opened it, each creates its [`Member`]. Data segments are created the
//! same way. The ranks need another channel to send tickets and to agree that all of them succeeded.
//!
//! The memory has no name: the kernel frees it with its last mapping.

mod anonymous;
mod control;
mod engine;
mod error;
mod kernel;
mod lock;
mod member;
mod parts;
mod pool;
mod queue;
mod sealed;
mod segment;

pub use control::Control;
pub use error::{Fault, MemoryError};
pub use member::Member;
pub use pool::{Block, Pool, PoolTicket};
pub use queue::{Collective, Element, Operation, Pending, Reduction};
pub use sealed::{IDENTITY_BYTES, Sealed};
pub use segment::{Region, Segment, Ticket};
