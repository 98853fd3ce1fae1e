//! A node of the model: its member, its connections and its workers.

use std::collections::VecDeque;

use dtrain_agent::cluster::Member;
use dtrain_agent::cluster::message::{ToLeader, ToMember};

/// One side of a connection.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Side {
    Open,
    /// Its end has not been seen.
    Ending,
    Closed,
}

#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) id: u64,
    pub(super) to_leader: VecDeque<ToLeader>,
    pub(super) to_member: VecDeque<ToMember>,
    pub(super) at_leader: Side,
    pub(super) at_member: Side,
}

#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub(super) struct Workers {
    pub(super) epoch: u64,
    pub(super) since: u32,
    pub(super) stopped: Option<u32>,
    pub(super) killed: Option<u32>,
    pub(super) failed: bool,
    pub(super) asked: bool,
    /// Killed after a freeze: they ran for a moment before.
    pub(super) is_exempt: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct NodeState {
    pub(super) member: Option<Member>,
    pub(super) member_hash: u64,
    pub(super) links: Vec<Link>,
    pub(super) wants_connection: bool,
    /// The epoch of the latest preparation, and whether it is still under way.
    pub(super) prepared: u64,
    pub(super) is_preparing: bool,
    pub(super) is_slow: bool,
    /// Whether its launcher was asked to stop.
    pub(super) was_asked: bool,
    /// The epoch whose other nodes it tries, and the first of these nodes.
    pub(super) trying: Option<(u64, usize)>,
    /// Whether its next try fails.
    pub(super) cannot_reach: bool,
    pub(super) workers: Option<Workers>,
    pub(super) frozen: Option<u32>,
    pub(super) cut: Option<u32>,
    /// When a new agent begins.
    pub(super) returns: Option<u32>,
    /// The start of an earlier epoch, for `Planted::OldStart`.
    pub(super) old_start: Option<ToMember>,
}

impl NodeState {
    /// Returns the connection that the member knows.
    pub(super) fn own_link(&mut self) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.at_member != Side::Closed)
    }

    pub(super) fn close_at_member(&mut self) {
        if let Some(link) = self.own_link() {
            link.at_member = Side::Closed;
            if link.at_leader == Side::Open {
                link.at_leader = Side::Ending;
            }
        }
    }

    pub(super) fn kill(&mut self, now: u32) {
        if let Some(workers) = &mut self.workers {
            workers.killed.get_or_insert(now);
        }
    }
}

impl Link {
    pub(super) fn close_at_leader(&mut self) {
        self.at_leader = Side::Closed;
        if self.at_member == Side::Open {
            self.at_member = Side::Ending;
        }
    }
}
