//! The learning target of a recipe's samples, and the file that holds its network.

use std::path::Path;

use super::{ColumnKind, Documents, Masks, Recipe, Target};

impl Recipe {
    /// Returns the learning target of a sample; `None` for a user's own task, and for a program with a table's fields.
    pub fn target(&self) -> Option<Target> {
        let targets = self.task.facts().targets;
        let stated = self.data.target.filter(|_| self.task.chooses_target());
        let is_text = self.data.kind.is_of_tokens() && targets.contains(&Target::Tokens);
        // A program takes any fields of a table.
        let is_free = self.task.facts().returns_loss && self.data.is_of_tables();
        let usual = targets.first().copied().filter(|_| !is_free);
        stated.or(is_text.then_some(Target::Tokens)).or(usual)
    }

    /// Returns whether the samples are pieces of a long text.
    pub fn is_text(&self) -> bool {
        self.target() == Some(Target::Tokens) && !self.data.is_of_tables()
    }

    /// Returns whether the samples are rows of a table with texts.
    pub fn has_texts(&self) -> bool {
        let is_table = self.by_source().iter().any(|alone| alone.data.kind.has_columns());
        is_table && (self.has(ColumnKind::Text) || self.has(ColumnKind::Chat))
    }

    /// Returns whether the samples are documents of a text.
    pub fn has_documents(&self) -> bool {
        let is_text = self.data.kind.is_of_tokens() && self.target() == Some(Target::Tokens);
        is_text && self.data.documents != Documents::None
    }

    /// Returns the exported program that is the network, if there is one.
    pub fn program(&self) -> Option<&Path> {
        self.model.file.as_deref().filter(|_| !self.task.facts().is_own)
    }
}

impl Masks {
    /// Returns whether masks have two classes whatever their files.
    pub fn is_of_two_classes(self) -> bool {
        matches!(self, Self::Binary | Self::Threshold)
    }
}

impl Target {
    /// Returns whether each pixel has a target, in a second image.
    pub fn is_of_pixels(self) -> bool {
        matches!(self, Self::Mask | Self::Map)
    }
}
