//! Going back to an earlier checkpoint of the same run, and a crash at any moment of it.

use super::*;

const METRICS: &str =
    "{\"step\": 16}\n{\"eval\": {\"step\": 32}}\n{\"step\": 48}\n{\"checkpoint\": {\"step\": 64}}\n";

/// A run with checkpoints after these steps, the last of which is the latest.
fn run_of(steps: &[u64]) -> Place {
    let place = place();
    let run = &place.run;
    run.prepare(&recipe(&[]), &Resume::Auto).unwrap();
    for step in steps {
        write_checkpoint(&run.checkpoint(*step), *step, &recipe(&[]));
        point(&run.latest(), *step);
    }
    fs::write(run.metrics(), METRICS).unwrap();
    place
}

fn point(link: &Path, step: u64) {
    symlink_atomic(Path::new(&format!("step-{step:08}")), link).unwrap();
}

fn set_aside(run: &RunDir) -> Vec<(String, Vec<u64>)> {
    let told = |one: SetAside| {
        (
            one.folder.file_name().unwrap().to_str().unwrap().to_owned(),
            one.steps,
        )
    };
    run.set_aside().unwrap().into_iter().map(told).collect()
}

fn newest(run: &RunDir) -> Option<PathBuf> {
    run.newest_checkpoint().unwrap().map(|(folder, _)| folder)
}

#[test]
fn what_lies_behind_the_checkpoint_that_a_run_goes_back_to_is_set_aside() {
    let place = run_of(&[16, 32, 48, 64]);
    let run = &place.run;
    point(&run.best(), 48);
    let (own, told) = run.begin_after(&run.checkpoint(32), 32, Some(16)).unwrap();
    assert_eq!(own, run.checkpoint(32));
    let told = told.unwrap();
    let rollback = Rollback {
        from: 64,
        to: 32,
        restores: None,
    };
    assert_eq!((told.steps, told.rollback), (vec![48, 64], Some(rollback)));
    assert_eq!(run.steps().unwrap(), [16, 32]);
    assert_eq!(run.linked(&run.latest()), Some(32));
    assert_eq!(run.linked(&run.best()), Some(16));
    assert_eq!(set_aside(run), [("rollback-1".to_owned(), vec![48, 64])]);
    assert_eq!(newest(run), Some(run.checkpoint(32)));
    let text = fs::read_to_string(run.metrics()).unwrap();
    let told = r#"{"rollback":{"folder":"rollback-1","from":64,"to":32}}"#;
    assert_eq!(
        text,
        format!("{{\"step\": 16}}\n{{\"eval\": {{\"step\": 32}}}}\n{told}\n")
    );
    let left = fs::read_to_string(run.checkpoints().join("rollback-1/metrics.jsonl")).unwrap();
    assert_eq!(left, "{\"step\": 48}\n{\"checkpoint\": {\"step\": 64}}\n");

    // Nothing lies behind the newest one: nothing is done.
    let before = snapshot(run.root());
    let (_, told) = run.begin_after(&run.checkpoint(32), 32, None).unwrap();
    assert!(told.is_none());
    assert_eq!(snapshot(run.root()), before);
}

#[test]
fn a_checkpoint_that_was_set_aside_comes_back() {
    let place = run_of(&[16, 32, 48, 64]);
    let run = &place.run;
    run.begin_after(&run.checkpoint(16), 16, None).unwrap();
    for step in [24, 40] {
        write_checkpoint(&run.checkpoint(step), step, &recipe(&[]));
        point(&run.latest(), step);
    }
    let aside = run.checkpoints().join("rollback-1/step-00000048");
    let start = run.prepare(&recipe(&[]), &Resume::From(aside.clone())).unwrap();
    assert_eq!(start, Start::Resume(aside.clone()));
    let (own, told) = run.begin_after(&aside, 48, None).unwrap();
    assert_eq!((own, told.unwrap().steps), (run.checkpoint(48), vec![24, 40]));
    assert_eq!(run.steps().unwrap(), [16, 48]);
    assert_eq!(run.linked(&run.latest()), Some(48));
    let expected = [
        ("rollback-1".to_owned(), vec![32, 64]),
        ("rollback-2".to_owned(), vec![24, 40]),
    ];
    assert_eq!(set_aside(run), expected);
    let steps: Vec<_> = fs::read(run.metrics())
        .unwrap()
        .split(|byte| *byte == b'\n')
        .filter_map(crate::metrics::step_of)
        .collect();
    // The lines of the line of steps that it belongs to are back, and the last one tells of it.
    assert_eq!(steps, [16, 16, 32, 48, 16]);
}

