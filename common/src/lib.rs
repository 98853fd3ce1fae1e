//! The common base of all parts of dtrain: the recipe, the environment contract, batch arithmetic, units, the
//! GPU inventory, the run directory and the checkpoint manifest.
//!
//! This crate holds no tensors, links no libtorch and contains no `unsafe`: the launcher uses it and must
//! start in milliseconds.
#![forbid(unsafe_code)]
#![expect(missing_docs, reason = "the names of most fields and variants say what they are")]

pub mod agent_lease;
pub mod batch;
mod choice;
pub mod content;
pub mod control;
pub mod env;
pub mod exit;
pub mod file_hash;
pub mod files;
pub mod gpu;
pub mod host;
pub mod installation;
pub mod log_line;
pub mod look;
pub mod lr_range;
pub mod manifest;
pub mod memory_copies;
pub mod metrics;
mod pointer;
mod prediction;
pub mod progress;
pub mod question;
pub mod random;
pub mod recipe;
pub mod result;
pub mod run_dir;
pub mod safetensors_file;
pub mod schedule;
pub mod text;
pub mod time;
pub mod trace;
pub mod units;

mod numbers;

pub use recipe::RecipeError;
