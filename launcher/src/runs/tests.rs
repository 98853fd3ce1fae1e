//! Lists over made run directories.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::cli::RunState;
use dtrain_common::run_dir::{AttemptRecord, JobId, RunDir};
use serde_json::{Value, json};
use std::fs;
use std::time::{Duration, Instant};

struct Runs(tempfile::TempDir);

impl Runs {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Makes a training of 40 steps that has made 10, with a result, if one is given.
    fn make(&self, name: &str, result: Option<Value>) -> RunDir {
        let run_dir = RunDir::new(self.0.path().join(name));
        fs::create_dir_all(run_dir.rank_logs(2, 0)).unwrap();
        fs::write(run_dir.recipe(), "task = \"classify\"\n").unwrap();
        fs::write(run_dir.root().join(".lock"), "").unwrap();
        fs::write(run_dir.plan(), r#"{"total_steps": 40, "steps_per_epoch": 8}"#).unwrap();
        let line =
            |step| format!("{{\"step\": {step}, \"epoch\": 2, \"loss\": 0.25, \"elapsed_s\": {step}.5}}\n");
        fs::write(run_dir.metrics(), (1..=10).map(line).collect::<String>()).unwrap();
        let job = Some(JobId { system: "Slurm".into(), id: "77".into() });
        let record = AttemptRecord {
            began_ms: 1_000,
            host: "n1".into(),
            pid: 7,
            nproc: 2,
            nodes: 1,
            job,
            ..Default::default()
        };
        record.write(&run_dir.attempt(2)).unwrap();
        if let Some(result) = result {
            fs::write(run_dir.result(), result.to_string()).unwrap();
        }
        run_dir
    }

    fn list(&self, state: &[RunState]) -> List {
        let which = WhichRuns { dir: self.0.path().to_owned(), state: state.to_vec() };
        List::read(&which, SystemTime::now()).unwrap()
    }

    /// Returns the rows of the table without the folder's path.
    fn rows(&self) -> Vec<String> {
        table::text(&self.list(&[]), usize::MAX).lines().skip(3).map(str::to_owned).collect()
    }
}

#[test]
fn the_table_is_exact() {
    let runs = Runs::new();
    let best = json!({"by": "max accuracy", "value": 0.75, "step": 8});
    runs.make(
        "a",
        Some(json!({"exit_code": 0, "reason": "success", "wall_s": 61.0, "steps": 40, "best": best})),
    );
    runs.make("b/c", Some(json!({"exit_code": 75})));
    let text = table::text(&runs.list(&[]), usize::MAX);
    let expected = "\
DIR: 2 runs: 1 requeue, 1 succeeded

run  state      attempt  job       epoch   step  done    loss  best                  left  saved  about
a    succeeded        2  Slurm 77    2/5  40/40  100%  0.2500  accuracy 0.7500 at 8     -      -  took 1 min 1 s
b/c  requeue          2  Slurm 77    2/5  10/40   25%  0.2500  -                        -      -  stopped on request; start it again to resume
";
    assert_eq!(text.replace(&runs.0.path().display().to_string(), "DIR"), expected);
}

#[test]
fn a_run_in_progress_has_a_remaining_time_and_no_earlier_result() {
    let runs = Runs::new();
    let run_dir = runs.make("a", Some(json!({"exit_code": 75, "steps": 9})));
    let lock = run_dir.claim().unwrap();
    let object = object::object(&runs.list(&[RunState::Running]));
    let run = &object["runs"][0];
    assert_eq!(run["state"], "running");
    assert_eq!(run["job"], json!({"system": "Slurm", "id": "77"}));
    assert_eq!((&run["step"], &run["exit_code"]), (&json!(10), &Value::Null));
    // 30 steps of 1 s; the attempt began in 1970.
    assert_eq!(run["remaining_s"], 30.0);
    assert_eq!(run["began"], "1970-01-01T00:00:01Z");
    drop(lock);
    assert_eq!(object::object(&runs.list(&[]))["runs"][0]["state"], "requeue");
    assert!(runs.list(&[RunState::Running, RunState::Lost]).runs.is_empty());
}

#[test]
fn a_damaged_run_is_a_row_with_a_reason_and_spoils_no_other() {
    let runs = Runs::new();
    let damaged = runs.make("damaged", None);
    fs::write(damaged.result(), "{\"exit_code\": 0,").unwrap();
    let other = runs.make("files", Some(json!({"exit_code": 0})));
    fs::remove_file(other.plan()).unwrap();
    fs::create_dir(other.plan()).unwrap();
    fs::write(other.metrics(), [0, 255, b'\n', b'{']).unwrap();
    fs::write(AttemptRecord::path(&other.attempt(2)), "{").unwrap();
    fs::create_dir_all(other.checkpoint(5)).unwrap();
    fs::write(other.checkpoint(5).join("manifest.json"), "{").unwrap();
    std::os::unix::fs::symlink("step-00000005", other.latest()).unwrap();
    let begun = RunDir::new(runs.0.path().join("locked"));
    fs::create_dir(begun.root()).unwrap();
    drop(begun.claim().unwrap());
    runs.make("lost", None);
    runs.make("name\nwith\u{1b}[2J", Some(json!({"exit_code": 4, "reason": "a\nb"})));
    let rows = runs.rows();
    let has = |row: usize, parts: &[&str]| {
        parts.iter().for_each(|part| assert!(rows[row].contains(part), "{part:?} in {rows:#?}"));
    };
    has(0, &["damaged ", " unreadable ", "result.json is cut off or damaged: EOF"]);
    has(
        1,
        &[
            "files ",
            " succeeded ",
            "plan.json is not a file",
            "attempt.json is cut off or damaged",
            "manifest.json",
        ],
    );
    has(2, &["locked ", " not-started ", "no attempt has begun"]);
    has(3, &["lost ", " lost ", " 10/40 ", "no result, and no process claims the run directory"]);
    has(4, &["name with [2J ", " failed ", "a b"]);
    assert_eq!(rows.len(), 5);
}

#[test]
fn no_runs_is_no_failure_and_no_folder_is() {
    let runs = Runs::new();
    let dir = runs.0.path().display().to_string();
    assert_eq!(table::text(&runs.list(&[]), usize::MAX), format!("{dir}: no runs\n"));
    assert_eq!(
        table::text(&runs.list(&[RunState::Lost]), usize::MAX),
        format!("{dir}: no run in this state\n")
    );
    let which = WhichRuns { dir: runs.0.path().join("absent"), state: vec![] };
    let error = format!("{:#}", List::read(&which, SystemTime::now()).unwrap_err());
    assert!(
        error.contains("absent; name the folder that holds your run directories: No such file"),
        "{error}"
    );
}

#[test]
fn many_runs_are_listed_quickly() {
    let runs = Runs::new();
    for number in 0..500 {
        runs.make(&format!("sweep/{number:03}"), Some(json!({"exit_code": 0})));
    }
    let start = Instant::now();
    let list = runs.list(&[]);
    let time = start.elapsed();
    assert_eq!(list.runs.len(), 500);
    assert!(list.runs.is_sorted_by_key(|run| &run.path));
    // A loaded machine takes longer than usual: that is far below a second.
    assert!(time < Duration::from_secs(5), "{time:?}");
}
