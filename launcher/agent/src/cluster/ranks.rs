//! Ranks of the workers of several nodes.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A node, as it describes itself when it joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(Default))]
#[serde(deny_unknown_fields)]
pub struct Node {
    pub host: String,
    /// By which the node reaches the leader, if it is known.
    pub address: Option<IpAddr>,
    /// A random number of the agent's process: a node that connects again replaces its earlier connection.
    pub instance: u64,
    /// Number of workers that this node starts, at least 1.
    pub workers: usize,
    /// The user's `--node-rank`.
    pub node_rank: Option<usize>,
    /// The user's `--rdzv-id`.
    pub run_id: Option<String>,
    /// Hashes of things that must be the same on all nodes, by name: recipe, binary, libtorch.
    pub fingerprints: BTreeMap<String, String>,
}

/// The part of one node in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// The node's index, torchrun's `GROUP_RANK`.
    pub group_rank: usize,
    pub group_world_size: usize,
    /// Rank of the node's first worker; its other workers follow.
    pub first_rank: usize,
    pub world_size: usize,
}

impl Placement {
    /// Returns the part of the only node.
    pub fn alone(workers: usize) -> Self {
        Self { group_rank: 0, group_world_size: 1, first_rank: 0, world_size: workers }
    }
}

/// Places nodes: the leader's first, then by `--node-rank`, then by host name, then as they came.
///
/// The names of hosts are compared with their numbers as numbers, so node9 is before node10.
pub fn place<'a, K: Copy + Ord>(
    nodes: impl IntoIterator<Item = (K, &'a Node)>,
    leaders: K,
) -> Vec<(K, Placement)> {
    let mut order: Vec<_> = nodes.into_iter().collect();
    order.sort_by_cached_key(|(key, node)| {
        (*key != leaders, node.node_rank.unwrap_or(usize::MAX), natural(&node.host), *key)
    });
    let world_size = order.iter().map(|(_, node)| node.workers).sum();
    let group_world_size = order.len();
    let mut first_rank = 0;
    let place = |(group_rank, (key, node)): (usize, (K, &Node))| {
        let placement = Placement { group_rank, group_world_size, first_rank, world_size };
        first_rank += node.workers;
        (key, placement)
    };
    order.into_iter().enumerate().map(place).collect()
}

/// Splits a name into text and numbers.
fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = vec![(String::new(), 0_u64)];
    let mut in_number = false;
    for c in name.chars() {
        match (c.to_digit(10), parts.last_mut()) {
            (Some(digit), Some((_, number))) => {
                in_number = true;
                *number = number.saturating_mul(10).saturating_add(digit.into());
            }
            (None, Some((text, _))) if !in_number => text.push(c),
            _ => {
                in_number = false;
                parts.push((c.to_string(), 0));
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node(host: &str, workers: usize, node_rank: Option<usize>) -> Node {
        Node { host: host.into(), workers, node_rank, ..Node::default() }
    }

    #[test]
    fn the_leaders_node_is_first_and_the_others_follow_by_name() {
        let nodes = [node("n10", 1, None), node("n9", 4, None), node("n2", 2, None)];
        let placed = place(nodes.iter().enumerate(), 1);
        let seen: Vec<_> = placed.iter().map(|(key, at)| (*key, at.group_rank, at.first_rank)).collect();
        assert_eq!(seen, [(1, 0, 0), (2, 1, 4), (0, 2, 6)]);
        assert!(placed.iter().all(|(_, at)| at.world_size == 7 && at.group_world_size == 3));
    }

    #[test]
    fn node_ranks_of_the_user_decide() {
        let nodes = [node("a", 1, Some(1)), node("b", 1, Some(0)), node("c", 1, None)];
        let order: Vec<_> = place(nodes.iter().enumerate(), 2).into_iter().map(|(key, _)| key).collect();
        assert_eq!(order, [2, 1, 0]);
    }

    proptest! {
        #[test]
        fn every_rank_is_given_once(workers in prop::collection::vec(1_usize..9, 1..20), leader in 0_usize..20) {
            let nodes: Vec<_> = workers.iter().map(|n| node("host", *n, None)).collect();
            let placed = place(nodes.iter().enumerate(), leader % workers.len());
            let mut next = 0;
            for (group_rank, (key, at)) in placed.iter().enumerate() {
                prop_assert_eq!((at.group_rank, at.first_rank), (group_rank, next));
                next += workers[*key];
            }
            prop_assert!(placed.iter().all(|(_, at)| at.world_size == next));
        }
    }
}
