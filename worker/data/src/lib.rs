//! Sources of training data: image folders with classes, masks or numbers, texts, generated sets. Threads
//! load the data for the step loop.
//!
//! Data flows one way:
//!
//! ```text
//! sources::*::scan -> Samples -> check -> FileSet ┐   file -> decode -> fit -> (cache) -> changes -> normalize
//! TextIndex::scan  -> Corpus ----------> TextWindows ┤
//!                    └───────────────> TextDocuments ┤
//!              Generated and its siblings ───────────┴─ Dataset ─┐
//! Sampler -> MicroBatch      ─────────────────────────────┴─ Loader -> Batch
//! ```
//!
//! The [`Field`]s of a set define its samples: an image with its class, mask, numbers or map, or a piece of a
//! text. This crate has no tensors and no ranks: the engine makes tensors of a [`Batch`]'s plain vectors and
//! decides which samples its rank loads. All random choices are a function of the seed, the epoch and the
//! sample (see [`rng`]), never of threads, ranks or micro-batches.

#![expect(missing_docs, reason = "the names of most fields and variants say what they are")]

mod annotation_problem;
mod annotations;
mod blanks;
pub mod cache;
mod cache_folder;
mod caught;
mod changes;
mod chat;
pub mod check;
pub mod class_counts;
mod color;
pub mod color_table;
mod concatenated;
pub mod dataset;
pub mod decode;
pub mod documents;
mod drawings;
pub mod encode;
pub mod error;
mod excerpt;
mod file_set;
pub mod fit;
pub mod generated;
pub mod generated_masks;
pub mod generated_numbers;
pub mod generated_set;
mod generated_text;
mod groups;
mod held_out;
pub mod ignored;
mod image_hash;
pub mod inspector;
mod joined;
pub mod loader;
pub mod marks;
pub mod mask_rule;
pub mod mixed;
pub mod mixing;
pub mod moments;
mod names;
mod needs;
pub mod normalize;
mod numbered;
mod origin;
mod pack_problem;
pub mod packed;
mod packing;
mod parquet_file;
pub mod paths;
mod pictures;
pub mod pixel_target;
pub mod pixels;
mod plane;
mod prompts;
pub mod raster;
mod regular;
pub mod rng;
mod sample_error;
mod sample_hashes;
mod sample_texts;
pub mod sampler;
mod samples;
pub mod sources;
pub mod stored;
mod table_problem;
mod tally;
pub mod text;
pub mod text_documents;
pub mod text_windows;
mod texts;
mod token_bytes;
mod token_file;
mod token_index;
mod token_lists;
mod token_problem;
mod token_sources;
mod tokenized;
pub mod tokenizer;
mod turn;
pub mod vocabulary;
mod windows;

#[cfg(test)]
mod tests;

pub use annotation_problem::AnnotationProblem;
pub use blanks::Blanks;
pub use cache::{CacheBudget, cache_bytes, free_host_bytes};
pub use changes::Changes;
pub use check::{CheckReport, check, check_in_detail, too_many_bad};
pub use class_counts::ClassCounts;
pub use color::Hex;
pub use color_table::{ColorEntry, ColorTable, Strangers};
pub use concatenated::Concatenated;
pub use dataset::{Column, Dataset, Field, FieldKind, Members, load_one};
pub use documents::DocumentBounds;
pub use drawings::Drawings;
pub use dtrain_resize::Filter;
pub use error::{BadSample, DataError, SampleError};
pub use excerpt::{Chosen, First};
pub use file_set::{FileSet, ImageOptions};
pub use generated::Generated;
pub use generated_masks::GeneratedMasks;
pub use generated_numbers::{GeneratedMaps, GeneratedVectors};
pub use generated_set::{GeneratedSet, Split};
pub use groups::Groups;
pub use ignored::Ignored;
pub use inspector::Inspector;
pub use loader::{BadPlace, Batch, Loader, LoaderOptions, MicroBatch};
pub use marks::{Marked, Marks};
pub use mask_rule::{MaskKind, MaskRule};
pub use mixed::Mixed;
pub use mixing::{Blend, Mixing};
pub use moments::Moments;
pub use needs::{Depth, Needs};
pub use normalize::Normalize;
pub use numbered::Numbered;
pub use origin::{SourcePart, TableLines};
pub use pack_problem::PackProblem;
pub use pictures::Pictures;
pub use pixel_target::{MapRule, PixelRule};
pub use pixels::Pixels;
pub use prompts::{PromptForm, Prompts, chat_of};
pub use rng::SampleRng;
pub use sample_hashes::SampleHashes;
pub use sample_texts::{TextCounts, TextRules, Texting};
pub use sampler::episodes::{EpisodeShape, Episodes, TooFew};
pub use sampler::mixture::Mixture;
pub use sampler::shuffled::epoch_order;
pub use sampler::{Place, Sampler, Sampling};
pub use samples::{ClassSets, Files, List, ListValues, PixelSource, Samples};
pub use stored::{Part, Parts, Stored};
pub use table_problem::TableProblem;
pub use tally::Tally;
pub use text::{Corpus, TextIndex, TextPart, TextRoot};
pub use text_documents::{TextDocuments, split_documents};
pub use text_windows::TextWindows;
pub use texts::Texts;
pub use token_bytes::token_bytes;
pub use token_file::TokenFile;
pub use token_lists::{TextForm, TokenLists, is_target, is_token_target, names_with_texts};
pub use token_sources::{TokenSets, TokenSource, TokenSources};
pub use tokenizer::{TextTokenizer, TokenizerFiles, TokenizerId};
pub use vocabulary::{Tokens, Vocabulary};
pub use windows::{Windows, corners};
