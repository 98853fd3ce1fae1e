//! The recipes that come with dtrain.

use super::{ModelName, Recipe};

const EMBEDDED: &[(&str, &str)] = &[
    ("demo", include_str!("../../recipes/demo.toml")),
    ("cifar100", include_str!("../../recipes/cifar100.toml")),
    ("camvid", include_str!("../../recipes/camvid.toml")),
    ("shakespeare", include_str!("../../recipes/shakespeare.toml")),
];

impl Recipe {
    /// Name and text of every embedded recipe, which [`Recipe::load`] finds by name.
    pub fn embedded() -> &'static [(&'static str, &'static str)] {
        EMBEDDED
    }

    /// The network in file names, manifests and messages: the model's name, or else the task's.
    pub fn model_name(&self) -> &'static str {
        self.model.name.map_or(self.task.as_str(), ModelName::as_str)
    }

    /// The learning rate to train with: the stated one, scaled to the effective batch by the recipe's rule.
    pub fn learning_rate(&self) -> f64 {
        match self.optim.reference_batch {
            Some(reference) => crate::lr::scaled_lr(
                self.optim.lr,
                reference,
                self.train.effective_batch,
                self.optim.scaling,
            ),
            None => self.optim.lr,
        }
    }
}
