#![allow(clippy::unwrap_used)]

mod from;
mod named;
mod pointer;
mod rollback;

use std::time::Duration;

use super::*;
use crate::files::symlink_atomic;
use crate::manifest::tests::sample;
use crate::manifest::{FileEntry, Manifest};
use crate::recipe::{AnyRecipe, Resolved};

struct Place {
    _folder: tempfile::TempDir,
    run: RunDir,
}

/// A run directory that does not exist yet.
fn place() -> Place {
    let folder = tempfile::tempdir().unwrap();
    let run = RunDir::new(folder.path().join("runs/a"));
    Place { _folder: folder, run }
}

/// Returns the demo's recipe as of a trainer that adds one setting to the experiment.
fn recipe(sets: &[&str]) -> Resolved {
    let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
    let mut table: toml::Table = AnyRecipe::load("demo", &sets).unwrap().to_toml().unwrap().parse().unwrap();
    for set in sets {
        let (key, value) = set.split_once('=').unwrap();
        let (section, key) = key.split_once('.').unwrap();
        let value = value.parse().unwrap_or_else(|_| toml::Value::String(value.into()));
        table[section].as_table_mut().unwrap().insert(key.into(), value);
    }
    let experiment = vec![("model.name".to_owned(), "not set".to_owned())];
    Resolved { recipe: AnyRecipe::from_table(table).unwrap(), experiment, group: None, of_file: Vec::new() }
}

/// Writes a whole checkpoint of `recipe` into `dir`.
fn write_checkpoint(dir: &Path, step: u64, recipe: &Resolved) {
    fs::create_dir_all(dir).unwrap();
    let file = dir.join("model.safetensors");
    fs::write(&file, step.to_string()).unwrap();
    let manifest = Manifest {
        parameters: 1,
        step,
        epoch: 0,
        step_in_epoch: step,
        samples: step * 64,
        world_size: 1,
        recipe: recipe.recipe.clone(),
        metrics: Default::default(),
        files: vec![FileEntry::of(&file, "model.safetensors").unwrap()],
        ..sample()
    };
    manifest.write(dir).unwrap();
}

/// Returns every path below `root` with its content or link target.
fn snapshot(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(root) else {
        return found;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_symlink() {
            found.push((path.clone(), fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()));
        } else if path.is_dir() {
            found.push((path.clone(), Vec::new()));
            found.extend(snapshot(&path));
        } else {
            found.push((path.clone(), fs::read(&path).unwrap()));
        }
    }
    found.sort();
    found
}

/// Checks that a refusal leaves everything below the run directory's parent unchanged.
fn prepare_error(run: &RunDir, recipe: &Resolved, resume: &Resume) -> RunDirError {
    let parent = run.root().parent().unwrap();
    let before = snapshot(parent);
    let error = run.prepare(recipe, resume).unwrap_err();
    assert_eq!(snapshot(parent), before, "{error}");
    error
}

fn saved(run: &RunDir) -> AnyRecipe {
    AnyRecipe::load(run.recipe().to_str().unwrap(), &[]).unwrap()
}

#[test]
fn files_have_their_documented_paths() {
    let run = RunDir::new("r");
    for (path, expected) in [
        (run.root().to_path_buf(), "r"),
        (run.recipe(), "r/recipe.toml"),
        (run.plan(), "r/plan.json"),
        (run.metrics(), "r/metrics.jsonl"),
        (run.result(), "r/result.json"),
        (run.checkpoints(), "r/checkpoints"),
        (run.checkpoint(120), "r/checkpoints/step-00000120"),
        (run.checkpoint(1_234_567_890), "r/checkpoints/step-1234567890"),
        (run.latest(), "r/checkpoints/latest"),
        (run.logs(), "r/logs"),
        (run.rank_logs(0, 1), "r/logs/attempt_0/rank_1"),
        (run.rank_logs(2, 3), "r/logs/attempt_2/rank_3"),
    ] {
        assert_eq!(path, Path::new(expected));
    }
}

#[test]
fn default_names_are_plain_and_dated() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_211_112);
    for (recipe, start) in [
        ("demo", "runs/demo-2026112"),
        ("recipes/my net.toml", "runs/my_net-2026112"),
        ("..", "runs/run-2026112"),
        ("", "runs/run-2026112"),
    ] {
        let root = RunDir::default_root(recipe, now).to_str().unwrap().to_string();
        assert!(root.starts_with(start), "{root}");
        let stamp = &root[root.len() - 15..];
        assert!(
            stamp.bytes().enumerate().all(|(i, b)| if i == 8 { b == b'-' } else { b.is_ascii_digit() }),
            "{root}"
        );
    }
    let long = RunDir::default_root(&"x".repeat(1000), now);
    assert!(long.file_name().unwrap().len() < 120);
}

