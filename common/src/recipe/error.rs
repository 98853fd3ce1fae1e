//! The error of a recipe: place, key, problem and remedy.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An error in a recipe: `a.toml:12: train.epocs: unknown key; ...`, or `--set key=value: ...`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RecipeError(pub(super) Box<Details>);

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Details {
    pub(super) source_name: Option<String>,
    pub(super) line: Option<usize>,
    pub(super) key: Option<String>,
    pub(super) set: Option<String>,
    pub(super) message: String,
}

impl From<Details> for RecipeError {
    fn from(details: Details) -> Self {
        Self(Box::new(details))
    }
}

impl RecipeError {
    /// Returns the dotted key that is wrong or missing; `None` for an error of syntax or of the file.
    pub fn key(&self) -> Option<&str> {
        self.0.key.as_deref()
    }

    /// Returns the line, from 1, of the key or of its section; `None` for an override or an unreadable file.
    pub fn line(&self) -> Option<usize> {
        self.0.line
    }

    /// Returns the override, `key=value`, that set the wrong value.
    pub fn set(&self) -> Option<&str> {
        self.0.set.as_deref()
    }

    /// Returns the recipe's file or name; `None` after the recipe was resolved.
    pub fn source_name(&self) -> Option<&str> {
        self.0.source_name.as_deref()
    }

    /// Returns the problem and the remedy, without the place.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Makes an error about a whole recipe.
    pub fn whole(source_name: &str, message: impl Into<String>) -> Self {
        Self::from(Details {
            source_name: Some(source_name.into()),
            message: message.into(),
            ..Details::default()
        })
    }

    /// Makes the error of a recipe that TOML cannot hold.
    pub fn unwritable(error: &dyn fmt::Display) -> Self {
        Self::whole("the resolved recipe", format!("cannot be written as TOML: {error}"))
    }

    /// Makes an error about a key of a recipe that is already resolved.
    pub fn key_only(key: &str, message: impl Into<String>) -> Self {
        Self::from(Details { key: Some(key.into()), message: message.into(), ..Details::default() })
    }
}

impl fmt::Display for RecipeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Details { source_name, line, key, set, message } = &*self.0;
        let mut key = key.as_deref();
        match (set, source_name, line) {
            (Some(set), ..) => {
                write!(f, "--set {set}: ")?;
                // The override names its key itself unless it replaced a whole section.
                let named = set.split_once('=').map(|(key, _)| key.trim());
                key = key.filter(|key| named != Some(key));
            }
            (None, Some(source), Some(line)) => write!(f, "{source}:{line}: ")?,
            (None, Some(source), None) => write!(f, "{source}: ")?,
            (None, None, _) => {}
        }
        match key {
            Some(key) => write!(f, "{key}: {message}"),
            None => f.write_str(message),
        }
    }
}

impl std::error::Error for RecipeError {}
