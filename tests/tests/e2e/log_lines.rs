//! Lines of JSON from real trainers.

use dtrain_tests::process::{expect_exit_code, finish};
use dtrain_tests::runs::{Sandbox, TINY};
use serde_json::Value;
use std::time::Duration;

/// Trains on two ranks, the second of which crashes in step 3. Every line on standard error is one object.
#[test]
fn every_line_of_a_training_that_fails_is_an_object() {
    let sandbox = Sandbox::new(TINY);
    let mut command = sandbox.command(2, "run", &["checkpoint.every=2 steps"], &["--log-format", "json"]);
    command.env("DTRAIN_FAULT", "crash:rank=1,step=3,phase=backward");
    let output = finish(&mut command, Duration::from_secs(60));
    expect_exit_code(&output, 4);
    let text = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}")))
        .collect();
    assert!(lines.iter().all(|line| line["time"].is_string() && line["level"].is_string()), "{text}");
    let steps: Vec<_> = lines.iter().filter(|line| line["fields"]["total_steps"].is_u64()).collect();
    assert_eq!(steps.len(), 2, "{text}");
    for (number, step) in steps.iter().enumerate() {
        assert_eq!((&step["rank"], &step["fields"]["step"]), (&0.into(), &(number + 1).into()));
        assert!(step["fields"]["loss"].as_f64().unwrap() > 0.0 && step.get("stream").is_none());
    }
    // A library in the trainer printed the stack of the crash.
    let stack = lines.iter().find(|line| line["rank"] == 1 && line["stream"] == "stderr");
    assert!(stack.is_some(), "{text}");
    let last = lines.last().unwrap();
    assert_eq!((&last["level"], &last["fields"]["exit_code"]), (&"error".into(), &4.into()));
    let message = last["message"].as_str().unwrap();
    assert!(
        message.contains("\n  next: dtrain launch ") && message.ends_with("(resumes after step 2)"),
        "{message}"
    );
    // The log of rank 0 has its own objects, and nothing of the launcher.
    let log = sandbox.run("run").log(0);
    assert!(
        log.lines().all(|line| serde_json::from_str::<Value>(line).is_ok_and(|line| line["rank"] == 0)),
        "{log}"
    );
}
