//! Runs `xtask` in a workspace and with a PATH made for the test: no network, libtorch or real build.

#![allow(clippy::unwrap_used)]

mod errors;
mod machine;
mod runs;
mod setup;
mod stops;
