//! The state of a training: a table of rows and columns, and what moves it.

mod average;
mod buffers;
mod layout;
mod model;
mod moves;
mod stages;
mod table;

pub use average::{Average, AverageError};
pub use buffers::Buffers;
pub(crate) use layout::narrow;
pub use layout::{Block, Bucket, Group, LayoutOptions, Part, Slot};
pub use model::Model;
pub(crate) use moves::{Keep, pieces};
pub use stages::{Stage, Stages, Trained};
pub use table::{AVERAGE, ColumnSpec, Parameter, Role, StateError, Table};
