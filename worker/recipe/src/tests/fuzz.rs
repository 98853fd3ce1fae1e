//! Any recipe is read or an error, and a recipe that was read survives a file.

use proptest::prelude::*;

use super::errors::LINES;
use super::samples::TEXTS;
use super::*;

/// Returns values of every type, and every word of every choice.
fn values() -> Vec<String> {
    let mut values: Vec<String> = [
        "0",
        "1",
        "-1",
        "2",
        "16",
        "0.5",
        "2.5",
        "1e300",
        "nan",
        "true",
        "false",
        "[]",
        "[1, 2, 3]",
        "[0.5, 0.5]",
        "[0.5]",
        "[\"a.*\"]",
        "[\"3 steps\", \"7 steps\"]",
        "[\"1 epoch\", \"2 epochs\"]",
        "[{ match = \"a\", lr_factor = 2 }]",
        "[{ match = [\"a\", \"b\"], weight_decay = 0 }, { match = \"c\" }]",
        "[{ name = \"a\", epochs = 1, unfreeze = [{ at = 0.5, match = \"a.*\" }] }]",
        "[{ name = \"a\", steps = 1, loss = \"mse\", ema = \"restart\" }]",
        "[[]]",
        "{}",
        "{ a = { b = [1, \"x\"] } }",
        "focal",
        "{ cross-entropy = { smoothing = 0.1, class_weights = { a = 2 } }, dice = 0.5 }",
        "{ huber = { delta = 2 }, mse = 1 }",
        "auto",
        "off",
        "text",
        "5 steps",
        "1 epoch",
        "1.5 epochs",
        "4 GiB",
        "9223372036854775807",
        "2024-01-01",
        "\"\"",
    ]
    .map(String::from)
    .into();
    fn words(keys: &[kinds::Key], values: &mut Vec<String>) {
        for key in keys {
            match key.kind {
                kinds::Kind::Section(inner) | kinds::Kind::Sections(inner, _) => words(inner, values),
                kinds::Kind::Choice(built, _) => values.extend(built.iter().map(|word| word.to_string())),
                _ => {}
            }
        }
    }
    words(&load::OWN.keys(), &mut values);
    values.sort();
    values.dedup();
    values
}

fn any_set() -> impl Strategy<Value = String> {
    let key = prop::sample::select(reference::schema_keys());
    (key, prop::sample::select(values())).prop_map(|(key, value)| format!("{key}={value}"))
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text: String, set: String) {
        let _ = parse(&text, &[]);
        let _ = parse(SMALL, &[&set]);
    }

    /// Any value at any key: a valid recipe, or an error that names the key or a dependent one.
    #[test]
    fn any_value_at_any_key(set in any_set()) {
        for text in TEXTS.iter().chain([&LINES]) {
            match parse(text, &[&set]) {
                Ok(recipe) => round_trip(&recipe),
                Err(error) => prop_assert!(error.key().is_some(), "{}", error),
            }
        }
    }

    /// Several overrides together also reach conditions on several keys.
    #[test]
    fn any_values_at_any_keys(
        text in prop::sample::select(TEXTS.to_vec()),
        sets in prop::collection::vec(any_set(), 2..5),
    ) {
        let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
        match parse(text, &sets) {
            Ok(recipe) => round_trip(&recipe),
            Err(error) => prop_assert!(error.key().is_some(), "{}", error),
        }
    }

    /// Sizes, rates and spans keep every digit.
    #[test]
    fn any_number_round_trips(
        bucket in 1024u64..1 << 50,
        cache in 0u64..1 << 50,
        decay in 0.001f64..0.999,
        factor in 0f64..100.0,
        gamma in 0.01f64..1.0,
        step in 1u64..1000,
        freeze in prop::collection::vec("[a-z*.\\[\\]\"\\\\é]{1,8}", 0..4),
    ) {
        let mut recipe = small(&["optim.schedule={ name = \"step\", every = \"1 epoch\" }", "ema.decay=0.5"]);
        recipe.reduce.bucket = ByteSize(bucket);
        recipe.ema = Some(Ema { decay, warmup: step % 2 == 0 });
        recipe.optim.group = vec![
            OptimGroup {
                patterns: vec!["a.*".into()],
                lr_factor: factor,
                weight_decay: None,
                betas: Some([decay, 0.5]),
                eps: None,
                muon: None,
                clip_adaptive: None,
            },
            OptimGroup {
                patterns: vec!["b".into(), "c".into()],
                lr_factor: 1.0,
                weight_decay: Some(decay),
                betas: None,
                eps: Some(decay),
                muon: None,
                clip_adaptive: None,
            },
        ];
        recipe.optim.schedule.gamma = Some(gamma);
        recipe.optim.schedule.every = None;
        recipe.optim.schedule.milestones = Some(vec![Span::Steps(step), Span::Epochs(gamma)]);
        recipe.model.freeze = freeze;
        round_trip(&recipe);

        let mut recipe = parse(FULL, &[]).unwrap();
        recipe.data.cache = Cache::Size(ByteSize(cache));
        round_trip(&recipe);
    }
}

#[test]
fn deep_nesting_is_an_error_not_a_crash() {
    for text in [
        format!("task = {}1{}", "[".repeat(100_000), "]".repeat(100_000)),
        format!("{}a = 1", "a.".repeat(100_000)),
        format!("[{}a]\n", "a.".repeat(100_000)),
        format!("task = \"custom\"\n[custom]\na = {}1{}", "[".repeat(100_000), "]".repeat(100_000)),
        format!("task = \"custom\"\n[custom]\n{}a = 1", "a.".repeat(100_000)),
    ] {
        assert!(parse(&text, &[]).is_err());
    }
}
