//! What the integration tests share: the built programs, ranks as processes, and tiny runs.

pub mod formula;
pub mod programs;
pub mod ranks;
pub mod runs;
