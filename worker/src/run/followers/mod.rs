//! The followers of a run.

mod archive;
mod by_class;
mod contents;
mod copies;
mod evaluating;
mod health;
mod judge;
mod listeners;
mod samples;
mod saver;
mod telemetry;
mod tracer;

pub(crate) use self::archive::{Archive, ResumeOrigin};
pub(crate) use self::by_class::ByClass;
pub(crate) use self::copies::Copies;
pub(crate) use self::health::Health;
pub(crate) use self::judge::Judge;
pub(crate) use self::listeners::Figures;
pub(crate) use self::samples::SampleFolders;
pub(crate) use self::telemetry::TelemetryHandle;
pub(crate) use self::tracer::Tracer;
