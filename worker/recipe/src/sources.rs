//! `[[data.source]]`: several sources of samples.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

use dtrain_common::entry;
use dtrain_common::recipe::keys::Section;
use dtrain_common::recipe::kinds::{Kind, PATH, RATE, choice};

use super::kinds::{FIELDS, FOLDER_NAME};
use super::{Data, DataKind, Recipe};

entry! {
    /// `[[data.source]]`: a source of samples. What it leaves out has the value of `[data]`.
    Source {
        /// Its folder, table or text, as `data.root`. Absolute when loaded.
        root: PathBuf, PATH;
        /// How often its samples are taken, beside the other sources: its part of an epoch is its weight, divided by the sum
        /// of all. Without weights each sample of all sources is taken once.
        weight: Option<f64>, RATE;
        /// Its kind: folder or table.
        kind: Option<DataKind>, choice(&["folder", "table"]);
        /// The fields of its table.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        fields: BTreeMap<String, String>, FIELDS;
        /// As `data.train`.
        train: Option<String>, FOLDER_NAME;
        /// As `data.test`.
        test: Option<String>, FOLDER_NAME;
        /// As `data.train_masks`.
        train_masks: Option<String>, FOLDER_NAME;
        /// As `data.test_masks`.
        test_masks: Option<String>, FOLDER_NAME;
    }
}

/// The list, whose members need a root.
pub(super) const SOURCES: Kind = Kind::Sections(Source::KEYS, 1);

impl Data {
    /// Returns whether all samples stand in tables.
    pub(super) fn is_of_tables(&self) -> bool {
        let of_source = |source: &Source| source.kind.unwrap_or(self.kind) == DataKind::Table;
        match self.source.is_empty() {
            true => self.kind == DataKind::Table,
            false => self.source.iter().all(of_source),
        }
    }

    /// Returns the settings of one source, as if it were alone.
    pub(super) fn of_source(&self, source: &Source) -> Self {
        let or = |own: &Option<String>, usual: &String| own.as_ref().unwrap_or(usual).clone();
        Self {
            root: Some(source.root.clone()),
            kind: source.kind.unwrap_or(self.kind),
            fields: if source.fields.is_empty() { self.fields.clone() } else { source.fields.clone() },
            train: or(&source.train, &self.train),
            test: or(&source.test, &self.test),
            train_masks: or(&source.train_masks, &self.train_masks),
            test_masks: or(&source.test_masks, &self.test_masks),
            source: Vec::new(),
            ..self.clone()
        }
    }
}

impl Recipe {
    /// Returns the recipe of each source, as if it were alone; this one, if it lists none.
    pub fn by_source(&self) -> Vec<Cow<'_, Self>> {
        if self.data.source.is_empty() {
            return vec![Cow::Borrowed(self)];
        }
        let alone = |source| Cow::Owned(Self { data: self.data.of_source(source), ..self.clone() });
        self.data.source.iter().map(alone).collect()
    }

    /// Returns the key of a setting of the source of this number, for messages: `data.root` of a recipe without a list.
    pub fn source_key(&self, number: usize, key: &str) -> String {
        match (self.data.source.is_empty(), key.strip_prefix("data.")) {
            (false, Some(name)) => format!("data.source[{number}].{name}"),
            _ => key.to_owned(),
        }
    }
}
