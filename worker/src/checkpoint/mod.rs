//! Checkpoints: one folder per step, complete or absent, and their restore into a run.
//!
//! `step-00000120/` has `model.safetensors` (plain names), `optimizer-00000-of-00001.safetensors` (the state
//! of every trained parameter as `<state>.<parameter>`, complete in any layout), `ema.safetensors` if there
//! is a moving average, the files of a tokenizer if the task has one (`attached`), and `manifest.json` with sizes and checksums.
//!
//! `copying` copies each rank's part (`items`, `layout`). A thread writes the part into a partial folder
//! (`disk`). The status of a step shows that all ranks have written (`pending`). Rank 0 writes the manifest,
//! renames the folder and switches the links (`commit`, `remove`).
//!
//! If the nodes do not share the run directory, only rank 0's node writes: ranks of other nodes send their
//! parts to rank 0 (`gathering`), which sends the state to them at a resume (`sending`).

mod attached;
mod background;
mod commit;
mod copying;
mod disk;
mod error;
mod gathering;
mod in_memory;
mod items;
mod layout;
mod memory;
mod pending;
mod read;
mod remove;
mod sending;

pub(crate) use commit::{Amendment, amend};
pub(crate) use copying::copy_bytes;
pub use error::CheckpointError;
pub(crate) use gathering::Gathering;
pub(crate) use in_memory::{
    ChosenCopies, CopiesPlace, HeldCopy, MemoryCopies, Neighbours, NewestCopies, held_copies, newest_copies,
};
pub(crate) use pending::Checkpoints;
pub use read::{choose, verify};
pub(crate) use read::{restore, restore_weights};
pub(crate) use remove::clear;
pub(crate) use sending::{broadcast_bytes, send_model, send_state};

pub(crate) const MODEL_FILE: &str = "model.safetensors";
const OPTIMIZER_FILE: &str = "optimizer-00000-of-00001.safetensors";
/// The moving average of the model's tensors, under their own names; only if the recipe has one.
const EMA_FILE: &str = "ema.safetensors";
/// Prefix of the tensors in the optimizer file that count the updates of a parameter (int64).
const STEPS: &str = "step";
