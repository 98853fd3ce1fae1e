//! What the integration tests share: the built programs, ranks as processes, tiny runs, and reference files.

pub mod formula;
pub mod parity;
pub mod programs;
pub mod ranks;
pub mod reference;
pub mod runs;
pub mod segments;
pub mod signals;
pub mod trainings;
