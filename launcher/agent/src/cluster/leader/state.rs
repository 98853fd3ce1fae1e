//! The leader's state: its policy, the nodes it knows, and the phase of the current epoch.

use super::{LeaderAction, LeaderNotice};
use crate::cluster::lease::{Moment, Times};
use crate::cluster::message::{Endpoint, Report, RunInfo, ToMember};
use crate::cluster::ranks::{Node, Placement};
use crate::cluster::trial::{FailedTry, Place};
use crate::local::Restarts;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

/// Identifies a connection. The leader's own member has [`OWN`].
pub type MemberId = u64;

/// The leader's own member, which needs no connection.
pub const OWN: MemberId = 0;

#[derive(Clone, Debug)]
pub struct ClusterPolicy {
    /// Number of nodes of an epoch.
    pub nodes: RangeInclusive<usize>,
    /// The longest wait for enough nodes.
    pub join_timeout: Duration,
    /// With enough nodes, the wait for more.
    pub last_call: Duration,
    /// The same before a restart: the nodes that are left have joined already.
    pub rejoin_call: Duration,
    /// The longest time in which a node prepares its workers.
    pub ready_timeout: Duration,
    pub times: Times,
    /// Exit code of a worker that stopped with a checkpoint; `None` for programs.
    pub requeue_code: Option<i32>,
    /// Members end after this time without a leader.
    pub rejoin_timeout: Duration,
    /// A node that is to blame for this number of epochs in a row does not take part any more.
    pub failures_in_a_row: u32,
    pub run: RunInfo,
    /// Number of the first epoch's log folder, unless a node has used it.
    pub first_logs: u32,
    /// Whether a node that joins while workers run is taken in at once, by a checkpoint and a restart.
    pub admits_at_checkpoint: bool,
    /// Whether TERM to a node other than the leader's means that only this node leaves: outside of batch jobs.
    pub nodes_may_leave: bool,
    /// Whether nodes try each other before the workers of an epoch with a new node start.
    pub has_trial: bool,
    /// Number of the nodes that can come at all, because the job starts one launcher on each; `None` if a node that
    /// fails may be replaced.
    pub nodes_of_job: Option<usize>,
}

#[derive(Clone, Debug)]
pub(super) enum Phase {
    Joining(Joining),
    Proposed {
        since: Duration,
    },
    /// All nodes are ready, and try each other.
    Trying {
        since: Duration,
    },
    Running {
        since: Duration,
    },
    Draining {
        began: Option<Duration>,
    },
    Pausing {
        until: Duration,
    },
    Decided,
}

/// The wait for nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joining {
    pub(super) since: Duration,
    pub(super) enough_since: Option<Duration>,
    /// With enough nodes, the wait for more.
    pub(super) last_call: Duration,
    /// When the next message to the user names what the run waits for.
    pub(super) word_at: Duration,
}

/// After this wait a message to the user names what the run waits for, and again after each [`NEXT_WORD`].
const FIRST_WORD: Duration = Duration::from_secs(5);
pub(super) const NEXT_WORD: Duration = Duration::from_secs(60);

impl Joining {
    pub(super) fn new(now: Duration, last_call: Duration) -> Self {
        Self { since: now, enough_since: None, last_call, word_at: now.saturating_add(FIRST_WORD) }
    }
}

/// A node's part in the current epoch.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) placement: Placement,
    pub(super) is_ready: bool,
    /// Where the others may try the node, and the failures of its tries.
    pub(super) place: Option<Place>,
    pub(super) failures: Option<Vec<(usize, FailedTry)>>,
    pub(super) report: Option<Report>,
    /// Whether the node was lost, and no worker of it can run any more.
    pub(super) is_fenced: bool,
}

impl Part {
    pub(super) fn new(placement: Placement) -> Self {
        Self { placement, is_ready: false, place: None, failures: None, report: None, is_fenced: false }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) node: Node,
    /// The name for users: the host, and what distinguishes it from others of that host.
    pub(super) name: String,
    pub(super) heard: Duration,
    /// When and how the node was lost: between the two times.
    pub(super) lost: Option<Moment>,
    pub(super) part: Option<Part>,
}

impl Peer {
    /// Returns whether no worker of this node can run any more in the current epoch.
    pub(super) fn is_over(&self) -> bool {
        self.part.as_ref().is_none_or(|part| part.report.is_some() || part.is_fenced)
    }

    /// Returns when the node's lease has ended and its workers are killed.
    pub(super) fn fenced_at(&self, times: Times) -> Duration {
        self.heard.saturating_add(times.fence())
    }
}

