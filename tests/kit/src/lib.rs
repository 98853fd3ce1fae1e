//! The harness of all tests that start programs, and what they compare with. It needs no libtorch, and the tests of every crate
//! share it: [`scene::Scene`] is a folder whose processes are found and killed, [`runs::Sandbox`] one with a recipe.
//!
//! What fails in here fails the test that called it.

#![allow(clippy::unwrap_used)]

pub mod formula;
pub mod need;
pub mod permissions;
pub mod process;
pub mod programs;
pub mod ranks;
pub mod reference;
pub mod runs;
pub mod scene;
pub mod trainings;