/// Stops everywhere by taking away the next thing that has to be moved, and begins again.
#[test]
fn a_crash_in_the_middle_of_a_rollback_is_completed_by_the_next_start() {
    for moved in 0..=2 {
        let place = run_of(&[16, 32, 48, 64]);
        let run = &place.run;
        let folder = run.checkpoints().join(".rollback-1");
        fs::create_dir(&folder).unwrap();
        // Before what is to be done is written down, nothing is to be done.
        assert_eq!(newest(run), Some(run.checkpoint(64)));
        fs::write(folder.join(".dtrain-abc.tmp"), "{").unwrap();
        run.recover().unwrap();
        assert!(!folder.exists());
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("rollback.json"), r#"{"from": 64, "to": 32}"#).unwrap();
        for step in [48, 64].iter().take(moved) {
            let own = run.checkpoint(*step);
            fs::rename(&own, folder.join(own.file_name().unwrap())).unwrap();
        }
        // Whoever looks without completing it sees where the run goes on, also where `latest` has not been switched yet.
        assert_eq!(newest(run), Some(run.checkpoint(32)));
        run.recover().unwrap();
        let (_, told) = run.begin_after(&run.checkpoint(32), 32, None).unwrap();
        assert_eq!(told.unwrap().steps, [48, 64]);
        assert_eq!(set_aside(run), [("rollback-1".to_owned(), vec![48, 64])]);
        assert!(!folder.exists());
        assert_eq!(run.linked(&run.latest()), Some(32));
        let text = fs::read_to_string(run.metrics()).unwrap();
        assert_eq!(text.matches("rollback").count(), 2, "{text}");
    }
}

#[test]
fn a_crash_in_the_middle_of_bringing_one_back_is_completed_too() {
    let place = run_of(&[16, 32, 48]);
    let run = &place.run;
    run.begin_after(&run.checkpoint(16), 16, None).unwrap();
    write_checkpoint(&run.checkpoint(24), 24, &recipe(&[]));
    point(&run.latest(), 24);
    let aside = run.checkpoints().join("rollback-1/step-00000048");
    let folder = run.checkpoints().join(".rollback-2");
    fs::create_dir(&folder).unwrap();
    let written = r#"{"from": 24, "to": 16, "restores": "rollback-1/step-00000048"}"#;
    fs::write(folder.join("rollback.json"), written).unwrap();
    assert_eq!(newest(run), Some(aside.clone()));
    // It has come back, and the rest has not been done.
    fs::rename(run.checkpoint(24), folder.join("step-00000024")).unwrap();
    fs::rename(&aside, run.checkpoint(48)).unwrap();
    assert_eq!(newest(run), Some(run.checkpoint(48)));
    run.begin_after(&run.checkpoint(48), 48, None).unwrap();
    assert_eq!(run.steps().unwrap(), [16, 48]);
    assert_eq!(run.linked(&run.latest()), Some(48));
    assert_eq!(
        set_aside(run),
        [
            ("rollback-1".to_owned(), vec![32]),
            ("rollback-2".to_owned(), vec![24])
        ]
    );
}

#[test]
fn a_commit_that_a_crash_broke_off_is_completed() {
    let place = run_of(&[16, 32]);
    let run = &place.run;
    // The link was announced and the checkpoint did not come.
    point(&run.next(), 48);
    assert_eq!(newest(run), Some(run.checkpoint(32)));
    run.recover().unwrap();
    assert!(!run.next().is_symlink());
    // It did come, and `latest` was not switched.
    point(&run.next(), 48);
    write_checkpoint(&run.checkpoint(48), 48, &recipe(&[]));
    assert_eq!(newest(run), Some(run.checkpoint(48)));
    run.recover().unwrap();
    assert_eq!(run.linked(&run.latest()), Some(48));
    assert!(!run.next().is_symlink());
    // The old one of this step had to give way to a new one, which did not come.
    fs::rename(run.checkpoint(48), run.replaced_by(48)).unwrap();
    assert_eq!(newest(run), Some(run.replaced_by(48)));
    run.recover().unwrap();
    assert_eq!(newest(run), Some(run.checkpoint(48)));
    // It came: the old one is not taken back.
    write_checkpoint(&run.replaced_by(48), 48, &recipe(&["train.epochs=50"]));
    run.recover().unwrap();
    let manifest = Manifest::read(&run.checkpoint(48)).unwrap();
    assert_eq!(manifest.recipe, recipe(&[]));
}

#[test]
fn the_same_command_goes_on_where_the_run_was_stopped() {
    let place = run_of(&[16, 32, 48]);
    let run = &place.run;
    let from = Resume::From(run.checkpoint(16));
    run.begin_after(&run.checkpoint(16), 16, None).unwrap();
    write_checkpoint(&run.checkpoint(40), 40, &recipe(&[]));
    point(&run.latest(), 40);
    let start = |code: u8, asked: &Path| {
        let result = RunResult {
            exit_code: Some(code),
            resumed_from: Some(asked.to_owned()),
            ..RunResult::default()
        };
        result.write(&run.result()).unwrap();
        run.prepare(&recipe(&[]), &from).unwrap()
    };
    assert_eq!(start(75, &run.checkpoint(16)), Start::Resume(run.checkpoint(40)));
    // Asked for something else, or ended otherwise: the command is taken by its word.
    assert_eq!(start(75, &run.checkpoint(32)), Start::Resume(run.checkpoint(16)));
    assert_eq!(start(0, &run.checkpoint(16)), Start::Resume(run.checkpoint(16)));
}
