//! The decision whether the ranks of each node share memory, and the facts behind it.

use std::collections::BTreeMap;

use dtrain_common::env::WorkerEnv;

use super::agree;
use crate::transport::Transport;
use crate::{CollectiveError, GlooGroup};

/// The facts of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The transport that the user selected.
    pub(crate) preference: Transport,
    /// The rank's node, GROUP_RANK.
    pub(crate) node: usize,
    /// The number of ranks on that node, LOCAL_WORLD_SIZE.
    pub(crate) local_size: usize,
    /// The random boot id of the machine, equal in its containers; 0 if it is unknown.
    pub(crate) boot: [i64; 2],
    /// Whether the rank trains on a GPU.
    pub(crate) gpu: bool,
    /// The rank's NCCL version as one number; 0 if it has or needs no NCCL.
    pub(crate) nccl: i32,
}

impl Facts {
    pub(crate) fn new(preference: Transport, env: &WorkerEnv, gpu: bool, nccl: i32) -> Self {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        let number = u128::from_str_radix(&digits, 16).unwrap_or(0);
        let boot = [(number >> 64) as i64, number as i64];
        Self { preference, node: env.group_rank, local_size: env.local_world_size, boot, gpu, nccl }
    }

    fn to_words(self) -> [i64; 7] {
        let ([high, low], count) = (self.boot, |count: usize| count as i64);
        let (node, local_size) = (count(self.node), count(self.local_size));
        [self.preference as i64, node, local_size, high, low, self.gpu.into(), self.nccl.into()]
    }

    fn from_words([preference, node, local_size, high, low, gpu, nccl]: [i64; 7]) -> Self {
        let mut known = Transport::ALL.into_iter().map(|(_, known)| known);
        Self {
            preference: known.find(|known| *known as i64 == preference).unwrap_or_default(),
            node: node as usize,
            local_size: local_size as usize,
            boot: [high, low],
            gpu: gpu == 1,
            nccl: i32::try_from(nccl).unwrap_or(0),
        }
    }
}

/// Gathers the facts of all ranks in rank order.
pub(crate) fn gather_facts(gloo: &GlooGroup, own: Facts) -> Result<Vec<Facts>, CollectiveError> {
    let all = agree::gather(gloo, &own.to_words())?;
    let (ranks, _) = all.as_chunks();
    Ok(ranks.iter().map(|words| Facts::from_words(*words)).collect())
}

/// The decision from the facts, equal on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Try shared memory in each node. Contains the ranks of each node.
    Share(Vec<Vec<usize>>),
    /// Use Gloo, for this reason.
    Gloo(String),
    /// Use MPI.
    Mpi,
    /// Two ranks with different choices.
    Disagree([(usize, Transport); 2]),
}

pub(crate) fn decide(all: &[Facts]) -> Decision {
    let first = all[0];
    if let Some(other) = all.iter().position(|facts| facts.preference != first.preference) {
        return Decision::Disagree([(0, first.preference), (other, all[other].preference)]);
    }
    match first.preference {
        Transport::Gloo => return Decision::Gloo("DTRAIN_TRANSPORT is gloo".into()),
        Transport::Mpi => return Decision::Mpi,
        Transport::Auto | Transport::Shared => {}
    }
    let mut nodes: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (rank, facts) in all.iter().enumerate() {
        nodes.entry(facts.node).or_default().push(rank);
    }
    if nodes.len() == all.len() {
        return Decision::Gloo("every node has one rank".into());
    }
    let reasons = nodes.iter().find_map(|(node, ranks)| reason_against(*node, ranks, all));
    reasons.map_or_else(|| Decision::Share(nodes.into_values().collect()), Decision::Gloo)
}

/// Returns why the ranks of a node cannot share memory.
fn reason_against(node: usize, ranks: &[usize], all: &[Facts]) -> Option<String> {
    let boot = all[ranks[0]].boot;
    ranks.iter().find_map(|rank| {
        let facts = all[*rank];
        if facts.local_size != ranks.len() {
            let (count, local_size) = (ranks.len(), facts.local_size);
            Some(format!("rank {rank} has LOCAL_WORLD_SIZE {local_size}, but node {node} has {count} ranks"))
        } else if facts.boot == [0, 0] {
            Some(format!("/proc/sys/kernel/random/boot_id cannot be read on rank {rank}"))
        } else if facts.boot != boot {
            Some(format!("ranks {} and {rank} of node {node} are on different machines", ranks[0]))
        } else {
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Facts of a rank of this node with this many ranks.
    fn rank(node: usize, local_size: usize) -> Facts {
        Facts { preference: Transport::Auto, node, local_size, boot: [7, -8], gpu: false, nccl: 0 }
    }

    #[test]
    fn ranks_of_one_node_share_memory() {
        assert_eq!(decide(&[rank(0, 3); 3]), Decision::Share(vec![vec![0, 1, 2]]));
        let forced = Facts { preference: Transport::Shared, ..rank(0, 2) };
        assert_eq!(decide(&[forced; 2]), Decision::Share(vec![vec![0, 1]]));
    }

    #[test]
    fn the_ranks_of_each_node_share_memory() {
        let far = Facts { boot: [9, 9], ..rank(1, 1) };
        assert_eq!(decide(&[rank(0, 2), rank(0, 2), far]), Decision::Share(vec![vec![0, 1], vec![2]]));
    }

    #[test]
    fn the_reason_against_shared_memory_is_named() {
        let here = rank(0, 3);
        let far = Facts { boot: [7, 8], ..here };
        let blind = Facts { boot: [0, 0], ..here };
        let gloo = Facts { preference: Transport::Gloo, ..here };
        for (all, fragment) in [
            ([here, here, far], "ranks 0 and 2"),
            ([here, rank(0, 1), here], "rank 1 has LOCAL_WORLD_SIZE 1"),
            ([blind; 3], "boot_id"),
            ([gloo; 3], "DTRAIN_TRANSPORT"),
            ([rank(0, 1), rank(1, 1), rank(2, 1)], "every node has one rank"),
            ([rank(0, 2), rank(1, 2), rank(1, 2)], "rank 0 has LOCAL_WORLD_SIZE 2, but node 0 has 1 ranks"),
        ] {
            match decide(&all) {
                Decision::Gloo(reason) => assert!(reason.contains(fragment), "{reason}"),
                other => panic!("{fragment}: {other:?}"),
            }
        }
    }

    #[test]
    fn ranks_with_different_transports_are_named() {
        let here = rank(0, 3);
        let gloo = Facts { preference: Transport::Gloo, ..here };
        assert_eq!(
            decide(&[here, here, gloo]),
            Decision::Disagree([(0, Transport::Auto), (2, Transport::Gloo)])
        );
    }

    #[test]
    fn facts_survive_conversion_to_words() {
        for preference in [Transport::Auto, Transport::Gloo, Transport::Shared] {
            let facts = Facts { preference, gpu: true, nccl: 22_809, ..rank(3, 5) };
            assert_eq!(Facts::from_words(facts.to_words()), facts);
        }
        let env = WorkerEnv { group_rank: 2, local_world_size: 4, ..WorkerEnv::single() };
        let own = Facts::new(Transport::Auto, &env, false, 0);
        assert_eq!((own.node, own.local_size), (2, 4));
        assert_ne!(own.boot, [0, 0]);
    }
}
