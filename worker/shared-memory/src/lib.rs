//! Memory that the ranks of one machine share, and sums over it: the edge to the operating system and to atomics, with no
//! tensors.
//!
//! - [`Segment`]: one block of memory with a region for every rank, made by one of them and opened by the others with a
//!   [`Ticket`]; [`Region`] is one rank's part of it, and keeps it mapped
//! - [`Control`]: where the ranks tell each other how far they are, and see who has died
//! - [`Member`]: one rank's place in the team: [`Member::start`] begins an [`Operation`] over the regions of a segment and
//!   returns a [`Pending`]; one thread of the process carries the operations out, in order
//!
//! The order of use: rank 0 makes a control segment and a ticket ([`Control::create`]); the others open it
//! ([`Control::open`]); once all have done so, each makes its [`Member`]. Segments for data are made the same way. The ranks
//! need some other way to hand each other the tickets and to agree that all have succeeded.
//!
//! Nothing outlives the processes: the memory has no name, and the kernel frees it with its last mapping.

mod control;
mod engine;
mod error;
mod kernel;
mod lock;
mod member;
mod parts;
mod queue;
mod segment;

pub use control::Control;
pub use error::{Fault, MemoryError};
pub use member::Member;
pub use queue::{Collective, Element, Operation, Pending, Reduction};
pub use segment::{Region, Segment, Ticket};
