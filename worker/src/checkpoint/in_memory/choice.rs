//! Chooses the copies from which a run resumes. Pure: rank 0 decides for all ranks.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::slot::HeldCopy;

/// A rank that sends rank 0 shards of its node's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardSource {
    /// The first rank of that node.
    pub(crate) rank: usize,
    /// The ranks of the earlier attempt whose shards it sends.
    pub(super) of: BTreeSet<usize>,
}

/// Returns the index of the newest of rank 0's copies that is whole with the `others`, and where its missing
/// shards come from. Each of `own` has the ranks whose shards it lacks; each of `others` has the rank that can
/// send it. Shards belong together if they are from the same attempt and step.
pub(super) fn newest_whole(
    own: &[(&HeldCopy, BTreeSet<usize>)],
    others: &[(usize, HeldCopy)],
) -> Option<(usize, Vec<ShardSource>)> {
    let with_sources = |(index, (copy, missing)): (usize, &(&HeldCopy, BTreeSet<usize>))| {
        let mut missing = missing.clone();
        let mut sources = Vec::new();
        let fitting = |other: &HeldCopy| (other.attempt, other.step) == (copy.attempt, copy.step);
        for (rank, other) in others.iter().filter(|(_, other)| fitting(other)) {
            let (of, rest) = missing.into_iter().partition(|shard| other.ranks.contains(shard));
            missing = rest;
            let of: BTreeSet<usize> = of;
            if !of.is_empty() {
                sources.push(ShardSource { rank: *rank, of });
            }
        }
        missing.is_empty().then_some((copy.step, (index, sources)))
    };
    let whole = own.iter().enumerate().filter_map(with_sources);
    whole.max_by_key(|(step, _)| *step).map(|(_, chosen)| chosen)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn copy(attempt: u64, step: u64, ranks: &[usize]) -> HeldCopy {
        HeldCopy { attempt, step, ranks: ranks.iter().copied().collect() }
    }

    #[test]
    fn shards_of_other_attempts_and_steps_are_refused() {
        let (older, newer) = (copy(7, 4, &[0, 2]), copy(7, 5, &[0]));
        let own = [(&older, BTreeSet::from([1])), (&newer, BTreeSet::from([1, 2]))];
        let chosen = |others: &[(usize, HeldCopy)]| {
            newest_whole(&own, others)
                .map(|(index, sources)| (index, sources.into_iter().map(|source| source.rank).collect()))
        };
        assert_eq!(chosen(&[]), None);
        assert_eq!(chosen(&[(1, copy(7, 4, &[1]))]), Some((0, vec![1])));
        assert_eq!(chosen(&[(1, copy(6, 4, &[1])), (1, copy(7, 3, &[1]))]), None);
        assert_eq!(chosen(&[(1, copy(7, 5, &[1])), (1, copy(7, 4, &[1]))]), Some((0, vec![1])));
        assert_eq!(chosen(&[(1, copy(7, 5, &[1])), (2, copy(7, 5, &[1, 2]))]), Some((1, vec![1, 2])));
    }

    proptest! {
        /// Nodes hold their own shards and those of the node before, of two steps of some attempt.
        #[test]
        fn the_newest_step_with_every_shard_is_chosen(
            nodes in 1usize..6,
            lost in prop::collection::vec(any::<bool>(), 6),
            stale in prop::collection::vec(any::<bool>(), 6),
            torn in prop::collection::vec(any::<bool>(), 24),
        ) {
            let holds = |node: usize, owner: usize, step: u64| {
                let is_torn = torn[node * 4 + (step as usize - 8) * 2 + usize::from(owner != node)];
                (owner == node || node == (owner + 1) % nodes) && !is_torn
            };
            let held = |node: usize, step: u64| {
                let ranks = (0..nodes).filter(|owner| holds(node, *owner, step)).collect();
                HeldCopy { attempt: u64::from(stale[node]), step, ranks }
            };
            let own = [held(0, 8), held(0, 9)];
            let missing = |copy: &HeldCopy| (0..nodes).filter(|rank| !copy.ranks.contains(rank)).collect();
            let own: Vec<_> = own.iter().map(|copy| (copy, missing(copy))).collect();
            let survives = |node: &usize| *node > 0 && !lost[*node];
            let others: Vec<_> = (0..nodes).filter(survives).flat_map(|node| [(node, held(node, 8)), (node, held(node, 9))]).collect();
            let fits = |node: usize| node == 0 || (survives(&node) && stale[node] == stale[0]);
            let is_whole = |step: &u64| (0..nodes).all(|owner| (0..nodes).any(|node| fits(node) && holds(node, owner, *step)));
            let chosen = newest_whole(&own, &others);
            prop_assert_eq!(chosen.as_ref().map(|(index, _)| own[*index].0.step), [9, 8].into_iter().find(is_whole));
            if let Some((index, sources)) = chosen {
                let mut shards = own[index].0.ranks.clone();
                for ShardSource { rank, of } in sources {
                    prop_assert!(fits(rank) && of.iter().all(|owner| holds(rank, *owner, own[index].0.step)));
                    prop_assert!(of.into_iter().all(|owner| shards.insert(owner)), "a shard is sent twice");
                }
                prop_assert_eq!(shards.len(), nodes);
            }
        }
    }
}
