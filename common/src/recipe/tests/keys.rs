//! The schema, the types and the list of the experiment's settings know the same keys.

use super::*;

/// No key can be added without deciding whether it makes the experiment.
#[test]
fn every_key_is_of_the_experiment_or_free() {
    let free = [
        "data.root",
        "data.workers",
        "data.cache",
        "model.file",
        "model.weights",
        "model.memory_format",
        "train.epochs",
        "train.steps",
        "precision.amp",
        "precision.loss_scale",
        "memory.micro_batch",
        "memory.shard_optimizer",
        "reduce.bucket",
        "reduce.first_bucket",
        "reduce.overlap",
        "reduce.compress",
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
    fn leaves(value: &serde_json::Value, path: &str, found: &mut Vec<String>) {
        match value.as_object() {
            Some(map) if path != ".custom" => map
                .iter()
                .for_each(|(name, inner)| leaves(inner, &format!("{path}.{name}"), found)),
            _ => found.push(path.trim_start_matches('.').to_string()),
        }
    }
    let mut found = Vec::new();
    for recipe in samples() {
        leaves(&serde_json::to_value(&recipe).unwrap(), "", &mut found);
    }
    found.sort();
    found.dedup();
    assert_eq!(found, schema_keys());
}

/// What a group writes is what the schema lists for groups.
#[test]
fn schema_and_groups_agree() {
    let group = parse(FULL, &[]).unwrap().optim.group.remove(1);
    let written = serde_json::to_value(group).unwrap();
    let written: Vec<_> = written.as_object().unwrap().keys().cloned().collect();
    let optim = schema::RECIPE.iter().find(|key| key.name == "optim").unwrap();
    let schema::Kind::Section(keys) = optim.kind else {
        panic!("optim is a section")
    };
    let groups = keys.iter().find(|key| key.name == "group").unwrap();
    let schema::Kind::Sections(keys) = groups.kind else {
        panic!("groups are sections")
    };
    let mut listed: Vec<_> = keys.iter().map(|key| key.name).collect();
    listed.sort();
    let mut written = written;
    written.sort();
    assert_eq!(written, listed);
}

#[test]
fn every_word_of_the_schema_reads() {
    for (key, words) in [
        ("task", Task::NAMES),
        ("data.kind", DataKind::NAMES),
        ("data.masks", Masks::NAMES),
        ("data.resize", Resize::NAMES),
        ("data.augment", Augment::NAMES),
        ("data.tokenizer", Tokenizer::NAMES),
        ("model.name", ModelName::NAMES),
        ("model.loss", Loss::NAMES),
        ("model.batchnorm", BatchNorm::NAMES),
        ("model.memory_format", MemoryFormat::NAMES),
        ("train.last_batch", LastBatch::NAMES),
        ("optim.name", OptimName::NAMES),
        ("optim.decay", Decay::NAMES),
        ("optim.scaling", Scaling::NAMES),
        ("optim.schedule.name", ScheduleName::NAMES),
        ("optim.schedule.per", Per::NAMES),
        ("precision.amp", Amp::NAMES),
        ("reduce.compress", Compress::NAMES),
    ] {
        for word in words {
            let set = format!("{key}={word}");
            // Some words need settings beside them.
            let beside = [
                "optim.lr=1",
                "optim.schedule.every=1 epoch",
                "optim.schedule.gamma=0.5",
            ];
            let beside = beside.map(|more| vec![more, &set]);
            let mut choices = vec![vec![set.as_str()], vec!["optim.reference_batch=128", &set]];
            choices.extend(beside);
            let taken = samples::TEXTS
                .iter()
                .any(|text| choices.iter().any(|sets| parse(text, sets).is_ok()));
            assert!(taken, "no recipe takes {set}");
        }
    }
}
