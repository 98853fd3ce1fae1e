//! Checkpoints: a folder per step, there whole or not at all, and the way back into a run.
//!
//! `step-00000120/` holds `model.safetensors` (plain names, readable without dtrain), `optimizer-00000-of-00001.safetensors`
//! (the state of every trained parameter as `<state>.<parameter>`, whole, whatever the arena's layout and also where ranks
//! hold parts of it), with a moving average `ema.safetensors`, and `manifest.json` with sizes and checksums.
//!
//! The training stops for a copy into memory of the host, of the part that is this rank's to write ([`Checkpoints::begin`]).
//! A thread of each rank writes it into a folder beside the checkpoint's place. When all ranks have written and synced theirs,
//! which they tell each other with the status of a step, rank 0 writes the manifest, renames the folder, and switches the
//! links.

mod choose;
mod columns;
mod commit;
mod disk;
mod error;
mod filling;
mod flight;
mod in_memory;
mod items;
mod layout;
mod read;
mod remove;
mod source;
mod staging;
mod writer;

pub use choose::{choose, verify};
pub use commit::{Keep, amend};
pub use error::CheckpointError;
pub use flight::{Checkpoints, Progress, Written};
pub use in_memory::{MemoryCopies, newest as newest_in_memory};
pub use items::Snapshot;
pub(crate) use read::restore;
pub use read::restore_weights;
pub use remove::clear;

/// The model's tensors.
pub const MODEL_FILE: &str = "model.safetensors";
/// The optimizer's.
pub const OPTIMIZER_FILE: &str = "optimizer-00000-of-00001.safetensors";
/// The moving average of the model's tensors, under their own names; only where the recipe asks for one.
pub const EMA_FILE: &str = "ema.safetensors";
/// Begins the names of the tensors of the optimizer file that hold how many updates a parameter has had (int64).
const STEPS: &str = "step";
