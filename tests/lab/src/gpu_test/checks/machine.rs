//! Checks the GPUs and a worker's memory on them.

use std::time::Instant;

use anyhow::{Context, Result};
use dtrain_common::gpu::{Driver, Nvidia, Status};

use super::recipes::{LM, LONG};
use super::{Check, check};
use crate::gpu_test::finding::Finding;
use crate::gpu_test::proof::Kind;
use crate::gpu_test::suite::{Suite, Training};

/// A context with libtorch's kernels, the tensors of a small training, and the workspaces of libraries.
const MOST_OF_A_WORKER: u64 = 2 << 30;

pub(in crate::gpu_test) fn checks() -> Vec<Check> {
    vec![
        check("the driver answers", 5, check_driver),
        check("a worker uses only its own GPU", 25, check_one_context),
    ]
}

fn status() -> Result<Status> {
    let mut nvidia = Nvidia::open().context("cannot open the NVIDIA driver")?;
    Ok(nvidia.status()?)
}

fn check_driver(suite: &Suite<'_>) -> Result<Finding> {
    let info = suite.run(suite.program("dtrain").args(["gpu", "info", "--json"]))?.expect(0)?;
    let status: Status = serde_json::from_str(&info.stdout).context("dtrain gpu info --json")?;
    let names: Vec<&str> = status.gpus.iter().map(|gpu| gpu.name.as_str()).collect();
    // It computes nothing.
    suite.proofs.add("the driver");
    Ok(Finding::judged(
        !names.is_empty(),
        format!(
            "driver {}, CUDA up to {}: {}",
            status.driver,
            status.cuda.as_deref().unwrap_or("?"),
            names.join(", ")
        ),
    )
    .with("gpus", names.len() as f64))
}

/// Checks that a training adds one process (a context) to each of its GPUs and none to others.
fn check_one_context(suite: &Suite<'_>) -> Result<Finding> {
    let count =
        |status: &Status| -> Vec<usize> { status.gpus.iter().map(|gpu| gpu.processes.len()).collect() };
    let before = status()?;
    let training = Training { name: "one-context", recipe: LM, ranks: suite.gpus, sets: LONG, vars: &[] };
    let recipe = suite.write("one-context.toml", LM)?;
    let mut launched = [suite.start(&mut suite.launch(&training, &recipe))?];
    suite.wait_for_fifth_step("one-context", &mut launched)?;
    let during = status()?;
    let [launched] = launched;
    launched.terminate();
    let ended = launched.wait(suite.signals, Instant::now())?.expect(75)?;
    suite.proofs.add_training(&ended.stderr, suite.gpus, Kind::Gpu)?;
    let (had, has) = (count(&before), count(&during));
    let taken: Vec<u64> = during
        .gpus
        .iter()
        .zip(&before.gpus)
        .map(|(now, then)| now.used_bytes().saturating_sub(then.used_bytes()))
        .collect();
    let more: Vec<i64> = has.iter().zip(&had).map(|(has, had)| *has as i64 - *had as i64).collect();
    let most = taken.iter().copied().max().unwrap_or_default();
    // A context alone takes memory.
    let least = suite.gpus <= taken.iter().filter(|&&bytes| bytes > 0).count();
    // Some drivers name no processes, for example in containers; then only the memory is checked.
    let named = more.iter().sum::<i64>() == suite.gpus as i64 && more.iter().all(|&more| more <= 1);
    let alone = named || has.iter().all(|&has| has == 0);
    Ok(Finding::judged(
        alone && least && most < MOST_OF_A_WORKER,
        format!(
            "additional processes per GPU: {more:?}; additional memory: {:?} MiB",
            taken.iter().map(|bytes| bytes >> 20).collect::<Vec<_>>()
        ),
    )
    .with("most_bytes", most as f64))
}
