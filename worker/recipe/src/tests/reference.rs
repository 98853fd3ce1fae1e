//! The schema, the types and the list of the experiment's settings have the same keys.

use dtrain_common::recipe::keys::Section;

use super::*;

static KEYS: [kinds::Key; 15] = load::OWN.keys();

/// Every new key must be listed as part of the experiment or as free.
#[test]
fn every_key_is_of_the_experiment_or_free() {
    let free = [
        ("data", "root source tests workers cache"),
        (
            "model",
            "file figures libraries weights weights_mode weights_rename weights_new memory_format cudnn_benchmark compile",
        ),
        ("train", "epochs steps stop_early.patience stop_early.figure stop_early.min_delta"),
        ("precision", "amp loss_scale tf32"),
        ("memory", "micro_batch budget recompute grow shard_optimizer"),
        ("reduce", "bucket first_bucket overlap compress"),
        ("checkpoint", "every keep best keep_every in_memory on_failure"),
        ("evaluate", "every batch figures share samples"),
        ("test", "weights samples"),
        ("log", "every_steps trace tensorboard pictures command on_end"),
    ];
    let Resolved { recipe, experiment, .. } = small(&[]).resolved().unwrap();
    let mut decided: Vec<String> = recipe.experiment(&experiment).into_iter().map(|(key, _)| key).collect();
    for (section, keys) in free {
        decided.extend(keys.split(' ').map(|key| format!("{section}.{key}")));
    }
    // One setting, because a recipe without it lacks the inner ones.
    for (section, keys) in
        [("data.episodes", Episodes::KEYS), ("model.lora", Lora::KEYS), ("model.frozen", Frozen::KEYS)]
    {
        let whole = decided.iter().position(|key| key == section).unwrap();
        decided.remove(whole);
        decided.extend(keys.iter().map(|key| format!("{section}.{}", key.name)));
    }
    decided.sort();
    assert_eq!(decided, schema_keys());
}

pub(super) fn schema_keys() -> Vec<String> {
    fn visit(keys: &[kinds::Key], path: &str, found: &mut Vec<String>) {
        for key in keys {
            let name = format!("{path}{}", key.name);
            match &key.kind {
                kinds::Kind::Section(inner) => visit(inner, &format!("{name}."), found),
                _ => found.push(name),
            }
        }
    }
    let mut found = Vec::new();
    visit(&KEYS, "", &mut found);
    found.sort();
    found
}

/// The schema and the types have the same keys: the types write exactly the keys of the schema.
#[test]
fn schema_and_types_agree() {
    fn leaves(value: &serde_json::Value, path: &str, found: &mut Vec<String>) {
        match value.as_object() {
            Some(map)
                if ![
                    ".custom",
                    ".data.fields",
                    ".data.tests",
                    ".data.repeat",
                    ".data.lists",
                    ".model.inputs",
                    ".model.auxiliary",
                    ".model.state",
                ]
                .contains(&path) =>
            {
                map.iter().for_each(|(name, inner)| leaves(inner, &format!("{path}.{name}"), found))
            }
            _ => found.push(path.trim_start_matches('.').to_string()),
        }
    }
    let mut found = Vec::new();
    for recipe in samples() {
        leaves(&serde_json::to_value(recipe.plain().unwrap()).unwrap(), "", &mut found);
    }
    found.sort();
    found.dedup();
    assert_eq!(found, schema_keys());
}

