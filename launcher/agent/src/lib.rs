//! What is done about the workers of a run. `local` decides over one node's attempt and whether there is another, `cause` says
//! which worker failed first and why: both are pure functions of a state, an event and a time. `io` carries out.
//!
//! Architecture invariant: nothing here knows the command line, libtorch or NVML.
#![deny(unsafe_code)]
#![expect(missing_docs, reason = "the names of most fields and variants say what they are")]

pub mod cause;
pub mod clock;
pub mod io;
pub mod local;
pub mod signals;
