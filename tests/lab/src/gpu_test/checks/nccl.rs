//! The conformance suite of collectives, on device tensors.

use anyhow::Result;

use super::{Check, check};
use crate::gpu_test::finding::Finding;
use crate::gpu_test::suite::{Suite, envs_of_separate_hosts};

pub(super) fn checks() -> Vec<Check> {
    vec![
        check("all operations, one rank", 30, |suite| run_operations(suite, 1)),
        check("all operations, two ranks", 40, |suite| run_operations(suite, 2)),
        check("all operations, a rank per GPU, at least three", 60, |suite| {
            run_operations(suite, suite.gpus.max(3))
        }),
        check("dead peer is reported", 40, |suite| run_scenario(suite, "peer-dies")),
        check("timeout", 40, |suite| run_scenario(suite, "time-out")),
    ]
}

/// Runs the suite. Ranks that share a GPU have different NCCL_HOSTIDs and use sockets.
fn run_operations(suite: &Suite<'_>, ranks: usize) -> Result<Finding> {
    let ended = run_ranks(suite, ranks, "suite")?;
    let kinds = ended.lines().filter(|line| line.starts_with("ok ")).count();
    let shared = ranks > suite.gpus;
    let how = if shared { ", sharing a GPU, over sockets" } else { "" };
    let skipped = ended.lines().any(|line| line.starts_with("skipped "));
    Ok(suite.judged(
        ended.contains("ok shutdown"),
        !skipped,
        format!("{ranks} rank(s){how}: {kinds} groups of operations pass"),
    ))
}

fn run_scenario(suite: &Suite<'_>, name: &str) -> Result<Finding> {
    let stdout = run_ranks(suite, 2, name)?;
    let last = stdout.lines().last().unwrap_or("no output");
    Ok(Finding::judged(last.starts_with("ok "), last))
}

/// Returns rank 0's output if all ranks end well.
fn run_ranks(suite: &Suite<'_>, ranks: usize, scenario: &str) -> Result<String> {
    let mut commands: Vec<_> = envs_of_separate_hosts(ranks)?
        .into_iter()
        .map(|env| {
            let mut command = suite.program("conformance-rank");
            command.args(["nccl", scenario]).envs(env.vars());
            suite.assign_gpu(&mut command, env.rank);
            command
        })
        .collect();
    let mut stdout = String::new();
    for (rank, ended) in suite.run_all(commands.iter_mut().collect())?.into_iter().enumerate() {
        // The rank that dies on purpose has an exit code other than 0.
        let dies = scenario == "peer-dies" && rank + 1 == ranks;
        let ended = if dies { ended } else { ended.expect(0)? };
        if rank == 0 {
            // It refuses to start without a GPU, and so does NCCL.
            suite.proofs.add("conformance-rank");
            stdout = ended.stdout;
        }
    }
    Ok(stdout)
}
