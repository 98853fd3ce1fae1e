//! The tables and goals of the checkpoint benchmark.

use super::super::case::Case;
use super::super::figures::Metric;
use super::super::table::{Comparison, Table, Target};
use super::{CheckpointCase, Saver};
use crate::report::Goal;

/// Threads of a training. With two on two cores, the writer shares a core.
const THREADS: [u32; 2] = [1, 2];

/// The most that dtrain's training may wait, as a share of PyTorch's wait.
const BLOCKED: Goal = Goal::AtMost(0.15);
/// The least speed, as a share of the disk's.
const SPEED: Goal = Goal::AtLeast(0.9);
/// The most that a step during a write may take, as a multiple of other steps.
const SLOWER: Goal = Goal::AtMost(1.05);
/// The most milliseconds that a restart may take besides loading.
const BEYOND: Goal = Goal::AtMost(1000.0);

/// Returns the tables of the benchmark.
pub(in super::super) fn tables() -> Vec<Table> {
    let mut tables: Vec<Table> = THREADS.map(beside).into();
    let case = Case::Checkpoint(CheckpointCase::Restart);
    tables.push(Table {
        title: "kill -9 of the worker until its next step begins, 1.06 GB of state".to_owned(),
        cases: vec![case],
        metrics: vec![
            Metric::FreshStartMs,
            Metric::ResumedStartMs,
            Metric::LoadMs,
            Metric::DeathToStepMs,
            Metric::BeyondLoadMs,
        ],
        unit: "",
        comparisons: Vec::new(),
        targets: vec![Target { case, metric: Metric::BeyondLoadMs, goal: BEYOND }],
    });
    tables
}

fn beside(threads: u32) -> Table {
    let case = |saver| Case::Checkpoint(CheckpointCase::DuringTraining(saver, threads));
    let [ours, fresh, kept, save] = [Saver::Dtrain, Saver::Async, Saver::AsyncKept, Saver::Save].map(case);
    let disk = Case::Checkpoint(CheckpointCase::Disk(threads));
    let ratio = |over, under, metric, goal| Comparison { over, under, metric, goal };
    Table {
        title: format!(
            "1.06 GB of state, GPT of 88 million parameters, AdamW, 1 rank with {threads} threads"
        ),
        cases: vec![ours, kept, fresh, save, disk],
        metrics: vec![
            Metric::BlockedMs,
            Metric::FirstBlockedMs,
            Metric::WriteRate,
            Metric::LastWriteRate,
            Metric::TotalMs,
            Metric::AloneStepMs,
            Metric::BesideStepMs,
            Metric::Slowdown,
            Metric::LoadMs,
        ],
        unit: "",
        comparisons: vec![
            ratio(ours, kept, Metric::BlockedMs, Some(BLOCKED)),
            ratio(ours, fresh, Metric::BlockedMs, Some(BLOCKED)),
            ratio(ours, save, Metric::BlockedMs, None),
            ratio(ours, disk, Metric::WriteRate, Some(SPEED)),
            ratio(ours, disk, Metric::LastWriteRate, Some(SPEED)),
            ratio(kept, disk, Metric::WriteRate, None),
            ratio(save, disk, Metric::WriteRate, None),
        ],
        targets: vec![Target { case: ours, metric: Metric::Slowdown, goal: SLOWER }],
    }
}
