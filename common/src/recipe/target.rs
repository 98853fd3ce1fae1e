//! The learning target of a recipe's samples, and the file that holds its network.

use std::path::Path;

use super::{DataKind, Loss, Recipe, Target, Task};

impl Recipe {
    /// Returns the learning target of a sample; `None` for a user's own task.
    pub fn target(&self) -> Option<Target> {
        match self.task {
            Task::Classify => Some(Target::Class),
            Task::Segment => Some(Target::Mask),
            Task::Lm => Some(Target::Tokens),
            Task::Regress => Some(self.data.target.unwrap_or(Target::Vector)),
            Task::Program => Some(self.data.target.unwrap_or(match self.data.kind {
                DataKind::Text => Target::Tokens,
                DataKind::Folder | DataKind::Generated => Target::Class,
            })),
            Task::Custom => None,
        }
    }

    /// Returns the exported program that is the network, if there is one.
    pub fn program(&self) -> Option<&Path> {
        self.model.file.as_deref().filter(|_| self.task != Task::Custom)
    }
}

impl Target {
    /// Returns whether each pixel has a target, in a second image.
    pub fn is_of_pixels(self) -> bool {
        matches!(self, Self::Mask | Self::Map)
    }
}

impl Task {
    /// Returns the values of `model.loss`; none if the task has no choice.
    pub(super) fn losses(self) -> &'static [Loss] {
        match self {
            Self::Regress => &[Loss::Mse, Loss::L1, Loss::Huber],
            Self::Classify | Self::Segment | Self::Lm | Self::Program | Self::Custom => &[],
        }
    }

    /// Returns the targets among which `data.target` chooses; none if the task decides.
    pub(super) fn targets(self) -> &'static [Target] {
        match self {
            Self::Regress => &[Target::Vector, Target::Map],
            Self::Program => &[Target::Class, Target::Mask, Target::Vector, Target::Map, Target::Tokens],
            Self::Classify | Self::Segment | Self::Lm | Self::Custom => &[],
        }
    }
}
