//! The boundaries within a training.

mod enter;
