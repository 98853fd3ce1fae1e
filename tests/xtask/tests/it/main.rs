//! Runs the `xtask` program in a workspace and on a PATH made for the test: no network, no libtorch, no real build.

#![allow(clippy::unwrap_used)]

mod errors;
mod machine;
mod runs;
mod setup;
mod stops;
