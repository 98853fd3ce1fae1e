//! Other programs that show a run: TensorBoard, `log.command` and `log.on_end`.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use dtrain_test_kit::need::{Skipped, pytorch};
use dtrain_test_kit::process::{Signal, expect_exit_code, finish, output_text, signal, wait_until};
use dtrain_test_kit::runs::{Run, Sandbox, TINY, gpt};
use serde_json::Value;

const READER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/parity/read_events.py");
/// The time after which a test has failed.
const LIMIT: Duration = Duration::from_secs(120);

/// Returns what TensorBoard's own reader finds in a run directory.
fn read(run: &Run) -> Result<Value, Skipped> {
    let mut python = Command::new(pytorch()?);
    let output = python.arg(READER).arg(run.0.root()).output().unwrap();
    assert!(output.status.success(), "{}", output_text(&output));
    Ok(serde_json::from_slice(&output.stdout).unwrap())
}

/// Returns (step, value) of a tag.
fn scalars(read: &Value, tag: &str) -> Vec<(u64, f32)> {
    let all = read["scalars"][tag].as_array().into_iter().flatten();
    all.map(|of| (of[0].as_u64().unwrap(), of[1].as_f64().unwrap() as f32)).collect()
}

/// Compares what TensorBoard shows of the steps and evaluations with metrics.jsonl.
#[track_caller]
fn shows_the_metrics(read: &Value, run: &Run) {
    let lines = run.metrics();
    let of_steps = |key: &str| -> Vec<(u64, f32)> {
        let steps = lines.iter().filter(|line| line.get("loss").is_some());
        steps.map(|line| (line["step"].as_u64().unwrap(), line[key].as_f64().unwrap() as f32)).collect()
    };
    for (tag, key) in [("train/loss", "loss"), ("train/grad_norm", "grad_norm"), ("speed/step_ms", "step_ms")]
    {
        assert_eq!(scalars(read, tag), of_steps(key), "{tag}");
    }
    let evaluations = lines.iter().filter_map(|line| line.get("eval"));
    let expected: Vec<_> = evaluations
        .map(|eval| (eval["step"].as_u64().unwrap(), eval["loss"].as_f64().unwrap() as f32))
        .collect();
    assert_eq!(scalars(read, "test/loss"), expected);
}

#[test]
fn tensorboard_reads_what_a_run_writes() -> Result<(), Skipped> {
    let sandbox =
        Sandbox::new(&format!("{TINY}[[optim.group]]\nmatch = \"head.*\"\nlr_factor = 0.5\n[test]\n"));
    let run = sandbox.train(1, "run", &["train.steps=3"]);
    let found = read(&run)?;
    shows_the_metrics(&found, &run);
    assert_eq!(scalars(&found, "lr/head.*"), [(1, 0.0005), (2, 0.0005), (3, 0.0005)]);
    assert_eq!(scalars(&found, "final/test/loss").len(), 1);
    assert!(scalars(&found, "memory/peak_gib").iter().all(|(_, gib)| *gib > 0.0));
    assert_eq!(
        (&found["settings"]["optim.lr"], &found["settings"]["model.name"]),
        (&0.001.into(), &"vit".into())
    );
    assert_eq!(found["compared"], serde_json::json!(["train/loss", "test/loss", "test/accuracy"]));
    assert_eq!(found["status"], 1);
    assert!(found["texts"]["run/recipe"][0][1].as_str().unwrap().contains("effective_batch"), "{found}");

    // Pictures of samples that are the same for any number of ranks.
    let samples = |run: &Run| -> Vec<Value> {
        serde_json::from_slice(&fs::read(run.0.samples(3, "test").join("samples.json")).unwrap()).unwrap()
    };
    let own = samples(&run);
    assert_eq!(own.len(), 4);
    for (number, sample) in own.iter().enumerate() {
        assert_eq!(sample["picture"], format!("{number}.png"));
        let caption = sample["caption"].as_str().unwrap();
        assert!(caption.contains("label ") && caption.contains("prediction "), "{caption}");
        let [step, width, height, _] =
            &found["images"][format!("test_pictures/{number}")][0].as_array().unwrap()[..]
        else {
            panic!("{found}")
        };
        assert_eq!((step, width, height), (&3.into(), &32.into(), &32.into()));
    }
    let two = sandbox.train(2, "two", &["train.steps=3"]);
    assert_eq!(samples(&two), own);
    for number in 0..4 {
        let picture = |run: &Run| fs::read(run.0.samples(3, "test").join(format!("{number}.png"))).unwrap();
        assert_eq!(picture(&two), picture(&run));
    }

    // Neither changes the training.
    let none = sandbox.train(1, "none", &["train.steps=3", "log.tensorboard=false", "log.pictures=0"]);
    assert_eq!(none.weights(), run.weights());
    assert!(!none.0.evaluations().exists());
    assert!(events(&none).is_empty());
    Ok(())
}

