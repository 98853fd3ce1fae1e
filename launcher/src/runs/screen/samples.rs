//! Made runs for the tests of the screen.

use super::super::List;
use super::super::run::Run;
use super::curve::Curve;
use super::history::{Figure, History};
use super::log::Log;
use super::source::{Detail, Look, Plan};
use crate::cli::RunState;
use dtrain_agent::io::output::Stream;
use dtrain_common::result::{Cause, Failure, RunResult};
use dtrain_common::run_dir::AttemptRecord;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Returns a run of `runs` with 2 ranks that has made 30 of 40 steps.
pub(super) fn run(name: &str, state: RunState) -> Run {
    let is_running = state == RunState::Running;
    let failure = Failure {
        rank: 1,
        host: "n1".into(),
        exit_code: Some(3),
        message: Some("out of memory in step 31".into()),
        cause: Some(Cause {
            kind: "cuda-out-of-memory".into(),
            text: "the GPU has no memory left; set a smaller train.micro_batch or memory.budget".into(),
        }),
        ..Failure::default()
    };
    let has_failed = matches!(state, RunState::Failed | RunState::OutOfMemory);
    Run {
        path: PathBuf::from("runs").join(name),
        state,
        why: if is_running { "on n1".into() } else { "exit code 3".into() },
        attempt: Some(0),
        record: AttemptRecord { host: "n1".into(), nproc: 2, ..AttemptRecord::default() },
        result: RunResult { failure: has_failed.then_some(failure), ..RunResult::default() },
        step: Some(30),
        total_steps: Some(40),
        epoch: Some(3),
        total_epochs: Some(4),
        loss: Some(0.1),
        remaining: is_running.then_some(Duration::from_secs(10)),
        ..Run::default()
    }
}

/// Returns a look at these runs, with the details of the first.
pub(super) fn look(runs: Vec<Run>) -> Look {
    let detail = runs.first().map(|run| Detail {
        path: run.path.clone(),
        history: history(),
        plan: serde_json::from_str::<Plan>(
            r#"{"device": "cpu", "predictions": [{"peak": 3221225472}], "budget_bytes": 4294967296}"#,
        )
        .unwrap_or_default(),
        stream: Some(Stream::Stderr),
        log: Log { lines: (1..=30).map(|step| format!("step {step} of 40")).collect(), before: 0 },
        ..Detail::default()
    });
    let list = List { dir: "runs".into(), runs, is_cut: false, is_filtered: false };
    Look { time: SystemTime::UNIX_EPOCH, list: Arc::new(list), error: None, detail, gpus: Vec::new() }
}

fn history() -> History {
    let mut history = History::default();
    for step in 1..=30 {
        let line = format!(
            "{{\"step\": {step}, \"loss\": {}, \"lr\": {}, \"samples_per_s\": {}, \"step_ms\": 12.5, \"grad_norm\": 0.5,\
              \"wait_ms\": {{\"data\": 0.25, \"comm\": 2.0}}, \"memory\": {{\"peak\": 3000000000}}}}",
            3.0 / step as f64,
            step as f64 / 1000.0,
            1200 + step,
        );
        history.add(line.as_bytes());
    }
    for (name, at) in [("loss", 1.0), ("accuracy", -1.0)] {
        let mut curve = Curve::default();
        (10..=30).step_by(10).for_each(|step| curve.push(step, 0.5 + at * (0.5 - step as f64 / 100.0)));
        let last = curve.last().unwrap_or_default();
        history.figures.push(Figure { set: "val".into(), name: name.into(), curve, last });
    }
    history
}
