//! A slot of a node's memory, as it was left by the workers.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use dtrain_common::manifest::Manifest;
use dtrain_common::memory_copies::{COPY, SLOTS, marks};
use serde::{Deserialize, Serialize};

use super::super::layout::Part;

/// The description of a copy, beside its manifest.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Description {
    /// A number of the attempt that made the copy; 0 on one node.
    pub(super) attempt: u64,
    /// The ranks of this node. They have written everything that all ranks hold, and their own shards.
    pub(super) node: Range<usize>,
    /// By file: the bytes that only one rank of the run holds.
    pub(super) shards: Vec<(String, Vec<Part>)>,
}

/// What one node holds of the copy after one step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldCopy {
    pub(super) attempt: u64,
    pub(super) step: u64,
    /// The ranks of that attempt whose shards are there.
    pub(super) ranks: BTreeSet<usize>,
}

/// A slot with a copy; shards of other nodes' ranks may be missing.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) path: PathBuf,
    pub(super) description: Description,
    pub(super) held: HeldCopy,
}

impl Slot {
    /// Reads a slot. Returns None if a rank of this node has not completed its part.
    pub(super) fn read(path: PathBuf) -> Option<Self> {
        let description: Description = serde_json::from_slice(&fs::read(path.join(COPY)).ok()?).ok()?;
        let (marks, node) = (marks(&path).ok()?, &description.node);
        let step = marks.get(node.start).copied().filter(|step| *step > 0)?;
        let with_mark = marks.iter().enumerate().filter(|(_, mark)| **mark == step);
        let ranks: BTreeSet<usize> = with_mark.map(|(rank, _)| rank).collect();
        let manifest = Manifest::read(&path).ok()?;
        let is_whole = manifest.step == step
            && manifest.check_sizes(&path).is_ok()
            && node.clone().all(|rank| ranks.contains(&rank));
        let held = HeldCopy { attempt: description.attempt, step, ranks };
        is_whole.then_some(Self { path, description, held })
    }

    /// Returns the ranks whose shards are on other nodes only.
    pub(super) fn missing(&self) -> BTreeSet<usize> {
        let parts = self.description.shards.iter().flat_map(|(_, parts)| parts);
        let owners = parts.map(|part| part.rank);
        owners.filter(|rank| !self.held.ranks.contains(rank)).collect()
    }
}

/// Reads both slots of a folder.
pub(super) fn slots(folder: &Path) -> Vec<Slot> {
    SLOTS.iter().filter_map(|slot| Slot::read(folder.join(slot))).collect()
}
