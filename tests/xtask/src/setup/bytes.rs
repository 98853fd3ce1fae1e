//! Sizes for people.

use std::fmt;

/// A size in decimal units, as package indexes and disks are labelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..1_000_000 => write!(f, "{:.1} MB", self.0 as f64 / 1e6),
            1_000_000..1_000_000_000 => write!(f, "{:.0} MB", self.0 as f64 / 1e6),
            _ => write!(f, "{:.1} GB", self.0 as f64 / 1e9),
        }
    }
}