/// The leader of a run. See the module.
#[derive(Clone, Debug)]
pub struct Leader {
    pub(super) policy: ClusterPolicy,
    pub(super) epoch: u64,
    /// Number of the log folder of the next proposal.
    pub(super) logs: u32,
    /// The members of the last epoch.
    pub(super) placed: BTreeSet<MemberId>,
    /// The members of the last epoch whose connections were tried and work.
    pub(super) tried: BTreeSet<MemberId>,
    pub(super) phase: Phase,
    pub(super) peers: BTreeMap<MemberId, Peer>,
    pub(super) rank0: Option<Endpoint>,
    pub(super) restarts: Restarts,
    /// The signal of the first request to stop.
    pub(super) asked: Option<i32>,
    /// The numbers of agents that were asked to leave and are not sent away yet.
    pub(super) leaving: BTreeSet<u64>,
    /// When the last node was asked to leave.
    pub(super) left_at: Option<Duration>,
    /// Whether the workers have left a checkpoint.
    pub(super) has_checkpoint: bool,
    /// When the leader handled its last event.
    pub(super) awake: Duration,
    /// The latest pause in which the leader did not run: its end and its length.
    pub(super) pause: Option<(Duration, Duration)>,
    /// The pause in which the leader lost nodes of the current epoch.
    pub(super) frozen: Option<Duration>,
    /// Failures in a row by host; of a host that is left out, for good.
    pub(super) failures: BTreeMap<String, u32>,
    /// By host: how often it was lost before the workers were started, since the last start.
    pub(super) regroups: BTreeMap<String, u32>,
    /// The host that has left since the last epoch was proposed, and why.
    pub(super) left: Option<(String, String)>,
    /// Whether the workers were asked to stop for a node that has joined.
    pub(super) is_admitting: bool,
    /// Whether the workers were only asked for a checkpoint, and do not stop by themselves if others fail.
    pub(super) is_soft_stop: bool,
    /// Signals for the workers of the next epoch.
    pub(super) notices: Vec<i32>,
    pub(super) rejected: Vec<(String, String)>,
    /// By host: nodes that could not take part, or left before the first start, and why.
    pub(super) failed: BTreeMap<String, String>,
    /// Whether workers were started.
    pub(super) has_started: bool,
    /// The end of the run, for nodes that come later.
    pub(super) decided: Option<ToMember>,
    pub(super) actions: Vec<LeaderAction>,
}

impl Leader {
    /// Returns a leader that waits for nodes from `now` on.
    pub fn new(policy: ClusterPolicy, restarts: Restarts, now: Duration) -> Self {
        let (last_call, logs) = (policy.last_call, policy.first_logs);
        Self {
            policy,
            epoch: 0,
            logs,
            placed: BTreeSet::new(),
            tried: BTreeSet::new(),
            phase: Phase::Joining(Joining::new(now, last_call)),
            peers: BTreeMap::new(),
            rank0: None,
            restarts,
            asked: None,
            leaving: BTreeSet::new(),
            left_at: None,
            has_checkpoint: false,
            awake: now,
            pause: None,
            frozen: None,
            failures: BTreeMap::new(),
            regroups: BTreeMap::new(),
            left: None,
            is_admitting: false,
            is_soft_stop: false,
            notices: Vec::new(),
            rejected: Vec::new(),
            failed: BTreeMap::new(),
            has_started: false,
            decided: None,
            actions: Vec::new(),
        }
    }

    /// Returns the time by which the driver must send [`LeaderEvent::Timer`](super::LeaderEvent::Timer).
    pub fn deadline(&self) -> Option<Duration> {
        let times = self.policy.times;
        let silence = |(id, peer): (&MemberId, &Peer)| match peer.lost {
            None => (*id != OWN).then(|| peer.heard.saturating_add(times.length)),
            Some(_) => (!peer.is_over()).then(|| peer.fenced_at(times)),
        };
        let by_phase = match self.phase {
            Phase::Joining(Joining { enough_since: Some(since), last_call, .. }) => {
                Some(since.saturating_add(last_call))
            }
            Phase::Joining(Joining { since, word_at, .. }) => {
                Some(since.saturating_add(self.policy.join_timeout).min(word_at))
            }
            Phase::Proposed { since } | Phase::Trying { since } => {
                Some(since.saturating_add(self.policy.ready_timeout))
            }
            Phase::Pausing { until } => Some(until),
            Phase::Running { .. } | Phase::Draining { .. } => None,
            Phase::Decided => return None,
        };
        let awake = self.has_others().then(|| self.awake.saturating_add(times.length / 4));
        self.peers.iter().filter_map(silence).chain(by_phase).chain(awake).min()
    }

    /// Returns the number of restarts so far.
    pub fn restarts(&self) -> u32 {
        self.restarts.used
    }

    /// Returns the nodes that can take part in the next epoch.
    pub(super) fn here(&self) -> impl Iterator<Item = (MemberId, &Peer)> {
        self.peers.iter().filter(|(_, peer)| peer.lost.is_none()).map(|(id, peer)| (*id, peer))
    }

    /// Returns whether nodes other than the leader's are connected.
    pub(super) fn has_others(&self) -> bool {
        self.here().any(|(id, _)| id != OWN)
    }

    pub(super) fn hosts(&self) -> Vec<String> {
        self.here().map(|(_, peer)| peer.name.clone()).collect()
    }

    /// Returns the name for users of a node that is or will be connected.
    pub(super) fn name_of(&self, id: MemberId, node: &Node) -> String {
        let host = &node.host;
        let same = |(other, peer): &(MemberId, &Peer)| *other != id && peer.node.host == *host;
        let others: Vec<_> = self.here().filter(same).map(|(_, peer)| peer.node.address).collect();
        match (node.address, node.node_rank) {
            _ if others.is_empty() => host.clone(),
            _ if id == OWN => format!("{host} (the leader)"),
            (Some(address), _) if !others.contains(&Some(address)) => format!("{host} ({address})"),
            (_, Some(rank)) => format!("{host} (node rank {rank})"),
            _ => format!("{host} (agent {id})"),
        }
    }

    pub(super) fn send(&mut self, to: MemberId, message: ToMember) {
        self.actions.push(LeaderAction::Send { to, message });
    }

    pub(super) fn send_to_all(&mut self, to: impl Fn(MemberId, &Peer) -> bool, message: &ToMember) {
        let ids: Vec<_> = self.here().filter(|(id, peer)| to(*id, peer)).map(|(id, _)| id).collect();
        for id in ids {
            self.send(id, message.clone());
        }
    }

    pub(super) fn tell(&mut self, notice: LeaderNotice) {
        self.actions.push(LeaderAction::Tell(notice));
    }
}