/// Returns the keys of the section `name`, or of each member of the list `name`.
fn inner_keys(keys: &'static [kinds::Key], name: &str) -> &'static [kinds::Key] {
    match keys.iter().find(|key| key.name == name).unwrap().kind {
        kinds::Kind::Section(inner) | kinds::Kind::Sections(inner, _) => inner,
        _ => panic!("{name} is a section"),
    }
}

/// Checks that the written keys are the keys of the schema.
fn agree(written: &[serde_json::Value], listed: &[kinds::Key]) {
    let mut keys: Vec<&str> =
        written.iter().flat_map(|value| value.as_object().unwrap().keys().map(String::as_str)).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut listed: Vec<_> = listed.iter().map(|key| key.name).collect();
    listed.sort_unstable();
    assert_eq!(keys, listed);
}

#[test]
fn schema_and_groups_agree() {
    let group = parse(FULL, &[]).unwrap().optim.group.remove(1);
    let written = [serde_json::to_value(group).unwrap()];
    agree(&written, inner_keys(inner_keys(&KEYS, "optim"), "group"));
}

#[test]
fn schema_and_stages_agree() {
    let recipe = serde_json::to_value(parse(samples::STAGES, &[]).unwrap().plain().unwrap()).unwrap();
    let stages = recipe["stage"].as_array().unwrap();
    let keys = inner_keys(&KEYS, "stage");
    agree(stages, keys);
    agree(stages[1]["unfreeze"].as_array().unwrap(), inner_keys(keys, "unfreeze"));
    agree(stages[1]["group"].as_array().unwrap(), inner_keys(keys, "group"));
}

#[test]
fn every_word_of_the_schema_reads() {
    for (key, words) in [
        ("task", Task::NAMES),
        ("data.kind", DataKind::NAMES),
        ("data.target", Target::NAMES),
        ("data.separator", Separator::NAMES),
        ("data.masks", Masks::NAMES),
        ("data.unannotated", Unannotated::NAMES),
        ("data.resize", Resize::NAMES),
        ("data.augment", Augment::NAMES),
        ("data.sampler", Sampler::NAMES),
        ("data.mix_by", MixBy::NAMES),
        ("data.tokenizer", Tokenizer::NAMES),
        ("data.documents", Documents::NAMES),
        ("data.dtype", TokenType::NAMES),
        ("model.state.queue", Join::NAMES),
        ("model.name", ModelName::NAMES),
        ("model.loss", SampleLoss::NAMES),
        ("model.batchnorm", BatchNorm::NAMES),
        ("model.memory_format", MemoryFormat::NAMES),
        ("train.last_batch", LastBatch::NAMES),
        ("optim.name", OptimName::NAMES),
        ("optim.decay", Decay::NAMES),
        ("optim.scaling", Scaling::NAMES),
        ("optim.schedule.name", ScheduleName::NAMES),
        ("optim.schedule.per", Per::NAMES),
        ("precision.amp", Amp::NAMES),
        ("memory.recompute", Recompute::NAMES),
        ("reduce.compress", Compress::NAMES),
        ("stage.0.schedule", AtStageStart::NAMES),
        ("stage.1.ema", AtStageStart::NAMES),
        ("stage.0.loss", SampleLoss::NAMES),
        ("stage.0.recompute", Recompute::NAMES),
    ] {
        for word in words {
            let set = format!("{key}={word}");
            // Some words need other settings.
            let beside = [
                "data.kind=generated",
                "data.kind=text",
                "optim.lr=1",
                "optim.schedule.every=1 epoch",
                "optim.schedule.gamma=0.5",
            ];
            let beside = beside.map(|more| vec![more, &set]);
            let mut choices = vec![vec![set.as_str()], vec!["optim.reference_batch=128", &set]];
            choices.extend(beside);
            let taken =
                samples::TEXTS.iter().any(|text| choices.iter().any(|sets| parse(text, sets).is_ok()));
            assert!(taken, "no recipe takes {set}");
        }
    }
}

const DOCS: &str = include_str!("../../../../docs/recipe.md");

/// Returns the part of the reference below a heading.
pub(super) fn docs_of(heading: &str) -> &'static str {
    let start =
        DOCS.find(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no {heading} in docs/recipe.md"));
    let body = &DOCS[start + heading.len() + 2..];
    let level = heading.split(' ').next().unwrap();
    let end = body.find(&format!("\n{level} ")).unwrap_or(body.len());
    &body[..end]
}

/// Every key has a row with all its words in the reference, below the heading of its section.
#[test]
fn the_reference_lists_every_key_and_word() {
    fn visit(keys: &[kinds::Key], part: &str) {
        for key in keys {
            assert!(part.contains(&format!("| `{}` |", key.name)), "no row for {}", key.name);
            match &key.kind {
                // A sub-section or a list of sections has its own heading.
                kinds::Kind::Section(inner) | kinds::Kind::Sections(inner, _) => {
                    visit(inner, docs_of(&format!("### `{}`", key.name)));
                }
                kinds::Kind::Named(named) => {
                    let part = docs_of(&format!("### `{}`", key.name));
                    for one in *named {
                        assert!(part.contains(&format!("| `\"{}\"` |", one.name)), "no row for {}", one.name);
                        for key in one.keys {
                            assert!(part.contains(&format!("| `{}` |", key.name)), "no row for {}", key.name);
                        }
                    }
                }
                kinds::Kind::Choice(words, _) => {
                    for word in *words {
                        assert!(part.contains(&format!("`\"{word}\"`")), "no {word:?} for {}", key.name);
                    }
                }
                _ => {}
            }
        }
    }
    for key in &KEYS {
        match &key.kind {
            kinds::Kind::Section(inner) => visit(inner, docs_of(&format!("## `[{}]`", key.name))),
            kinds::Kind::Sections(inner, _) => visit(inner, docs_of(&format!("## `[[{}]]`", key.name))),
            kinds::Kind::Free => assert!(!docs_of(&format!("## `[{}]`", key.name)).is_empty()),
            _ => visit(std::slice::from_ref(key), docs_of("## Top level")),
        }
    }
    for (name, _) in Source::embedded() {
        assert!(DOCS.contains(&format!("| `{name}` |")), "no row for the embedded recipe {name}");
    }
}

/// The recipes in the reference are valid.
#[test]
fn the_examples_of_the_reference_read() {
    let blocks = DOCS.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let mut whole = 0;
    for block in blocks {
        if block.starts_with("task = ") {
            parse(block, &[]).unwrap();
            whole += 1;
        } else {
            parse(&format!("{SMALL}{block}"), &[]).unwrap();
        }
    }
    assert!(whole >= 2, "{whole} whole recipes");
}

/// The JSON Schema describes every key, and takes the defaults of every section.
#[test]
fn the_json_schema_has_every_key() {
    fn visit(schema: &serde_json::Value, path: &str, found: &mut Vec<String>) {
        for (name, inner) in schema["properties"].as_object().unwrap() {
            let name = format!("{path}{name}");
            assert!(inner["description"].as_str().unwrap().ends_with('.'), "{name}: {inner}");
            match inner["properties"].is_object() {
                true => visit(inner, &format!("{name}."), found),
                false => found.push(name),
            }
        }
    }
    let schema = Recipe::schema(None).unwrap();
    let mut found = Vec::new();
    visit(&schema, "", &mut found);
    found.sort();
    assert_eq!(found, schema_keys());
    let batch = &schema["properties"]["train"]["properties"]["effective_batch"];
    assert_eq!((batch["default"].as_u64(), batch["minimum"].as_u64()), (Some(128), Some(1)));
    let betas = &schema["properties"]["optim"]["properties"]["betas"]["items"];
    assert_eq!((betas["minimum"].as_f64(), betas["exclusiveMaximum"].as_f64()), (Some(0.0), Some(1.0)));
    assert_eq!(schema["properties"]["task"]["enum"], serde_json::json!(Task::NAMES));
    let required = &schema["properties"]["stage"]["items"]["properties"]["unfreeze"]["items"]["required"];
    assert_eq!(*required, serde_json::json!(["at", "match"]));
}
