//! The collectives of an MPI library, for `DTRAIN_TRANSPORT=mpi`.
//!
//! It is a separate crate because a build with MPI belongs to one MPI library: for another library, only this crate
//! and its programs are built again. A trainer calls `offer` first in its `main`.

#[cfg(feature = "mpi")]
mod calls;
#[cfg(feature = "mpi")]
mod group;
#[cfg(feature = "mpi")]
mod memory;

#[cfg(feature = "mpi")]
pub use group::{MpiGroup, offer};
