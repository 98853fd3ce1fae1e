//! Messages between the leader and the members.
//!
//! Every message after joining names the epoch that it is about. Times are on the leader's clock.

use super::lease::{Moment, Times};
use super::ranks::{Node, Placement};
use super::trial::{FailedTry, Place};
use crate::local::{Cause, Outcome};
use dtrain_common::result::Failure;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// The version of these messages. Agents of different versions do not make a run.
pub const VERSION: u32 = 5;

/// Where rank 0 listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    pub host: String,
    pub port: u16,
    /// Whether the agent serves PyTorch's store there.
    pub is_served: bool,
}

/// Settings of the run, which the leader chooses for all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunInfo {
    /// The workers' `TORCHELASTIC_RUN_ID`.
    pub id: String,
    /// The run directory of the leader's node; for a recipe.
    pub run_dir: Option<PathBuf>,
    /// The recipe as the leader's trainer resolved it.
    pub recipe: Option<String>,
    pub max_restarts: u32,
    /// A random number of the leader's process: a member does not follow another leader.
    pub leader: u64,
}

/// A message from a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ToLeader {
    /// The first message.
    Join { version: u32, node: Node },
    /// Renews the lease.
    Beat { number: u64 },
    /// The node can start its workers. `listens`: on the node of rank 0. `logs`: number of its log folder.
    /// `place`: where the others may try it.
    Ready { epoch: u64, listens: Option<Endpoint>, logs: u32, place: Option<Place> },
    /// Answers [`ToMember::Try`] with the nodes that cannot be used, by their group ranks.
    Tried { epoch: u64, failures: Vec<(usize, FailedTry)> },
    /// A worker of this node has failed; its other workers are being stopped.
    Failed { epoch: u64, end: WorkerEnd },
    /// No worker of the node runs any more.
    Drained { epoch: u64, report: Box<Report> },
    /// The launcher of this node was asked to stop by this signal. `again`: for a second time.
    Asked { signal: i32, again: bool },
    /// The first message of a node that cannot take part, for example because its program does not exist.
    /// `signal`: by which its launcher was asked to stop.
    CannotJoin { host: String, run_id: Option<String>, reason: String, signal: Option<i32> },
    /// No worker of the agent with this [`Node::instance`] runs any more: from itself, or from its guardian as the first
    /// message if the launcher was killed.
    Gone { instance: u64 },
    /// The node cannot continue, for example because its disk is full.
    Leaving { reason: String },
}

/// A message from the leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ToMember {
    /// Answers [`ToLeader::Join`].
    /// `is_spare`: there are enough nodes, and this one waits until another is lost or leaves.
    Welcome { times: Times, run: RunInfo, is_spare: bool },
    /// All workers of the run have ended well: its exit code will be 0.
    EndedWell,
    /// Answers [`ToLeader::Join`]: this node does not take part.
    Rejected { reason: String },
    /// Answers [`ToLeader::Beat`]. `time`: when the leader answered.
    Beat { number: u64, time: Duration },
    /// Prepare for this epoch, and answer with [`ToLeader::Ready`].
    Propose(Preparation),
    /// Try the connections to these nodes, named by their group ranks, and answer with [`ToLeader::Tried`].
    Try { epoch: u64, places: Vec<(usize, Place)> },
    /// Start the workers.
    Start { epoch: u64, rank0: Endpoint },
    /// Stop the workers, and answer with [`ToLeader::Drained`].
    Stop { epoch: u64, reason: StopReason },
    /// The run is over with this exit code.
    Decided { code: u8, reason: String },
}

/// The workers that a node must prepare.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preparation {
    pub epoch: u64,
    pub restart: u32,
    /// Number of the log folder; the node takes the next one if it has used it.
    pub logs: u32,
    pub placement: Placement,
    /// Signals for the workers that no attempt has handled.
    pub notices: Vec<i32>,
    /// Whether the nodes will try each other.
    pub has_trial: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StopReason {
    /// A worker of another node failed.
    WorkerFailed { rank: usize, host: String },
    /// The leader lost the connection to this node, or did not hear from it.
    NodeLost { host: String },
    /// A launcher was asked to stop by this signal. `again`: the user asked a second time.
    Asked { signal: i32, again: bool },
    /// Workers of another node stopped with a checkpoint.
    Requeue,
    /// Another node has joined: stop with a checkpoint, to continue with it.
    Admit,
    /// Another run has taken the run directory: kill the workers.
    Evicted,
    /// The epoch does not begin: a node was lost before its start.
    Regroup,
}

/// The end of one worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerEnd {
    /// Rank among all nodes' workers.
    pub rank: usize,
    pub outcome: Outcome,
    pub at: Moment,
    /// Stop signals sent before the end, oldest first.
    pub sent: Vec<i32>,
    /// Whether the worker's last messages report another worker as gone.
    pub lost_peer: bool,
}

/// A node's part of an attempt that is over. Ranks are those among all nodes' workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The node's own judgement.
    pub cause: Cause,
    /// For [`Cause::Hung`]: the time of the first silent rank's last heartbeat.
    pub silent_since: Option<Moment>,
    pub ends: Vec<WorkerEnd>,
    /// Signals that the workers did not handle, for the next attempt.
    pub notices: Vec<i32>,
    /// Whether another program took the port of rank 0.
    pub port_taken: bool,
    /// Whether the run directory has a checkpoint, from which a later launch would resume; of the leader's node.
    pub has_checkpoint: bool,
    /// The worker that the node blames.
    pub blame: Option<Box<Blame>>,
}

/// The worker to blame, as its own node describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blame {
    /// For `result.json`.
    pub failure: Failure,
    /// What became of the worker, after its rank: `failed: exit code 1`.
    pub ended: String,
    /// The worker's own error message.
    pub reported: Option<String>,
    /// The lines for the user.
    pub banner: Vec<String>,
}

impl Report {
    /// Returns the report of a node that started no worker.
    pub(super) fn empty() -> Self {
        Self {
            cause: Cause::Success,
            silent_since: None,
            ends: Vec::new(),
            notices: Vec::new(),
            port_taken: false,
            has_checkpoint: false,
            blame: None,
        }
    }
}

impl Blame {
    /// Names the node for users, where other nodes have the same host.
    pub(super) fn rename(&mut self, name: &str) {
        let host = std::mem::replace(&mut self.failure.host, name.to_owned());
        let names = |(index, line): &(usize, &mut String)| *index == 0 || line.starts_with("  log on ");
        for (_, line) in self.banner.iter_mut().enumerate().filter(names) {
            *line = line.replacen(&format!(" {host}: "), &format!(" {name}: "), 1);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn unknown_fields_are_errors() {
        let read = |text: &str| serde_json::from_str::<ToMember>(text);
        let message = ToMember::Decided { code: 75, reason: "stopped".into() };
        assert_eq!(serde_json::to_string(&message).unwrap(), r#"{"decided":{"code":75,"reason":"stopped"}}"#);
        assert_eq!(read(r#"{"decided":{"code":75,"reason":"stopped"}}"#).unwrap(), message);
        assert!(read(r#"{"decided":{"code":75,"reason":"","epoch":1}}"#).is_err());
        assert!(read(r#"{"decided":{"code":256,"reason":""}}"#).is_err());
    }
}
