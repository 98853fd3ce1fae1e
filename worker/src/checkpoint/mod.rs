//! Checkpoints: a folder per step, there whole or not at all, and the way back into a run.
//!
//! `step-00000120/` holds `model.safetensors` (plain names, readable without dtrain), `optimizer-00000-of-00001.safetensors`
//! (the state of every trained parameter as `<state>.<parameter>`, whole, whatever the table's layout and also where ranks
//! hold parts of it), with a moving average `ema.safetensors`, and `manifest.json` with sizes and checksums.
//!
//! A checkpoint goes through four hands: `copying` copies what is this rank's to write (`items`, `layout`), a thread of
//! each rank writes it into a folder beside the checkpoint's place (`disk`), the ranks tell each other with the status of a
//! step that all have (`pending`), and rank 0 writes the manifest, renames the folder and switches the links (`commit`, `remove`).

mod background;
mod commit;
mod copying;
mod disk;
mod error;
mod in_memory;
mod items;
mod layout;
mod memory;
mod pending;
mod read;
mod remove;

pub(crate) use commit::amend;
pub use error::CheckpointError;
pub(crate) use in_memory::{MemoryCopies, newest as newest_in_memory};
pub(crate) use pending::Checkpoints;
pub use read::{choose, verify};
pub(crate) use read::{restore, restore_weights};
pub(crate) use remove::clear;

const MODEL_FILE: &str = "model.safetensors";
const OPTIMIZER_FILE: &str = "optimizer-00000-of-00001.safetensors";
/// The moving average of the model's tensors, under their own names; only where the recipe asks for one.
const EMA_FILE: &str = "ema.safetensors";
/// Begins the names of the tensors of the optimizer file that hold how many updates a parameter has had (int64).
const STEPS: &str = "step";
