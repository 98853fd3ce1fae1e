//! `dtrain ckpt prune`, and the remains of crashes and rollbacks.

use super::*;

#[test]
fn prune_keeps_what_the_recipe_keeps() {
    let scene = Scene::new();
    let run = run(&scene, &[10, 20, 30, 40, 50]);
    let all = names(&run);
    let out = ckpt(&scene, &["prune", "a", "--dry-run"]).expect_code(0).stdout();
    assert!(out.contains("keeping the newest 2 (checkpoint.keep of a/recipe.toml)"), "{out}");
    assert!(
        out.contains("kept step-00000010: `best` points to it") && out.contains("nothing was changed"),
        "{out}"
    );
    assert_eq!(names(&run), all);
    let out = ckpt(&scene, &["prune", "a"]).expect_code(0).stdout();
    assert!(out.contains("2 folders removed, "), "{out}");
    assert_eq!(names(&run), ["best", "latest", "step-00000010", "step-00000040", "step-00000050"]);
    ckpt(&scene, &["prune", "a", "--keep", "0"]).expect_code(2);
    fs::remove_file(run.join("recipe.toml")).unwrap();
    ckpt(&scene, &["prune", "a"]).expect_code(2).expect_stderr("give --keep and --keep-every");
    ckpt(&scene, &["prune", "a", "--keep", "1", "--keep-every", "40"]).expect_code(0);
    assert_eq!(names(&run).len(), 5, "40 is the last of 1 to 40");
    ckpt(&scene, &["prune", "a", "--keep", "1", "--keep-every", "0"]).expect_code(0);
    assert_eq!(names(&run).len(), 4);
}

/// The newest whole checkpoint stays, even if later ones are damaged.
#[test]
fn prune_leaves_damaged_and_young_ones_alone() {
    let scene = Scene::new();
    let run = run(&scene, &[10, 20, 30, 40]);
    link(&run, "best", 40);
    for step in [30, 40] {
        cut(&run.join(format!("checkpoints/step-{step:08}")));
    }
    let folder = run.join("checkpoints");
    fs::create_dir(folder.join(".partial-00000050")).unwrap();
    fs::create_dir(folder.join(".removed-step-00000005")).unwrap();
    let old = folder.join(".partial-00000045");
    fs::create_dir(&old).unwrap();
    File::open(&old).unwrap().set_modified(SystemTime::now() - Duration::from_secs(700)).unwrap();
    let args = ["prune", "a", "--keep", "1", "--keep-every", "0"];
    let out = ckpt(&scene, &args).expect_code(0).stdout();
    assert!(
        out.contains("kept step-00000030: it is damaged")
            && out.contains("kept .partial-00000050: it changed"),
        "{out}"
    );
    assert_eq!(
        names(&run),
        [".partial-00000050", "best", "latest", "step-00000020", "step-00000030", "step-00000040"]
    );
    let all = [&args[..], &["--damaged", "--force"]].concat();
    ckpt(&scene, &all).expect_code(0);
    assert_eq!(names(&run), ["best", "latest", "step-00000020", "step-00000040"]);
}

