//! Where training data comes from: image folders with classes or masks, texts, generated sets, and the threads that feed the
//! step loop.
//!
//! Data flows one way:
//!
//! ```text
//! ImageIndex::scan -> check -> ImageFolder ─┐
//! MaskIndex::scan  -> check -> ImageMasks  ─┤   file -> decode -> fit -> (cache) -> augment -> normalize
//! TextIndex::scan  -> Corpus -> TextWindows ┤
//!             Generated, GeneratedMasks ────┴─ Dataset ─┐
//! epoch_order -> MicroBatch ────────────────────────────┴─ Loader -> Batch
//! ```
//!
//! A sample is whatever its set's [`Field`]s say: an image and its class, an image and its mask, a piece of a text.
//! Nothing here knows of tensors or ranks: a [`Batch`] holds plain vectors, of which the engine makes tensors, and
//! the engine decides which samples its rank loads. Everything random is a function of the seed, the epoch and the
//! sample (see [`rng`]), never of threads, ranks or micro-batches.

pub mod augment;
pub mod cache;
pub mod census;
pub mod check;
pub mod dataset;
pub mod decode;
pub mod error;
pub mod fit;
pub mod generated;
pub mod generated_masks;
pub mod ignored;
pub mod image_folder;
pub mod image_set;
pub mod loader;
pub mod mask_folder;
pub mod mask_set;
pub mod normalize;
pub mod order;
mod picture_set;
pub mod raster;
mod regular;
pub mod rng;
mod sample_error;
pub mod text;
pub mod text_windows;
pub mod vocabulary;

#[cfg(test)]
mod test_images;

pub use augment::Augment;
pub use cache::{CacheBudget, CacheSize, CacheStats, free_host_bytes};
pub use census::Census;
pub use check::{CheckReport, Depth, Listed, Needs, check, too_many_bad};
pub use dataset::{Column, Dataset, Field, FieldKind, Slot, load_one};
pub use error::{BadSample, DataError, SampleError};
pub use fit::Resize;
pub use generated::{Generated, Split};
pub use generated_masks::GeneratedMasks;
pub use ignored::Ignored;
pub use image_folder::{ImageIndex, Sample};
pub use image_set::ImageFolder;
pub use loader::{Batch, Loader, LoaderOptions, MicroBatch};
pub use mask_folder::{MaskIndex, MaskKind, MaskRule, Pair};
pub use mask_set::ImageMasks;
pub use normalize::Normalize;
pub use order::epoch_order;
pub use picture_set::ImageOptions;
pub use rng::SampleRng;
pub use text::{Corpus, TextIndex};
pub use text_windows::TextWindows;
pub use vocabulary::{Tokenizer, Tokens, Vocabulary};
