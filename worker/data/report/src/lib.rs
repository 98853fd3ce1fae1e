//! What the data of a training holds, for people: counts, balance, values, copies, and a picture of samples.
//!
//! The figures are those of the check and of the data sets of a training: nothing is listed, read or decoded in another way.
//! This crate has no tensors and no ranks.

#![expect(missing_docs, reason = "the names of most fields and variants say what they are")]

mod balance;
mod documents;
mod duplicates;
mod picture;
mod report;
mod sentences;
mod set;
mod spread;
mod values;

pub use balance::Balance;
pub use documents::{DocumentsReport, HeldOut, TextReport};
pub use duplicates::{Conflicts, Duplicates, Repeated};
pub use image::ImageError as PictureError;
pub use picture::{Decode, DrawnSample, Names, Picture, draw_sample};
pub use report::{DataSet, Report};
pub use set::{SetReport, Sizes, Unusable};
pub use spread::Spread;
pub use values::{FieldKind, FieldValues, LoadedValues};