/// Returns the names of the event files.
fn events(run: &Run) -> Vec<String> {
    let names =
        fs::read_dir(run.0.root()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains("tfevents")).collect()
}

#[test]
fn curves_have_no_zigzag_after_a_kill_and_a_rollback() -> Result<(), Skipped> {
    let sandbox = Sandbox::new(&gpt(12, "[checkpoint]\nevery = \"2 steps\"\nkeep = 1000\n"));
    // Killed in the middle.
    let mut command = sandbox.command(1, "run", &["train.steps=100000"], &[]);
    let mut launcher = command.spawn().unwrap();
    let run = sandbox.run("run");
    wait_until("steps", || {
        fs::read_to_string(run.0.metrics()).is_ok_and(|text| text.contains("\"step\":20,"))
    });
    signal(launcher.id(), Signal::KILL);
    launcher.wait().unwrap();
    wait_until("the end of the worker", || run.0.claim_training(Duration::ZERO).is_ok());
    let killed = read(&run)?;
    let steps: Vec<u64> = scalars(&killed, "train/loss").into_iter().map(|(step, _)| step).collect();
    assert_eq!(steps, (1..=steps.len() as u64).collect::<Vec<_>>());
    assert_eq!(killed["status"], Value::Null);

    // Back to an earlier step, and to the end of the shorter run.
    let from = run.0.checkpoint(4).display().to_string();
    expect_exit_code(&sandbox.launch_with(1, "run", &[], &["--resume", &from]), 0);
    let found = read(&run)?;
    shows_the_metrics(&found, &run);
    assert_eq!(scalars(&found, "train/loss").len(), 12);
    assert_eq!(found["texts"]["run/rollback"].as_array().unwrap().len(), 1);
    assert_eq!(events(&run).len(), 1);
    // The steps before keep their times.
    let time = |read: &Value, at: usize| read["scalars"]["train/loss"][at][2].clone();
    assert_eq!(time(&found, 3), time(&killed, 3));
    assert_ne!(time(&found, 4), time(&killed, 4));
    // Without TensorBoard a later resume removes what would be wrong now.
    expect_exit_code(&sandbox.launch_with(1, "run", &["log.tensorboard=false"], &["--resume", &from]), 0);
    assert!(events(&run).is_empty());
    Ok(())
}

#[test]
fn commands_get_the_lines_and_the_result() {
    let sandbox =
        Sandbox::new(&gpt(4, "command = \"cat > lines.jsonl\"\non_end = \"cat > ended.json\"\n[test]\n"));
    let run = sandbox.train(1, "run", &[]);
    assert_eq!(
        fs::read_to_string(sandbox.path("lines.jsonl")).unwrap(),
        fs::read_to_string(run.0.metrics()).unwrap()
    );
    assert_eq!(fs::read(sandbox.path("ended.json")).unwrap(), fs::read(run.0.result()).unwrap());

    // Commands that fail are warnings, and the training continues.
    let log = |run: &Run| fs::read_to_string(run.0.logs().join("attempt_0/rank_0/stderr.log")).unwrap();
    let ended = sandbox.train(1, "ended", &["log.command=\"exit 3\"", "log.on_end=\"exit 5\""]);
    assert!(log(&ended).contains("log.command"), "{}", log(&ended));
    assert_eq!(ended.weights(), run.weights());
}

/// Starts a program, here a short one, under the launcher.
fn program(sandbox: &Sandbox, on_end: &str, words: &[&str]) -> Command {
    let mut command = sandbox.dtrain(&["launch", "--nproc", "1", "--on-end", on_end, "--"]);
    command.args(words);
    command
}

#[test]
fn a_program_has_a_result_too() {
    let sandbox = Sandbox::new("");
    let output = finish(&mut program(&sandbox, "cat > ended.json; exit 5", &["sh", "-c", "exit 7"]), LIMIT);
    let text = expect_exit_code(&output, 7);
    assert!(text.contains("warning: the command of on_end ended with exit status: 5"), "{text}");
    let result: Value = serde_json::from_slice(&fs::read(sandbox.path("ended.json")).unwrap()).unwrap();
    assert_eq!((&result["exit_code"], &result["failure"]["exit_code"]), (&7.into(), &7.into()));

    // A request to stop ends a command that hangs.
    let launcher = program(&sandbox, "echo > begun; sleep 600", &["true"]).spawn().unwrap();
    wait_until("the command", || sandbox.path("begun").exists());
    std::thread::sleep(Duration::from_millis(1500));
    let began = Instant::now();
    signal(launcher.id(), Signal::INT);
    let output = launcher.wait_with_output().unwrap();
    assert!(began.elapsed() < Duration::from_secs(20) && output.status.success(), "{output:?}");
}
