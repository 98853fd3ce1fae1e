//! The conformance suite of collectives, on device tensors.

use anyhow::Result;

use super::{Check, check};
use crate::gpu_test::finding::Finding;
use crate::gpu_test::site::{Site, strangers};

pub(super) fn checks() -> Vec<Check> {
    vec![
        check("all operations, one rank", 30, |site| suite(site, 1)),
        check("all operations, two ranks", 40, |site| suite(site, 2)),
        check("all operations, as many ranks as GPUs, three at least", 60, |site| {
            suite(site, site.gpus.max(3))
        }),
        check("a peer that dies is told of", 40, |site| scenario(site, "peer-dies")),
        check("a wait has an end", 40, |site| scenario(site, "time-out")),
    ]
}

/// Runs the suite. Ranks that share a GPU have different NCCL_HOSTIDs and use sockets.
fn suite(site: &Site<'_>, ranks: usize) -> Result<Finding> {
    let ended = conform(site, ranks, "suite")?;
    let kinds = ended.lines().filter(|line| line.starts_with("ok ")).count();
    let shared = ranks > site.gpus;
    let how = if shared { ", sharing a GPU, over sockets" } else { "" };
    Ok(Finding::judged(
        ended.contains("ok shutdown"),
        format!("{ranks} rank(s){how}: {kinds} groups of operations hold"),
    ))
}

fn scenario(site: &Site<'_>, name: &str) -> Result<Finding> {
    let said = conform(site, 2, name)?;
    let last = said.lines().last().unwrap_or("it says nothing");
    Ok(Finding::passed(last.to_owned()))
}

/// Returns rank 0's output if all ranks end well.
fn conform(site: &Site<'_>, ranks: usize, scenario: &str) -> Result<String> {
    let mut commands: Vec<_> = strangers(ranks)?
        .into_iter()
        .map(|env| {
            let mut command = site.program("conformance-rank");
            command.args(["nccl", scenario]).envs(env.vars());
            site.share(&mut command, env.rank);
            command
        })
        .collect();
    let mut said = String::new();
    for (rank, ended) in site.run_all(commands.iter_mut().collect())?.into_iter().enumerate() {
        // The rank that dies on purpose has an exit code other than 0.
        let dies = scenario == "peer-dies" && rank + 1 == ranks;
        let ended = if dies { ended } else { ended.expect(0)? };
        if rank == 0 {
            said = ended.stdout;
        }
    }
    Ok(said)
}
