//! What the trainer recognises in a folder or a file of data, for `dtrain new`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A look at data, before there is a recipe. Needs no recipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LookQuestion {
    /// The folder or the file.
    pub data: PathBuf,
    /// The learning targets that a sample may have, as in `data.target`; empty: those of the model.
    pub targets: Vec<String>,
    /// A file of `dtrain import`, if the recipe has one.
    pub model: Option<PathBuf>,
}

/// What was found, or why nothing fits, in words for the user.
pub type LookAnswer = Result<Look, String>;

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// The layouts that fit the target, at least one.
    pub layouts: Vec<Layout>,
    /// The lines of a recipe that the import of the model has printed, if it kept them.
    pub model: Option<toml::Table>,
}

/// A layout of files, as settings of `[data]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The word that chooses it, such as `class-folders`.
    pub name: String,
    /// The layout in words, such as "class folders in train and test".
    pub words: String,
    /// Settings in the order in which a recipe has them.
    pub settings: Vec<Setting>,
    /// The count of numbers in a sample's target; 0 without a target, or if it is not known.
    pub numbers: usize,
}

/// A setting of `[data]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    pub key: String,
    /// The value as TOML.
    pub value: String,
    /// What a user may want to know about it; may be empty.
    pub about: String,
}

impl Layout {
    /// Makes a layout without settings.
    pub fn new(name: &str, words: impl Into<String>) -> Self {
        Self { name: name.to_owned(), words: words.into(), settings: Vec::new(), numbers: 0 }
    }

    /// Adds a setting.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<toml::Value>, about: &str) -> Self {
        self.add(key, value, about);
        self
    }

    /// Adds a setting.
    pub fn add(&mut self, key: &str, value: impl Into<toml::Value>, about: &str) {
        let setting =
            Setting { key: key.to_owned(), value: value.into().to_string(), about: about.to_owned() };
        self.settings.push(setting);
    }

    /// Returns the value of a setting as TOML.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.settings.iter().find(|setting| setting.key == key).map(|setting| setting.value.as_str())
    }
}
