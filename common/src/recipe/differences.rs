//! The settings of an experiment, and comparison of recipes in them. A resume may change other settings.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::keys::{Section, Settings};
use super::{Recipe, Stage};

impl Recipe {
    /// Returns the experiment settings that differ, as (key, value here, value there).
    pub fn differences(&self, other: &Self) -> Vec<(String, String, String)> {
        let differing = std::iter::zip(self.experiment(), other.experiment())
            .filter(|((_, mine), (_, theirs))| mine != theirs)
            .map(|((key, mine), (_, theirs))| (key.to_owned(), mine, theirs));
        differing
            .flat_map(|one| match one.0 == "stage" && self.stage.len() == other.stage.len() {
                true => self.differences_of_stages(other),
                false => vec![one],
            })
            .collect()
    }

    /// Returns the settings of as many stages that differ.
    fn differences_of_stages(&self, other: &Self) -> Vec<(String, String, String)> {
        let mut found = Vec::new();
        for (number, (mine, theirs)) in std::iter::zip(stages(&self.stage), stages(&other.stage)).enumerate()
        {
            let keys: BTreeSet<&String> = mine.keys().chain(theirs.keys()).collect();
            let value = |table: &Table, key: &str| table.get(key).map_or_else(|| "not set".into(), words);
            for key in keys.into_iter().filter(|key| mine.get(key.as_str()) != theirs.get(key.as_str())) {
                found.push((format!("stage[{number}].{key}"), value(&mine, key), value(&theirs, key)));
            }
        }
        found
    }

    /// Returns every setting of the experiment as text, always the same keys in the same order.
    pub(super) fn experiment(&self) -> Vec<(&'static str, String)> {
        let mut found = Settings::default();
        found.experiment("task", &self.task);
        self.data.settings(&mut found);
        self.model.settings(&mut found);
        self.train.settings(&mut found);
        self.optim.settings(&mut found);
        self.optim.schedule.settings(&mut found);
        found.experiment("optim.group", &self.optim.group);
        found.experiment("ema.decay", &self.ema.map(|ema| ema.decay));
        found.experiment("ema.warmup", &self.ema.map(|ema| ema.warmup));
        found.experiment("stage", &stages(&self.stage));
        found.0.push(("custom", words(&Value::Table(self.custom.clone()))));
        found.0
    }
}

/// Returns the stages' part of the experiment. The last stage may grow if it unfreezes nothing later.
fn stages(stages: &[Stage]) -> Vec<Table> {
    let of = |(number, stage): (usize, &Stage)| {
        let ends = number + 1 == stages.len() && stage.unfreeze.iter().all(|entry| entry.at == 0.0);
        let length: &[&str] = if ends { &["epochs", "steps"] } else { &[] };
        let mut table = Table::try_from(stage).unwrap_or_default();
        for key in ["name", "micro_batch", "recompute", "best"].iter().chain(length) {
            table.remove(*key);
        }
        table
    };
    stages.iter().enumerate().map(of).collect()
}

/// Writes a value as text, with a table's keys sorted: their order in the file has no meaning.
fn words(value: &Value) -> String {
    match value {
        Value::Table(table) => {
            let mut entries: Vec<_> = table.iter().map(|(key, value)| (key, words(value))).collect();
            entries.sort();
            let entries: Vec<_> = entries.iter().map(|(key, value)| format!("{key} = {value}")).collect();
            format!("{{{}}}", entries.join(", "))
        }
        Value::Array(list) => format!("[{}]", list.iter().map(words).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}
