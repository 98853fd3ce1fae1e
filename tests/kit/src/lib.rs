//! The harness of all tests that start programs, without libtorch; the tests of all crates
//! share it. [`scene::Scene`] is a folder that kills its processes; [`runs::Sandbox`] is one with a recipe.
//!
//! A failure in this crate fails the calling test.

#![allow(clippy::unwrap_used)]

pub mod cgroup;
pub mod fake_gpus;
pub mod faults;
pub mod forks;
pub mod formula;
pub mod freezer;
pub mod need;
pub mod network;
pub mod no_values;
pub mod permissions;
pub mod process;
pub mod programs;
pub mod ranks;
pub mod reference;
pub mod runs;
pub mod scene;
pub mod slurm;
pub mod systems;
pub mod thorough;
pub mod trainings;
