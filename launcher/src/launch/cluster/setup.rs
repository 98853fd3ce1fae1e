//! What a node brings to the run, and the leader's policy.

use super::handle::LeaderSetup;
use super::meeting::Meeting;
use crate::cli::Rendezvous;
use crate::launch::attempt::Launch;
use crate::launch::files::next_attempt;
use crate::plan::LaunchPlan;
use anyhow::bail;
use dtrain_agent::cluster::ClusterPolicy;
use dtrain_agent::cluster::message::RunInfo;
use dtrain_agent::cluster::ranks::Node;
use dtrain_agent::io::process::open_files;
use dtrain_agent::io::wire::Limits;
use dtrain_agent::local::Restarts;
use dtrain_common::host;
use dtrain_common::random;
use rustix::process::Rlimit;
use std::time::Duration;

/// A node prepares its workers within this time, also on a slow file system.
const READY: Duration = Duration::from_secs(120);
/// Before a restart, the wait for nodes that were lost.
const REJOIN_CALL: Duration = Duration::from_secs(5);
/// A node that is to blame this often in a row is left out.
const FAILURES_IN_A_ROW: u32 = 3;
/// Files that an agent opens beside connections and workers.
const OTHER_FILES: usize = 256;
/// Files of a worker: its output, its logs and its heartbeats.
const FILES_OF_WORKER: usize = 32;

/// Describes this node for the leader.
pub(in crate::launch) fn describe(rendezvous: &Rendezvous, plan: &LaunchPlan) -> anyhow::Result<Node> {
    if rendezvous.admits_at_checkpoint && plan.training().is_none() {
        bail!("--rdzv-conf admit=checkpoint is for recipes: a program writes its checkpoints by itself");
    }
    Ok(Node {
        host: host::name(),
        address: None,
        instance: random::number(),
        workers: plan.nproc,
        node_rank: rendezvous.node_rank,
        run_id: rendezvous.run_id.clone(),
        fingerprints: plan.fingerprints()?,
    })
}

/// Returns the leader's policy.
pub(super) fn leader(launch: &Launch<'_>, meeting: &Meeting, restarts: Restarts) -> LeaderSetup {
    let (plan, rendezvous) = (&launch.plan, &meeting.rendezvous);
    LeaderSetup {
        policy: ClusterPolicy {
            nodes: rendezvous.nodes.clone(),
            join_timeout: rendezvous.join_timeout,
            last_call: rendezvous.last_call,
            rejoin_call: REJOIN_CALL.min(rendezvous.last_call),
            ready_timeout: READY,
            times: rendezvous.times,
            requeue_code: plan.requeue_code(),
            rejoin_timeout: meeting.rejoin_timeout(),
            failures_in_a_row: FAILURES_IN_A_ROW,
            run: RunInfo {
                run_dir: plan.training().and(plan.run_dir.as_ref()).map(|run_dir| run_dir.root().into()),
                recipe: plan.training().and_then(|training| training.text().map(str::to_owned)),
                ..launch.run.clone()
            },
            admits_at_checkpoint: rendezvous.admits_at_checkpoint,
            nodes_may_leave: rendezvous.nodes_may_leave,
            has_trial: rendezvous.has_trial,
            nodes_of_job: rendezvous.nodes_of_job,
            first_logs: plan.logs().map_or(0, |logs| next_attempt(&logs)),
        },
        restarts,
    }
}

/// Raises the leader's limit of open files to what all nodes need. Returns the earlier limit if it was lower, and a
/// warning if the limit cannot be raised.
pub(super) fn open_files(rendezvous: &Rendezvous, workers: usize) -> (Option<Rlimit>, Option<String>) {
    let limits = Limits::default();
    let connections = limits.members.min(*rendezvous.nodes.end()) + limits.strangers;
    let needed = connections + FILES_OF_WORKER * workers + OTHER_FILES;
    let (before, raised) = open_files::raise(needed as u64);
    let warning = raised.err().map(|error| {
        format!("dtrain: the leader needs {needed} open files for all nodes, but {error}; raise it with `ulimit -Hn {needed}`")
    });
    (before, warning)
}
