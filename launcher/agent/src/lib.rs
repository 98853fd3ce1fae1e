//! Supervision of a run's workers. `local` decides for one node's attempt and about restarts; `cause` finds
//! the worker that failed first, and why. Both are pure. `io` acts on the system.
//!
//! Architecture invariant: no code here uses the command line, libtorch or NVML.
#![deny(unsafe_code)]
#![expect(missing_docs, reason = "the names of most fields and variants say what they are")]

pub mod cause;
pub mod clock;
pub mod cluster;
pub mod io;
pub mod local;
pub mod signals;
