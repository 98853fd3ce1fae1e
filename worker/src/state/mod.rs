//! The state of a training: a table of rows and columns, and the code that changes it.

mod average;
mod buffers;
mod column;
mod error;
mod group_options;
mod joined;
mod layout;
mod moves;
mod shadow;
mod shards;
mod stages;
mod table;

pub use average::Average;
pub(crate) use buffers::Buffers;
pub(crate) use column::Keep;
pub use column::{AVERAGE, ColumnSpec, Role, Rows};
pub use error::StateError;
pub use group_options::GroupOptions;
pub(crate) use layout::{Group, LayoutOptions, Part, Slot, narrow};
pub(crate) use moves::pieces;
pub(crate) use stages::{Stage, Stages, Trained};
#[cfg(test)]
pub(crate) use table::Parameter;
pub use table::Table;
