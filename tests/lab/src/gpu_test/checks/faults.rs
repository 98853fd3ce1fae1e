//! Checks of faults on GPUs.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, kill_process};

use super::recipes::{LM, LONG};
use super::{Check, check};
use crate::commands::{FinishedCommand, RunningCommand};
use crate::gpu_test::finding::Finding;
use crate::gpu_test::proof::Kind;
use crate::gpu_test::suite::{Suite, Training};

/// How long ranks wait for each other in these checks, in seconds.
const TIMEOUT: &str = "20";

/// The limit from the fault to the end of the last rank.
const END: Duration = Duration::from_secs(60);

pub(in crate::gpu_test) fn checks() -> Vec<Check> {
    vec![
        check("full GPU", 20, train_on_full_gpu),
        check("GPU with little free memory", 25, train_on_crowded_gpu),
        check("missing GPU", 20, train_on_missing_gpu),
        check("dead rank", 30, |suite| signal_second_rank(suite, "dies", Signal::KILL)),
        check("hanging rank", 60, |suite| signal_second_rank(suite, "hangs", Signal::STOP)),
        check("stop request", 25, stop_training),
    ]
}

/// Starts a process that holds all of a GPU's memory except `left` bytes until it is dropped.
fn hold_memory(suite: &Suite<'_>, left: u64) -> Result<RunningCommand> {
    let mut command = suite.program("gpu-rank");
    // The process would end if this pipe were closed.
    command.args(["hold-memory", &left.to_string()]).stdin(Stdio::piped());
    let mut holder = suite.start(&mut command)?;
    let stdout = holder.take_stdout().context("the pipe is there")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    ensure!(line.starts_with("taken "), "gpu-rank did not allocate the GPU's memory");
    suite.proofs.add("gpu-rank");
    Ok(holder)
}

/// Returns the first line that contains a word.
fn line_with<'a>(text: &'a str, word: &str) -> &'a str {
    text.lines().find(|line| line.contains(word)).unwrap_or_default()
}

fn training<'a>(name: &'a str, ranks: usize, sets: &'a [&'a str]) -> Training<'a> {
    Training { name, recipe: LM, ranks, sets, vars: &[] }
}

fn train_on_full_gpu(suite: &Suite<'_>) -> Result<Finding> {
    let holder = hold_memory(suite, 200 << 20)?;
    let ended = suite.try_training(&training("full", 1, &[]))?.expect(2)?.expect_stderr("free")?;
    drop(holder);
    Ok(Finding::passed(format!("exit code 2: {}", line_with(&ended.stderr, "free"))))
}

fn train_on_crowded_gpu(suite: &Suite<'_>) -> Result<Finding> {
    let holder = hold_memory(suite, 3 << 30)?;
    let run = suite.train(&training("crowded", 1, &["memory.micro_batch=auto"]))?;
    drop(holder);
    let sentence = line_with(&run.stderr, "free");
    Ok(Finding::judged(!sentence.is_empty(), format!("trained, with the message `{sentence}`")))
}

fn train_on_missing_gpu(suite: &Suite<'_>) -> Result<Finding> {
    // Without the variable, the same training uses a GPU.
    suite.train(&training("present", 1, &["train.steps=1"]))?;
    let missing = Training {
        vars: &[("CUDA_VISIBLE_DEVICES", "GPU-00000000-0000-0000-0000-000000000000")],
        ..training("absent", 1, &[])
    };
    let ended = suite.try_training(&missing)?.expect(2)?;
    Ok(Finding::passed(format!("exit code 2: {}", line_with(&ended.stderr, "CUDA_VISIBLE_DEVICES"))))
}

/// Sends a signal to the second of two ranks: the first must soon end with a reason.
fn signal_second_rank(suite: &Suite<'_>, name: &str, signal: Signal) -> Result<Finding> {
    let training = Training { vars: &[("DTRAIN_COLLECTIVE_TIMEOUT", TIMEOUT)], ..training(name, 2, LONG) };
    let recipe = suite.write(&format!("{name}.toml"), LM)?;
    let mut ranks = suite
        .ranks(&training, &recipe)?
        .iter_mut()
        .map(|command| suite.start(command))
        .collect::<Result<Vec<_>>>()?;
    suite.wait_for_fifth_step(name, &mut ranks)?;
    kill_process(ranks[1].pid(), signal).context("cannot signal the rank")?;
    let begun = Instant::now();
    let first = ranks.remove(0).wait(suite.signals, begun)?;
    ranks[0].kill();
    let FinishedCommand { code, stderr, took, .. } = first;
    suite.proofs.add_training(&stderr, 2, Kind::Gpu)?;
    Ok(Finding::judged(
        code != 0 && took < END,
        format!(
            "rank 0 ended with code {code} after {:.1} s: {}",
            took.as_secs_f64(),
            line_with(&stderr, "error: ")
        ),
    )
    .with("seconds", took.as_secs_f64()))
}

fn stop_training(suite: &Suite<'_>) -> Result<Finding> {
    let training = training("stopped", suite.gpus, LONG);
    let recipe = suite.write("stopped.toml", LM)?;
    let mut launched = [suite.start(&mut suite.launch(&training, &recipe))?];
    suite.wait_for_fifth_step("stopped", &mut launched)?;
    let [launched] = launched;
    launched.terminate();
    let begun = Instant::now();
    let ended = launched.wait(suite.signals, begun)?.expect(75)?;
    suite.proofs.add_training(&ended.stderr, suite.gpus, Kind::Gpu)?;
    let has_checkpoint = suite.run_dir("stopped").latest().exists();
    Ok(Finding::judged(
        has_checkpoint,
        format!("exit code 75 after {:.1} s, with a checkpoint", ended.took.as_secs_f64()),
    ))
}
