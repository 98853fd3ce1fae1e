//! Settings that do not fit together, and missing paths.

use super::errors::{LINES, by_set};
use super::*;

#[test]
fn settings_without_effect_are_errors() {
    for (sets, key) in [
        (&["data.classes=5"][..], "data.classes"),
        (&["data.train_samples=5"], "data.train_samples"),
        (&["data.test_samples=5"], "data.test_samples"),
        (&["data.kind=generated"], "data.root"),
        (&["optim.momentum=0.9"], "optim.momentum"),
        (&["optim.nesterov=false"], "optim.nesterov"),
        (&["optim.name=sgd", "optim.betas=[0.9, 0.99]"], "optim.betas"),
        (&["optim.name=sgd", "optim.eps=1e-8"], "optim.eps"),
        (&["optim.schedule.name=constant", "optim.schedule.min_lr=0"], "optim.schedule.min_lr"),
    ] {
        let error = by_set(sets);
        assert_eq!(error.key(), Some(key), "{error}");
        assert!(error.message().contains("has no effect"), "{error}");
    }
    let error = parse(SMALL, &["data.train=x"]).unwrap_err();
    assert!(error.to_string().starts_with("--set data.train=x: this setting has no effect"), "{error}");
    // An override sets the bad value; the file has the line of the setting that loses its effect.
    assert_eq!(by_set(&["data.kind=generated"]).line(), Some(3));
}

#[test]
fn settings_must_fit_together() {
    for (sets, key, part) in [
        (&["optim.scaling=linear"][..], "optim.scaling", "optim.reference_batch"),
        (
            &["optim.schedule.min_lr=0.01"],
            "optim.schedule.min_lr",
            "0.01 is above the learning rate, which is 0.001",
        ),
        (
            &["optim.scaling=linear", "optim.reference_batch=256", "optim.schedule.min_lr=0.0006"],
            "optim.schedule.min_lr",
            "which is 0.0005 after scaling",
        ),
        (&["optim.scaling=linear", "optim.reference_batch=1", "optim.lr=1e308"], "optim.lr", "infinite"),
        (&["optim.name=sgd", "optim.nesterov=true"], "optim.nesterov", "optim.momentum above 0"),
        (&["optim.schedule.warmup=11 epochs"], "optim.schedule.warmup", "longer than the run of 10 epochs"),
        (
            &["train.steps=5", "optim.schedule.warmup=6 steps"],
            "optim.schedule.warmup",
            "a warm-up of 6 steps is longer than the run of 5 steps",
        ),
    ] {
        let error = by_set(sets);
        assert_eq!(error.key(), Some(key), "{error}");
        assert!(error.message().contains(part), "{error}");
    }
    let generated = |set: &str| parse(SMALL, &[set]);
    // 2000 samples in batches of 128: 16 steps.
    assert!(generated("optim.schedule.warmup=16 steps").is_ok());
    assert_eq!(generated("optim.schedule.warmup=17 steps").unwrap_err().key(), Some("optim.schedule.warmup"));
    // The warm-up of a stage that restarts the schedule, and of a run whose stages share one.
    let stages = |warmup: &str, schedule: &str| {
        let text = format!(
            "{LINES}\n[[stage]]\nname = \"a\"\nsteps = 10\n[[stage]]\nname = \"b\"\nsteps = 30\nschedule = \"{schedule}\"\n"
        );
        let text = text.replace("epochs = 10\n", "");
        let set = format!("optim.schedule.warmup={warmup} steps");
        parse(&text, &[&set]).map_err(|error| error.message().to_owned())
    };
    assert!(stages("10", "restart").is_ok());
    let error = stages("11", "restart").unwrap_err();
    assert!(error.contains("longer than stage \"a\" of 10 steps"), "{error}");
    let error = parse(SMALL, &["train.last_batch=drop", "data.train_samples=100"]).unwrap_err();
    assert_eq!(error.key(), Some("train.last_batch"));
    assert!(parse(LINES, &["optim.schedule.warmup=10 epochs"]).is_ok(), "the whole run may be warm-up");
}

