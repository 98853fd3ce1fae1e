//! Every kind of error of a recipe: place, key and text.

use super::*;

/// A recipe; the tests below rely on its line numbers.
pub(super) const LINES: &str = "\
task = \"classify\"
[data]
root = \"/data/x\"
[train]
epochs = 10
[optim]
lr = 1e-3
schedule = { name = \"cosine\",
  warmup = \"1 epoch\" }
";

/// Replaces one line of `LINES` (from 1) and returns the error.
fn at_line(line: usize, text: &str) -> RecipeError {
    let mut lines: Vec<&str> = LINES.lines().collect();
    lines[line - 1] = text;
    parse(&lines.join("\n"), &[]).unwrap_err()
}

pub(super) fn by_set(overrides: &[&str]) -> RecipeError {
    parse(LINES, overrides).unwrap_err()
}

#[test]
fn an_unknown_key_names_file_line_key_and_the_nearest() {
    let error = at_line(5, "epocs = 10");
    assert_eq!(
        (error.source_name(), error.line(), error.key()),
        (Some("a.toml"), Some(5), Some("train.epocs"))
    );
    assert_eq!(
        error.to_string(),
        "a.toml:5: train.epocs: unknown key; did you mean `epochs`? [train] takes effective_batch, epochs, steps, \
         seed, last_batch, overfit, stop_early"
    );
}

#[test]
fn unknown_keys_are_explained() {
    for (line, text, key, parts) in [
        (5, "batch_size = 1", "train.batch_size", &["did you mean `effective_batch`?"][..]),
        (5, "lr = 1", "train.lr", &["it belongs in [optim]"]),
        (5, "name = 1", "train.name", &["it belongs in one of [model], [optim], [optim.schedule]"]),
        (5, "zzz = 1", "train.zzz", &["unknown key; [train] takes effective_batch"]),
        (5, "\"a.b\" = 1", "train.a.b", &["unknown key"]),
        (2, "[dta]", "dta", &["did you mean `data`?", "a recipe takes task, data, model"]),
        (1, "tsk = \"classify\"", "tsk", &["did you mean `task`?"]),
        (
            9,
            "  warmpu = \"1 epoch\" }",
            "optim.schedule.warmpu",
            &["did you mean `warmup`?", "[optim.schedule] takes"],
        ),
    ] {
        let error = at_line(line, text);
        assert_eq!((error.key(), error.line()), (Some(key), Some(line)), "{error}");
        for part in parts {
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}

#[test]
fn wrong_values_name_the_expected_and_the_found_value() {
    for (text, key, expected) in [
        ("epochs = \"ten\"", "train.epochs", "expected a whole number of at least 1, got the text \"ten\""),
        ("epochs = 2.0", "train.epochs", "expected a whole number of at least 1, got the number 2.0"),
        ("epochs = 0", "train.epochs", "expected a whole number of at least 1, got the whole number 0"),
        ("epochs = -1", "train.epochs", "got the whole number -1"),
        ("epochs = true", "train.epochs", "got true"),
        ("epochs = [1, 2]", "train.epochs", "got the list [1, 2]"),
        ("epochs = { a = 1 }", "train.epochs", "got a section"),
        ("epochs = 2024-01-01", "train.epochs", "got the date 2024-01-01"),
        ("effective_batch = 0", "train.effective_batch", "expected a whole number of at least 1"),
        ("seed = -1", "train.seed", "expected a whole number of at least 0"),
        ("steps = 0", "train.steps", "expected a whole number of at least 1"),
        (
            "last_batch = \"kep\"",
            "train.last_batch",
            "expected one of \"keep\", \"drop\", got the text \"kep\"; did you mean \"keep\"?",
        ),
    ] {
        let error = at_line(5, text);
        assert_eq!((error.key(), error.line()), (Some(key), Some(5)), "{error}");
        assert!(error.message().contains(expected), "{error}");
    }
}

#[test]
fn every_range_is_checked() {
    for set in [
        "optim.lr=nan",
        "optim.lr=inf",
        "optim.lr=-1e-3",
        "optim.lr=fast",
        "optim.reference_batch=0",
        "optim.weight_decay=-0.1",
        "optim.betas=[0.9, 1.0]",
        "optim.betas=[-0.1, 0.9]",
        "optim.betas=[0.9]",
        "optim.betas=[0.9, 0.9, 0.9]",
        "optim.betas=0.9",
        "optim.eps=0",
        "optim.clip=0",
        "optim.clip=inf",
        "optim.schedule.min_lr=-1",
        "optim.schedule.warmup=5",
        "optim.schedule.warmup=5 eras",
        "optim.schedule.warmup=-1 epochs",
        "data.image_size=0",
        "data.image_size=4097",
        "data.workers=0",
        "data.workers=many",
        "data.mean=[0, nan, 0]",
        "data.mean=[0, 0]",
        "data.mean=[]",
        "data.std=[1, 1, 0]",
        "data.train=/abs",
        "data.train=",
        "data.train=../up",
        "data.test=a/../b",
        "data.test=.",
        "data.root=",
        "data.kind=zip",
        "model.weights=",
        "memory.micro_batch=0",
        "memory.micro_batch=automatic",
        "checkpoint.every=0 epochs",
        "checkpoint.every=0 steps",
        "checkpoint.keep=0",
        "log.every_steps=0",
        "log.trace=0-3",
        "log.trace=12-10",
        "log.trace=ten",
        "train.seed=1e3",
    ] {
        let error = by_set(&[set]);
        let key = set.split_once('=').unwrap().0;
        assert_eq!((error.key(), error.line(), error.set()), (Some(key), None, Some(set)), "{error}");
        assert!(error.to_string().starts_with(&format!("--set {set}: ")), "{error}");
    }
}

#[test]
fn sections_must_be_sections() {
    let error = parse("task = \"classify\"\ndata = 3\n", &[]).unwrap_err();
    assert_eq!(error.to_string(), "a.toml:2: data: expected a section [data], got the whole number 3");
    let error = parse(&format!("{SMALL}[[model]]\nname = \"resnet18\"\n"), &[]).unwrap_err();
    assert_eq!((error.key(), error.line()), (Some("model"), Some(6)), "{error}");
}

#[test]
fn missing_keys_are_named() {
    let error = parse("[data]\nkind = \"generated\"\n", &[]).unwrap_err();
    assert_eq!(error.key(), Some("task"));
    assert!(error.to_string().contains("task = \"classify\""), "{error}");
    assert_eq!(parse("task = \"classify\"", &[]).unwrap_err().key(), Some("data"));
    assert_eq!(parse("", &[]).unwrap_err().key(), Some("task"));

    let error = at_line(3, "image_size = 32");
    assert_eq!((error.key(), error.line()), (Some("data.root"), Some(2)), "the section's line: {error}");
    let error = at_line(5, "seed = 1");
    assert_eq!((error.key(), error.line()), (Some("train.epochs"), Some(4)), "{error}");
    let error = at_line(7, "name = \"sgd\"");
    assert_eq!((error.key(), error.line()), (Some("optim.lr"), Some(6)), "{error}");
}

#[test]
fn syntax_errors_name_the_line() {
    for (line, text) in [(5, "epochs = "), (5, "epochs 10"), (6, "[optim"), (5, "epochs = 1\nepochs = 2")] {
        let error = at_line(line, text);
        assert_eq!(error.key(), None);
        let found = error.line().unwrap();
        assert!(found == line || found == line + 1, "{found}: {error}");
        assert!(error.to_string().starts_with(&format!("a.toml:{found}: this is not TOML: ")), "{error}");
    }
}

#[test]
fn a_number_beyond_64_bits_names_its_key() {
    let error = at_line(5, "steps = 9999999999999999999999");
    assert_eq!((error.line(), error.key()), (Some(5), Some("train.steps")), "{error}");
    assert!(error.to_string().contains("too large"), "{error}");
    let error = at_line(9, "  min_lr = 9999999999999999999999 }");
    assert_eq!((error.line(), error.key()), (Some(9), Some("optim.schedule.min_lr")), "{error}");
    // In an override it is not a TOML value and therefore a text.
    let error = by_set(&["train.steps=9999999999999999999999"]);
    assert!(error.message().ends_with("got the text \"9999999999999999999999\""), "{error}");
}

#[test]
fn overrides_must_be_well_formed() {
    for (set, part) in [
        ("", "it has no `=`"),
        ("train.epochs", "it has no `=`"),
        ("=3", "is not a key"),
        ("train.=3", "is not a key"),
        (".train=3", "is not a key"),
        ("train..epochs=3", "is not a key"),
        ("task.name=x", "`task` is the text \"classify\", which has no keys"),
        ("train.epochs.x=1", "`train.epochs` is the whole number 10"),
        ("data.nothing.x=1", "unknown key"),
        ("nothing.x.y=1", "unknown key"),
    ] {
        let error = by_set(&[set]);
        assert_eq!((error.set(), error.line()), (Some(set), None), "{error}");
        assert!(error.to_string().starts_with(&format!("--set {set}: ")), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(by_set(&[&format!("{}=1", "a.".repeat(100_000) + "a")]).to_string().contains("parts"));
}

#[test]
fn the_deciding_override_is_named() {
    let error = by_set(&["train.epochs=1", "train.epochs=x", "train.seed=2"]);
    assert_eq!(error.set(), Some("train.epochs=x"));
    let error = by_set(&["optim={ lr = -1 }"]);
    assert_eq!(
        error.to_string(),
        "--set optim={ lr = -1 }: optim.lr: expected a number of at least 0, got the whole number -1"
    );
}

#[test]
fn the_first_error_of_the_file_is_reported() {
    let text = "task = \"classify\"\n[train]\nepocs = 1\n[data]\nkid = \"generated\"\n";
    assert_eq!(parse(text, &[]).unwrap_err().line(), Some(3));
}

#[test]
fn a_file_that_cannot_be_a_recipe_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_string()
    };
    for (path, part) in [
        (write("binary.toml", &[0xff, 0xfd, 0]), "is not text in UTF-8"),
        (
            write("notepad.toml", &[0xff, 0xfe, 0]),
            "is a text in UTF-16; convert it with `iconv -f UTF-16 -t UTF-8 ",
        ),
        (write("config.toml", b"{\"task\": \"classify\"}"), "is a JSON text, not a recipe in TOML"),
        (write("w.toml", b"version https://git-lfs.github.com/spec/v1\n"), "lfs pull --include w.toml`"),
        (write("large.toml", &vec![b'#'; (1 << 20) + 1]), "is larger than 1 MiB"),
    ] {
        let error = Recipe::load(&path, &[]).unwrap_err();
        assert!(error.to_string().starts_with(&path) && error.to_string().contains(part), "{error}");
    }
    let error = Recipe::load("demmo", &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "demmo: there is no such file. Did you mean the built-in recipe `demo`? Give the path of a recipe or the \
         name of a built-in one: demo, cifar100, camvid, shakespeare"
    );
    let error = Recipe::load("cifar", &[]).unwrap_err();
    assert!(error.to_string().contains("Did you mean the built-in recipe `cifar100`?"), "{error}");
    assert!(Recipe::load("", &[]).is_err());
}

#[test]
fn adapters_need_the_names_of_weights() {
    for (set, key, part) in [
        ("model.lora={ rank = 4 }", "model.lora.match", "missing; name the weights"),
        ("model.lora={ match = \"*\", rank = 0 }", "model.lora.rank", "a whole number from 1"),
        ("model.lora={ match = \"*\", alpha = 0 }", "model.lora.alpha", "above 0"),
        ("model.frozen={ int4 = [\"*\"] }", "model.frozen.int4", "bf16, fp16, int8"),
    ] {
        expect_error(SMALL, &[set], key, part);
    }
}
