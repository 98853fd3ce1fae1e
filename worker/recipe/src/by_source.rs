//! The settings of one source.

use std::borrow::Cow;

use dtrain_common::recipe::keys::Section;

use super::{Data, DataKind, Recipe, Source, Val};

impl Data {
    /// Returns the kind of a source.
    pub(super) fn kind_of(&self, source: &Source) -> DataKind {
        source.kind.unwrap_or(self.kind)
    }

    /// Returns whether all samples are lines of tables.
    pub(super) fn is_of_tables(&self) -> bool {
        match self.source.is_empty() {
            true => self.kind.has_columns(),
            false => self.source.iter().all(|source| self.kind_of(source).has_columns()),
        }
    }

    /// Returns the settings of one source, as if it were alone.
    pub(super) fn of_source(&self, source: &Source) -> Self {
        let or = |own: &Option<String>, usual: &String| own.as_ref().unwrap_or(usual).clone();
        Self {
            root: Some(source.root.clone()),
            kind: self.kind_of(source),
            fields: if source.fields.is_empty() { self.fields.clone() } else { source.fields.clone() },
            train: or(&source.train, &self.train),
            test: or(&source.test, &self.test),
            train_masks: or(&source.train_masks, &self.train_masks),
            test_masks: or(&source.test_masks, &self.test_masks),
            pair: source.pair.clone().or_else(|| self.pair.clone()),
            source: Vec::new(),
            ..self.clone()
        }
    }
}

impl Recipe {
    /// Returns the names of the sets of samples: folders, or words of a table.
    pub(super) fn sets(&self) -> Vec<String> {
        let data = &self.data;
        let val = data.val.as_ref().and_then(Val::set);
        let more = val.into_iter().chain(data.tests.values().map(String::as_str));
        [data.train.as_str(), &data.test].into_iter().chain(more).map(str::to_owned).collect()
    }

    /// Returns the recipe of each source, as if it were alone; this one, if it lists none.
    pub fn by_source(&self) -> Vec<Cow<'_, Self>> {
        if self.data.source.is_empty() {
            return vec![Cow::Borrowed(self)];
        }
        let alone = |source| Cow::Owned(Self { data: self.data.of_source(source), ..self.clone() });
        self.data.source.iter().map(alone).collect()
    }

    /// Returns the key of a setting of the source of this number, for messages: `data.root` of a recipe without a list. A setting of
    /// all sources keeps its key.
    pub fn source_key(&self, number: usize, key: &str) -> String {
        let is_own = |name: &str| Source::KEYS.iter().any(|own| name.split('.').next() == Some(own.name));
        match (self.data.source.is_empty(), key.strip_prefix("data.").filter(|name| is_own(name))) {
            (false, Some(name)) => format!("data.source[{number}].{name}"),
            _ => key.to_owned(),
        }
    }
}
