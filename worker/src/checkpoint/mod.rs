//! Checkpoints: a folder per step, there whole or not at all, and the way back into a run.
//!
//! `step-00000120/` holds `model.safetensors` (plain names, readable without dtrain), `optimizer-00000-of-00001.safetensors`
//! (the state of every trained parameter as `<state>.<parameter>`, whole, whatever the arena's layout and also where ranks
//! hold parts of it), with a moving average `ema.safetensors`, and `manifest.json` with sizes and checksums. It is written
//! beside its place and renamed; `latest` is a symbolic link that is switched after it.

mod error;
mod read;
mod write;

pub use error::CheckpointError;
pub use read::{Target, restore};
pub use write::{Snapshot, write};

/// The model's tensors.
pub const MODEL_FILE: &str = "model.safetensors";
/// The optimizer's.
pub const OPTIMIZER_FILE: &str = "optimizer-00000-of-00001.safetensors";
/// The moving average of the model's tensors, under their own names; only where the recipe asks for one.
pub const EMA_FILE: &str = "ema.safetensors";
/// Begins the names of the tensors of the optimizer file that hold how many updates a parameter has had (int64).
const STEPS: &str = "step";
