//! The followers of a run.

mod archive;
mod by_class;
mod contents;
mod copies;
mod evaluating;
mod health;
mod listeners;
mod saver;

pub(crate) use self::archive::{Archive, ResumeOrigin};
pub(crate) use self::by_class::ByClass;
pub(crate) use self::copies::Copies;
pub(crate) use self::health::Health;
pub(crate) use self::listeners::Figures;
