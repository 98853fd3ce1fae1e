//! The settings of an experiment. A resume may change other settings.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::keys::{Section, Settings};
use super::{General, Stage};

/// Returns the settings of as many stages that differ, as (key, value here, value there).
pub(super) fn of_stages(mine: &[Stage], theirs: &[Stage]) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for (number, (mine, theirs)) in std::iter::zip(stages(mine), stages(theirs)).enumerate() {
        let keys: BTreeSet<&String> = mine.keys().chain(theirs.keys()).collect();
        let value = |table: &Table, key: &str| table.get(key).map_or_else(|| "not set".into(), words);
        for key in keys.into_iter().filter(|key| mine.get(key.as_str()) != theirs.get(key.as_str())) {
            found.push((format!("stage[{number}].{key}"), value(&mine, key), value(&theirs, key)));
        }
    }
    found
}

impl General {
    /// Adds every general setting of the experiment, always the same keys in the same order.
    pub(super) fn settings(&self, found: &mut Settings) {
        self.train.settings(found);
        self.optim.settings(found);
        self.optim.schedule.settings(found);
        found.experiment("optim.group", &self.optim.group);
        found.experiment("ema.decay", &self.ema.map(|ema| ema.decay));
        found.experiment("ema.warmup", &self.ema.map(|ema| ema.warmup));
        found.experiment("stage", &stages(&self.stage));
        found.0.push(("custom", words(&Value::Table(self.custom.clone()))));
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
        table.into_iter().map(|(key, value)| (key, without_programs(value))).collect()
    };
    stages.iter().enumerate().map(of).collect()
}

/// Returns a value without the paths of programs, which may lie elsewhere on another machine. Checkpoints have their hashes.
pub(super) fn without_programs(value: Value) -> Value {
    match value {
        Value::String(path) if path.starts_with('/') && path.ends_with(".pt2") => "program".into(),
        Value::Array(list) => list.into_iter().map(without_programs).collect::<Vec<_>>().into(),
        Value::Table(table) => {
            table.into_iter().map(|(key, value)| (key, without_programs(value))).collect::<Table>().into()
        }
        other => other,
    }
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