#[test]
fn resume_reads() {
    assert_eq!("auto".parse(), Ok(Resume::Auto));
    assert_eq!("never".parse(), Ok(Resume::Never));
    assert_eq!("runs/a/checkpoints/latest".parse(), Ok(Resume::From("runs/a/checkpoints/latest".into())));
}

#[test]
fn a_new_or_empty_folder_starts_fresh() {
    for resume in [Resume::Auto, Resume::Never] {
        let run = &place().run;
        assert_eq!(run.prepare(&recipe(&[]), &resume).unwrap(), Start::Fresh);
        assert_eq!(saved(run), recipe(&[]).recipe);
    }
    let run = &place().run;
    fs::create_dir_all(run.root()).unwrap();
    assert_eq!(run.prepare(&recipe(&[]), &Resume::Never).unwrap(), Start::Fresh);
}

#[test]
fn a_run_without_checkpoints_starts_again() {
    let run = &place().run;
    run.prepare(&recipe(&[]), &Resume::Auto).unwrap();
    assert_eq!(run.prepare(&recipe(&["train.epochs=9"]), &Resume::Auto).unwrap(), Start::Fresh);
    assert_eq!(saved(run).train.epochs, Some(9), "the new length is saved");
}

#[test]
fn a_run_rejected_for_its_recipe_makes_room_for_a_corrected_one() {
    let run = &place().run;
    let mended = recipe(&["train.effective_batch=8"]);
    for resume in [Resume::Auto, Resume::Never] {
        run.prepare(&recipe(&[]), &Resume::Auto).unwrap();
        // It ended, but was not rejected: it stays a run.
        fs::write(run.result(), r#"{"exit_code": 4}"#).unwrap();
        prepare_error(run, &mended, &resume);
        fs::write(run.result(), r#"{"exit_code": 2}"#).unwrap();
        assert_eq!(run.prepare(&mended, &resume).unwrap(), Start::Fresh);
        assert_eq!(saved(run), mended.recipe);
        // It begins and is now a run.
        fs::write(run.plan(), "{}").unwrap();
        let error = prepare_error(run, &recipe(&[]), &Resume::Auto);
        assert!(matches!(error, RunDirError::Differs { .. }), "{error}");
        fs::remove_dir_all(run.root()).unwrap();
    }
}

#[test]
fn a_folder_without_a_run_is_left_alone() {
    let run = &place().run;
    fs::create_dir_all(run.root()).unwrap();
    fs::write(run.root().join("thesis.tex"), "years of work").unwrap();
    for resume in [Resume::Auto, Resume::Never] {
        let error = prepare_error(run, &recipe(&[]), &resume);
        assert!(matches!(error, RunDirError::NotARun { .. }), "{error}");
        assert!(error.to_string().contains("thesis.tex"), "{error}");
    }
}

#[test]
fn a_path_that_is_not_a_folder_is_an_error() {
    let run = &place().run;
    fs::create_dir_all(run.root().parent().unwrap()).unwrap();
    fs::write(run.root(), "a file").unwrap();
    assert!(matches!(prepare_error(run, &recipe(&[]), &Resume::Auto), RunDirError::NotAFolder { .. }));
    fs::remove_file(run.root()).unwrap();
    std::os::unix::fs::symlink("nowhere", run.root()).unwrap();
    assert!(matches!(prepare_error(run, &recipe(&[]), &Resume::Auto), RunDirError::Io { .. }));
}

#[test]
fn never_with_any_run_is_an_error() {
    let run = &place().run;
    run.prepare(&recipe(&[]), &Resume::Never).unwrap();
    let error = prepare_error(run, &recipe(&[]), &Resume::Never);
    assert!(
        error.to_string().contains("holds another run, which is not overwritten; choose another --run-dir")
    );
    // Checkpoints alone make a run too.
    fs::remove_file(run.recipe()).unwrap();
    write_checkpoint(&run.checkpoint(1), 1, &recipe(&[]));
    assert!(matches!(prepare_error(run, &recipe(&[]), &Resume::Never), RunDirError::HoldsRun { .. }));
}

#[test]
fn auto_with_another_experiment_is_an_error_with_the_differences() {
    let run = &place().run;
    run.prepare(&recipe(&[]), &Resume::Auto).unwrap();
    let error = prepare_error(run, &recipe(&["optim.lr=0.5", "model.name=resnet34"]), &Resume::Auto);
    let text = error.to_string();
    assert!(text.contains("model.name is \"resnet18\" there and \"resnet34\" here"), "{text}");
    assert!(text.contains("optim.lr is 0.001 there and 0.5 here"), "{text}");
}

#[test]
fn auto_takes_latest_else_the_highest_whole_step() {
    let run = &place().run;
    let recipe = recipe(&[]);
    run.prepare(&recipe, &Resume::Auto).unwrap();
    for step in [9, 10, 200] {
        write_checkpoint(&run.checkpoint(step), step, &recipe);
    }
    let auto = || run.prepare(&recipe, &Resume::Auto).unwrap();
    assert_eq!(auto(), Start::Resume(run.checkpoint(200)));

    symlink_atomic(Path::new("step-00000010"), &run.latest()).unwrap();
    assert_eq!(auto(), Start::Resume(run.checkpoint(10)));
    // A link out of the run is ignored.
    let elsewhere = run.root().parent().unwrap().join("step-00000010");
    write_checkpoint(&elsewhere, 10, &recipe);
    symlink_atomic(&elsewhere, &run.latest()).unwrap();
    assert_eq!(auto(), Start::Resume(run.checkpoint(200)));
    // A link to a missing or partial checkpoint still marks the run's progress: later ones do not count.
    symlink_atomic(Path::new("step-00000011"), &run.latest()).unwrap();
    assert_eq!(auto(), Start::Resume(run.checkpoint(10)));
    fs::create_dir(run.checkpoint(11)).unwrap();
    assert_eq!(auto(), Start::Resume(run.checkpoint(10)));

    // Damaged checkpoints are skipped: an unreadable manifest, a file cut short.
    fs::write(run.checkpoint(10).join("model.safetensors"), "").unwrap();
    assert_eq!(auto(), Start::Resume(run.checkpoint(9)));
    fs::write(run.checkpoint(9).join("manifest.json"), "{").unwrap();
    let error = prepare_error(run, &recipe, &Resume::Auto);
    assert!(matches!(error, RunDirError::NoneWhole { .. }), "{error}");
    for step in [9, 10, 11] {
        fs::remove_dir_all(run.checkpoint(step)).unwrap();
    }
    let error = prepare_error(run, &recipe, &Resume::Auto).to_string();
    assert!(error.contains("names step 11, which is missing") && error.contains("--resume"), "{error}");
    fs::remove_dir_all(run.checkpoint(200)).unwrap();
    fs::remove_file(run.latest()).unwrap();
    assert_eq!(auto(), Start::Fresh);
    // A checkpoint of a newer format is not skipped, even if an older one is whole.
    write_checkpoint(&run.checkpoint(3), 3, &recipe);
    write_checkpoint(&run.checkpoint(4), 4, &recipe);
    fs::write(run.checkpoint(4).join("manifest.json"), "{\"format\": 99}").unwrap();
    let error = prepare_error(run, &recipe, &Resume::Auto);
    assert!(matches!(error, RunDirError::Checkpoint(_)), "{error}");
}

#[test]
fn other_names_are_ignored() {
    let run = &place().run;
    run.prepare(&recipe(&[]), &Resume::Auto).unwrap();
    for name in [
        "step-",
        "step-+0000009",
        "step-9",
        "step-00000009.tmp",
        "latest-copy",
        "step-99999999999999999999999",
    ] {
        write_checkpoint(&run.checkpoints().join(name), 9, &recipe(&[]));
    }
    assert_eq!(run.prepare(&recipe(&[]), &Resume::Auto).unwrap(), Start::Fresh);
}

#[test]
fn auto_without_a_saved_recipe_uses_the_checkpoints() {
    let run = &place().run;
    write_checkpoint(&run.checkpoint(5), 5, &recipe(&[]));
    let error = prepare_error(run, &recipe(&["train.seed=2"]), &Resume::Auto);
    assert!(matches!(error, RunDirError::CheckpointDiffers { .. }), "{error}");
    assert_eq!(run.prepare(&recipe(&[]), &Resume::Auto).unwrap(), Start::Resume(run.checkpoint(5)));

    fs::remove_file(run.recipe()).unwrap();
    fs::remove_file(run.checkpoint(5).join("manifest.json")).unwrap();
    assert!(matches!(prepare_error(run, &recipe(&[]), &Resume::Auto), RunDirError::UnknownRun { .. }));
}

#[test]
fn auto_with_an_unreadable_saved_recipe_is_an_error() {
    let run = &place().run;
    fs::create_dir_all(run.root()).unwrap();
    fs::write(run.recipe(), "task = \"classify\"\nnext = 1\n").unwrap();
    let error = prepare_error(run, &recipe(&[]), &Resume::Auto);
    assert!(error.to_string().contains("recipe.toml:2: next: unknown key"), "{error}");
}
