//! Where training data comes from: image folders, a generated set, and the threads that feed the step loop.
//!
//! Data flows one way:
//!
//! ```text
//! ImageIndex::scan -> check -> ImageFolder ─┐
//!                              Generated ───┴─ Dataset ─┐
//! epoch_order -> MicroBatch ────────────────────────────┴─ Loader -> Batch
//! ```
//!
//! A sample is whatever its set's [`Field`]s say: an image and its class, an image and its mask, a piece of a text.
//! Nothing here knows of tensors or ranks: a [`Batch`] holds plain vectors, of which the engine makes tensors, and
//! the engine decides which samples its rank loads. Everything random is a function of the seed, the epoch and the
//! sample (see [`rng`]), never of threads, ranks or micro-batches.

pub mod check;
pub mod dataset;
pub mod decode;
pub mod error;
pub mod fit;
pub mod generated;
pub mod image_folder;
pub mod image_set;
pub mod loader;
pub mod order;
pub mod rng;

#[cfg(test)]
mod test_images;

pub use check::{CheckReport, Depth, check, too_many_bad};
pub use dataset::{Column, Dataset, Field, FieldKind, Slot, load_one};
pub use error::{BadSample, DataError, SampleError};
pub use fit::Normalize;
pub use generated::{Generated, Split};
pub use image_folder::{ImageIndex, Sample};
pub use image_set::ImageFolder;
pub use loader::{Batch, Loader, LoaderOptions, MicroBatch};
pub use order::epoch_order;
pub use rng::SampleRng;
