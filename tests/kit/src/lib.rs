//! What the tests of every crate share. Needs no libtorch.

pub mod need;
pub mod permissions;