#[test]
fn values_of_a_later_version_are_errors() {
    let error = by_set(&["task=elevation"]);
    assert_eq!((error.key(), error.set()), (Some("task"), Some("task=elevation")), "{error}");
    assert!(error.message().contains("is not built in this version"), "{error}");
}

#[test]
fn paths_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let recipe = |sets: &[&str]| {
        let mut sets = sets.to_vec();
        let first = format!("data.root={}", root.display());
        sets.insert(0, &first);
        parse(LINES, &sets).unwrap()
    };
    let error = |sets: &[&str]| recipe(sets).check_paths().unwrap_err();

    let missing = error(&["data.root=/no/such/folder"]);
    assert_eq!(
        missing.to_string(),
        "data.root: the folder /no/such/folder does not exist; set data.root to the folder that holds the train and \
         test folders"
    );
    assert!(error(&["data.root=~/x"]).to_string().contains("`~` is not expanded"));
    assert!(error(&[]).to_string().contains("has no folders"));
    std::fs::create_dir(root.join("train")).unwrap();
    std::fs::create_dir(root.join("val")).unwrap();
    let test = error(&[]);
    assert_eq!(test.key(), Some("data.test"));
    assert!(test.to_string().ends_with("has the folders train, val"), "{test}");
    recipe(&["data.test=val"]).check_paths().unwrap();
    std::fs::write(root.join("test"), "").unwrap();
    assert!(error(&[]).to_string().contains("is not a folder"));

    let weights = root.join("w.safetensors");
    let set = format!("model.weights={}", weights.display());
    assert_eq!(error(&["data.test=val", &set]).key(), Some("model.weights"));
    std::fs::create_dir(&weights).unwrap();
    assert!(
        error(&["data.test=val", &set])
            .to_string()
            .contains("is a folder; set model.weights to a safetensors file in it")
    );
    std::fs::remove_dir(&weights).unwrap();
    std::fs::write(&weights, "x").unwrap();
    recipe(&["data.test=val", &set]).check_paths().unwrap();
}

/// A source has no validation folder of another name.
#[test]
fn settings_of_all_sources_keep_their_key() {
    let folder = tempfile::tempdir().unwrap();
    for set in ["train", "test"] {
        std::fs::create_dir(folder.path().join(set)).unwrap();
    }
    let source = format!("[[data.source]]\nroot = {:?}\n", folder.path());
    let text = format!("task = \"classify\"\n[data]\nval = \"val\"\n{source}[train]\nepochs = 1\n");
    let error = |sets: &[&str]| parse(&text, sets).unwrap().check_paths().unwrap_err().to_string();
    assert!(error(&[]).starts_with("data.val: the folder "), "{}", error(&[]));
    assert!(
        error(&["data.train=none"]).starts_with("data.source[0].train: "),
        "{}",
        error(&["data.train=none"])
    );
}

#[test]
fn paths_of_other_tasks_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let check = |text: &str, sets: &[&str]| {
        let root = format!("data.root={}", root.display());
        parse(text, &[&[root.as_str()], sets].concat()).unwrap().check_paths()
    };
    // A text is a file or a folder.
    check(samples::LM, &[]).unwrap();
    let error = check(samples::LM, &["data.root=/no/such.txt"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "data.root: the file /no/such.txt does not exist; set data.root to a .txt file or to a folder of them"
    );
    let text = root.join("a.txt");
    std::fs::write(&text, "abc").unwrap();
    check(samples::LM, &[&format!("data.root={}", text.display())]).unwrap();

    // Masks are beside the images.
    for name in ["train", "test", "train_masks"] {
        std::fs::create_dir(root.join(name)).unwrap();
    }
    let error = check(samples::BINARY, &[]).unwrap_err();
    assert_eq!(error.key(), Some("data.test_masks"));
    assert!(error.to_string().ends_with("has the folders test, train, train_masks"), "{error}");
    std::fs::create_dir(root.join("test_masks")).unwrap();
    check(samples::BINARY, &[]).unwrap();

    let error = check(samples::PROGRAM, &[&format!("data.root={}", text.display())]).unwrap_err();
    assert_eq!(error.key(), Some("model.file"));
    assert!(error.to_string().contains("the file /m/gpt.PT2 does not exist"), "{error}");
}
