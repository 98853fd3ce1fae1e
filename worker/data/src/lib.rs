//! Sources of training data: image folders with classes, masks or numbers, texts, generated sets. Threads
//! load the data for the step loop.
//!
//! Data flows one way:
//!
//! ```text
//! ImageIndex::scan  -> check -> ImageFolder  ┐
//! MaskIndex::scan   -> check -> ImageMasks   ┤
//! TargetIndex::scan -> check -> ImageVectors ┤   file -> decode -> fit -> (cache) -> augment -> normalize
//! MapIndex::scan    -> check -> ImageMaps    ┤
//! TextIndex::scan   -> Corpus -> TextWindows ┤
//!         Generated and its siblings ────────┴─ Dataset ─┐
//! epoch_order -> MicroBatch ─────────────────────────────┴─ Loader -> Batch
//! ```
//!
//! The [`Field`]s of a set define its samples: an image with its class, mask, numbers or map, or a piece of a
//! text. This crate has no tensors and no ranks: the engine makes tensors of a [`Batch`]'s plain vectors and
//! decides which samples its rank loads. All random choices are a function of the seed, the epoch and the
//! sample (see [`rng`]), never of threads, ranks or micro-batches.

#![expect(missing_docs, reason = "the names of most fields and variants say what they are")]

pub mod augment;
pub mod cache;
pub mod check;
pub mod class_counts;
pub mod dataset;
pub mod decode;
pub mod error;
pub mod fit;
pub mod generated;
pub mod generated_masks;
pub mod generated_numbers;
pub mod generated_set;
pub mod ignored;
pub mod image_folder;
pub mod inspector;
pub mod loader;
pub mod marks;
pub mod mask_folder;
pub mod mask_rule;
pub mod moments;
mod needs;
pub mod normalize;
pub mod order;
pub mod packed;
pub mod paths;
mod picture_set;
pub mod pixel_target;
pub mod pixels;
mod plane;
pub mod raster;
mod regular;
pub mod rng;
pub mod target_folder;
pub mod target_table;
pub mod text;
pub mod text_windows;
mod turn;
mod unicode_form;
pub mod vocabulary;

#[cfg(test)]
mod tests;

pub use cache::{CacheBudget, cache_bytes, free_host_bytes};
pub use check::{CheckReport, ImageList, Target, check, too_many_bad};
pub use class_counts::ClassCounts;
pub use dataset::{Column, Dataset, Field, FieldKind, load_one};
pub use error::{BadSample, DataError, SampleError};
pub use generated::Generated;
pub use generated_masks::GeneratedMasks;
pub use generated_numbers::{GeneratedMaps, GeneratedVectors};
pub use generated_set::{GeneratedSet, Split};
pub use ignored::Ignored;
pub use image_folder::ImageIndex;
pub use inspector::Inspector;
pub use loader::{Batch, Loader, LoaderOptions, MicroBatch};
pub use marks::{Marked, Marks};
pub use mask_folder::{MapIndex, MaskIndex};
pub use mask_rule::{MaskKind, MaskRule};
pub use moments::Moments;
pub use needs::{Depth, Needs};
pub use normalize::Normalize;
pub use order::epoch_order;
pub use picture_set::{ImageFolder, ImageMaps, ImageMasks, ImageOptions, ImageVectors, PictureSet};
pub use pixel_target::{MapRule, PixelRule};
pub use pixels::Pixels;
pub use rng::SampleRng;
pub use target_folder::TargetIndex;
pub use text::{Corpus, TextIndex};
pub use text_windows::TextWindows;
pub use vocabulary::{Tokens, Vocabulary};
