//! Checks of faults on GPUs.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::recipes::{LM, LONG};
use super::{Check, check};
use crate::gpu_test::finding::Finding;
use crate::gpu_test::site::{Site, Training};
use crate::started::{Ended, Started};

/// How long ranks wait for each other in these checks, in seconds.
const TIMEOUT: &str = "20";

/// The limit from the fault to the end of the last rank.
const END: Duration = Duration::from_secs(60);

pub(super) fn checks() -> Vec<Check> {
    vec![
        check("a GPU that is full", 30, full),
        check("a GPU of which others have most", 40, crowded),
        check("a GPU that is not there", 10, absent),
        check("a rank that dies", 60, |site| struck(site, "dies", Signal::KILL)),
        check("a rank that hangs", 90, |site| struck(site, "hangs", Signal::STOP)),
        check("a run that is asked to stop", 40, stopped),
    ]
}

/// A process that holds a GPU's memory until it is dropped.
struct Hog {
    started: Started,
    stdin: Option<ChildStdin>,
}

impl Hog {
    /// Takes all memory except `left` bytes.
    fn start(site: &Site<'_>, left: u64) -> Result<Self> {
        let mut command = site.program("gpu-rank");
        command.args(["hog", &left.to_string()]).stdin(Stdio::piped());
        let mut started = site.start(&mut command)?;
        let stdin = started.take_stdin();
        let stdout = started.take_stdout().context("the pipe is there")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        ensure!(line.starts_with("taken "), "the GPU's memory could not be taken");
        Ok(Self { started, stdin })
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        if let Some(mut stdin) = self.stdin.take() {
            // The process ends when this pipe is closed.
            let _ = stdin.flush();
        }
        self.started.kill();
    }
}

/// Returns the first line that contains a word.
fn line_with<'a>(text: &'a str, word: &str) -> &'a str {
    text.lines().find(|line| line.contains(word)).unwrap_or_default()
}

fn training<'a>(name: &'a str, ranks: usize, sets: &'a [&'a str]) -> Training<'a> {
    Training { name, recipe: LM, ranks, sets, vars: &[] }
}

fn full(site: &Site<'_>) -> Result<Finding> {
    let hog = Hog::start(site, 200 << 20)?;
    let ended = site.try_training(&training("full", 1, &[]))?.expect(2)?.says("free")?;
    drop(hog);
    Ok(Finding::passed(format!("exit code 2: {}", line_with(&ended.stderr, "free"))))
}

fn crowded(site: &Site<'_>) -> Result<Finding> {
    let hog = Hog::start(site, 3 << 30)?;
    let run = site.train(&training("crowded", 1, &["memory.micro_batch=auto"]))?;
    drop(hog);
    let sentence = line_with(&run.stderr, "free");
    Ok(Finding::judged(!sentence.is_empty(), format!("trained, and said `{sentence}`")))
}

fn absent(site: &Site<'_>) -> Result<Finding> {
    let absent = Training {
        vars: &[("CUDA_VISIBLE_DEVICES", "GPU-00000000-0000-0000-0000-000000000000")],
        ..training("absent", 1, &[])
    };
    let ended = site.try_training(&absent)?.expect(2)?;
    Ok(Finding::passed(format!("exit code 2: {}", line_with(&ended.stderr, "CUDA_VISIBLE_DEVICES"))))
}

/// Sends a signal to the second of two ranks: the first must soon end with a reason.
fn struck(site: &Site<'_>, name: &str, signal: Signal) -> Result<Finding> {
    let training = Training { vars: &[("DTRAIN_COLLECTIVE_TIMEOUT", TIMEOUT)], ..training(name, 2, LONG) };
    let recipe = site.write(&format!("{name}.toml"), LM)?;
    let mut ranks = site
        .ranks(&training, &recipe)?
        .iter_mut()
        .map(|command| site.start(command))
        .collect::<Result<Vec<_>>>()?;
    site.fifth_step(name, &mut ranks)?;
    send(ranks[1].pid(), signal)?;
    let begun = Instant::now();
    let first = ranks.remove(0).end(site.signals, begun)?;
    ranks[0].kill();
    let Ended { code, stderr, took, .. } = first;
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

fn stopped(site: &Site<'_>) -> Result<Finding> {
    let training = training("stopped", site.gpus, LONG);
    let recipe = site.write("stopped.toml", LM)?;
    let mut launched = [site.start(&mut site.launch(&training, &recipe))?];
    site.fifth_step("stopped", &mut launched)?;
    let [launched] = launched;
    launched.interrupt();
    let begun = Instant::now();
    let ended = launched.end(site.signals, begun)?.expect(75)?;
    let there = site.run_dir("stopped").latest().exists();
    Ok(Finding::judged(
        there,
        format!("exit code 75 after {:.1} s, with a checkpoint", ended.took.as_secs_f64()),
    ))
}

fn send(pid: u32, signal: Signal) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("the rank has ended")?;
    kill_process(pid, signal).context("cannot signal the rank")
}
