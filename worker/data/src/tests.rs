//! What the tests of several modules need.

pub(crate) mod images;