#[test]
fn prune_lists_leftovers_and_keeps_needed_files() {
    let scene = Scene::new();
    let run = run(&scene, &[10, 20]);
    let folder = run.join("checkpoints");
    for name in [".replaced-00000010", ".replaced-00000030", ".rollback-2", "rollback-1"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    fs::create_dir(folder.join(".rollback-2/step-00000040")).unwrap();
    fs::write(folder.join(".rollback-2/rollback.json"), r#"{"from": 40, "to": 20}"#).unwrap();
    let out = ckpt(&scene, &["ls", "a"]).expect_code(0).stdout();
    for line in [
        "rollback-1: no checkpoint left, 0 B; `dtrain ckpt prune --rollbacks` removes it",
        ".rollback-2: not completed when the run went back from step 40 to step 20, 22 B; steps 40; the next start",
        ".replaced-00000010: partly removed, 0 B; if no run uses it,",
        ".replaced-00000030: a checkpoint, 0 B; the next start of the run renames it back",
    ] {
        assert!(out.contains(line), "{line} in {out}");
    }
    let list = json(&scene, &["ls", "a", "--json"]);
    assert_eq!(list["set_aside"][1]["under_way"], true);
    assert_eq!(list["leftovers"].as_array().unwrap().len(), 2);
    let args = ["prune", "a", "--keep", "9", "--keep-every", "0", "--rollbacks"];
    ckpt(&scene, &args).expect_code(0);
    let left = names(&run);
    assert!(
        [".replaced-00000030", ".rollback-2", "rollback-1"]
            .iter()
            .all(|name| left.contains(&(*name).to_owned())),
        "{left:?}"
    );
    assert!(!left.contains(&".replaced-00000010".to_owned()), "{left:?}");
    // The next start of the run does the same.
    fs::rename(folder.join(".rollback-2"), folder.join("rollback-2")).unwrap();
    ckpt(&scene, &args).expect_code(0);
    let left = names(&run);
    assert!(!left.iter().any(|name| name.contains("rollback")), "{left:?}");
}

#[test]
fn prune_keeps_what_a_rollback_that_was_broken_off_needs() {
    let scene = Scene::new();
    let run = run(&scene, &[10, 20, 30, 40, 50]);
    let folder = run.join("checkpoints");
    link(&run, "best", 20);
    for name in [".rollback-2", "rollback-1"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    let back = "rollback-1/step-00000050";
    fs::rename(folder.join("step-00000050"), folder.join(back)).unwrap();
    fs::write(
        folder.join(".rollback-2/rollback.json"),
        format!(r#"{{"from": 40, "to": 20, "restores": "{back}"}}"#),
    )
    .unwrap();
    cut(&folder.join("step-00000030"));
    let args = ["--keep", "1", "--keep-every", "0", "--rollbacks", "--damaged"];
    let out = ckpt(&scene, &[&["prune", "a"], &args[..]].concat());
    let out = out.expect_code(0).stdout();
    assert!(
        out.contains("kept .rollback-2, and all after step 20: the next start")
            && out.contains("kept rollback-1: the next start"),
        "{out}"
    );
    assert_eq!(
        names(&run),
        [".rollback-2", "best", "latest", "rollback-1", "step-00000020", "step-00000030", "step-00000040"]
    );
    assert!(folder.join(back).is_dir());
}

/// A span of epochs has the length of each stage's epochs, from the stage's begin, as in the run itself.
#[test]
fn prune_counts_windows_by_the_stage_of_each_checkpoint() {
    let scene = Scene::new();
    let run = run(&scene, &[5, 10, 20, 30, 40, 42, 44, 46, 48]);
    let sets = ["checkpoint.keep=1", "checkpoint.keep_every=2 epochs"].map(str::to_owned);
    let recipe = resolved("demo", &sets);
    fs::write(run.join("recipe.toml"), recipe.to_toml().unwrap()).unwrap();
    ckpt(&scene, &["prune", "a"]).expect_code(2).expect_stderr("give --keep-every 0");
    let plan = r#"{"steps_per_epoch": 10, "stages": [
        {"steps": [1, 40], "steps_per_epoch": 10}, {"steps": [41, 48], "steps_per_epoch": 2}]}"#;
    fs::write(run.join("plan.json"), plan).unwrap();
    let out = ckpt(&scene, &["prune", "a"]).expect_code(0).stdout();
    assert!(out.contains("the last of every 2 epochs"), "{out}");
    let steps = |left: &[u32]| -> Vec<String> {
        let names = left.iter().map(|step| format!("step-{step:08}"));
        ["best", "latest"].map(str::to_owned).into_iter().chain(names).collect()
    };
    assert_eq!(names(&run), steps(&[5, 20, 40, 44, 48]), "`best` is the first");
    // The flag's steps are counted in the same way: 5 to 10, 11 to 40, then 41 to 48.
    ckpt(&scene, &["prune", "a", "--keep-every", "30"]).expect_code(0);
    assert_eq!(names(&run), steps(&[5, 20, 40, 48]));
}

/// It may be whole: its file server is away.
#[test]
fn prune_never_removes_what_cannot_be_read() {
    let scene = Scene::new();
    let run = run(&scene, &[10, 20, 30, 40]);
    link(&run, "best", 40);
    // A link to itself is an error of the system, as EIO or ESTALE. And a checkpoint under another's name.
    let manifest = run.join("checkpoints/step-00000010/manifest.json");
    fs::remove_file(&manifest).unwrap();
    symlink("manifest.json", &manifest).unwrap();
    fs::rename(run.join("checkpoints/step-00000020"), run.join("checkpoints/step-00000021")).unwrap();
    let args = ["prune", "a", "--keep", "1", "--keep-every", "0", "--damaged"];
    let out = ckpt(&scene, &args).expect_code(0).stdout();
    for step in [10, 21] {
        assert!(
            out.contains(&format!("kept step-{step:08}: it may be whole, but could not be checked")),
            "{out}"
        );
    }
    assert_eq!(names(&run), ["best", "latest", "step-00000010", "step-00000021", "step-00000040"]);
    let out = ckpt(&scene, &["ls", "a"]).expect_code(0).stdout();
    assert_eq!(out.matches("unreadable").count(), 2, "{out}");
}
