//! The schema, the types and the list of the experiment's settings know the same keys.

use super::*;

/// No key can be added without deciding whether it makes the experiment.
#[test]
fn every_key_is_of_the_experiment_or_free() {
    let free = [
        "data.root",
        "data.workers",
        "model.weights",
        "train.epochs",
        "train.steps",
        "precision.amp",
        "memory.micro_batch",
        "checkpoint.every",
        "checkpoint.keep",
        "log.every_steps",
    ];
    let mut decided: Vec<String> = small(&[])
        .experiment()
        .into_iter()
        .map(|(key, _)| key.to_string())
        .collect();
    decided.extend(free.map(String::from));
    decided.sort();
    assert_eq!(decided, schema_keys());
}

pub(super) fn schema_keys() -> Vec<String> {
    fn visit(keys: &[schema::Key], path: &str, found: &mut Vec<String>) {
        for key in keys {
            let name = format!("{path}{}", key.name);
            match &key.kind {
                schema::Kind::Section(inner) => visit(inner, &format!("{name}."), found),
                schema::Kind::Planned => {}
                _ => found.push(name),
            }
        }
    }
    let mut found = Vec::new();
    visit(schema::RECIPE, "", &mut found);
    found.sort();
    found
}

/// The schema and the types know the same keys: what the types write is what the schema lists.
#[test]
fn schema_and_types_agree() {
    let mut folder = parse(FULL, &[]).unwrap();
    folder.optim.momentum = Some(0.5);
    folder.optim.nesterov = Some(true);
    let mut generated = folder.clone();
    generated.data.kind = DataKind::Generated;
    fn leaves(value: &serde_json::Value, path: &str, found: &mut Vec<String>) {
        match value.as_object() {
            Some(map) => map
                .iter()
                .for_each(|(name, inner)| leaves(inner, &format!("{path}.{name}"), found)),
            None => found.push(path.trim_start_matches('.').to_string()),
        }
    }
    let mut found = Vec::new();
    for recipe in [&folder, &generated] {
        leaves(&serde_json::to_value(recipe).unwrap(), "", &mut found);
    }
    found.sort();
    found.dedup();
    assert_eq!(found, schema_keys());
}

#[test]
fn every_word_of_the_schema_reads() {
    for (key, words) in [
        ("task", Task::NAMES),
        ("data.augment", Augment::NAMES),
        ("model.name", ModelName::NAMES),
        ("train.last_batch", LastBatch::NAMES),
        ("optim.scaling", Scaling::NAMES),
        ("optim.schedule.name", ScheduleName::NAMES),
        ("precision.amp", Amp::NAMES),
    ] {
        for word in words {
            small(&["optim.reference_batch=128", &format!("{key}={word}")]);
        }
    }
}
