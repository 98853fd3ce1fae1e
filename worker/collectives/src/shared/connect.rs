//! The decision whether the ranks share memory, and the facts behind it.

use super::agree;
use crate::transport::Transport;
use crate::{CollectiveError, GlooGroup};

/// The facts of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The transport that the user selected.
    pub(crate) preference: Transport,
    /// Whether all ranks are on one machine, by the environment.
    pub(crate) local: bool,
    /// The random boot id of the machine, equal in its containers; 0 if it is unknown.
    pub(crate) boot: [i64; 2],
    /// Whether the rank trains on a GPU.
    pub(crate) gpu: bool,
    /// The rank's NCCL version as one number; 0 if it has or needs no NCCL.
    pub(crate) nccl: i32,
}

impl Facts {
    pub(crate) fn new(preference: Transport, local: bool, gpu: bool, nccl: i32) -> Self {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        let number = u128::from_str_radix(&digits, 16).unwrap_or(0);
        Self { preference, local, boot: [(number >> 64) as i64, number as i64], gpu, nccl }
    }

    fn to_words(self) -> [i64; 6] {
        let [high, low] = self.boot;
        [self.preference as i64, self.local.into(), high, low, self.gpu.into(), self.nccl.into()]
    }

    fn from_words(words: [i64; 6]) -> Self {
        let preference = Transport::ALL
            .into_iter()
            .map(|(_, preference)| preference)
            .find(|preference| *preference as i64 == words[0]);
        Self {
            preference: preference.unwrap_or_default(),
            local: words[1] == 1,
            boot: [words[2], words[3]],
            gpu: words[4] == 1,
            nccl: i32::try_from(words[5]).unwrap_or(0),
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
    /// Try shared memory.
    Share,
    /// Use Gloo, for this reason.
    Gloo(String),
    /// Two ranks with different choices.
    Disagree([(usize, Transport); 2]),
}

pub(crate) fn decide(all: &[Facts]) -> Decision {
    let Some(first) = all.first() else {
        return Decision::Gloo("the run has no ranks".into());
    };
    if let Some(other) = all.iter().position(|facts| facts.preference != first.preference) {
        return Decision::Disagree([(0, first.preference), (other, all[other].preference)]);
    }
    if first.preference == Transport::Gloo {
        return Decision::Gloo("DTRAIN_TRANSPORT is gloo".into());
    }
    if let Some(rank) = all.iter().position(|facts| !facts.local) {
        return Decision::Gloo(format!(
            "rank {rank}'s LOCAL_WORLD_SIZE is below its WORLD_SIZE: the ranks are on several machines"
        ));
    }
    if first.boot == [0, 0] {
        return Decision::Gloo("/proc/sys/kernel/random/boot_id cannot be read on rank 0".into());
    }
    match all.iter().position(|facts| facts.boot != first.boot) {
        Some(rank) => Decision::Gloo(format!("ranks 0 and {rank} are on different machines")),
        None => Decision::Share,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Facts =
        Facts { preference: Transport::Auto, local: true, boot: [7, -8], gpu: false, nccl: 0 };

    #[test]
    fn ranks_of_one_machine_share_memory() {
        assert_eq!(decide(&[HERE; 3]), Decision::Share);
        let forced = Facts { preference: Transport::Shared, ..HERE };
        assert_eq!(decide(&[forced; 2]), Decision::Share);
    }

    #[test]
    fn the_reason_against_shared_memory_is_named() {
        let far = Facts { boot: [7, 8], ..HERE };
        let spread = Facts { local: false, ..HERE };
        let blind = Facts { boot: [0, 0], ..HERE };
        let gloo = Facts { preference: Transport::Gloo, ..HERE };
        for (all, fragment) in [
            ([HERE, HERE, far], "ranks 0 and 2"),
            ([HERE, spread, HERE], "rank 1"),
            ([blind; 3], "boot_id"),
            ([gloo; 3], "DTRAIN_TRANSPORT"),
        ] {
            match decide(&all) {
                Decision::Gloo(reason) => assert!(reason.contains(fragment), "{reason}"),
                other => panic!("{fragment}: {other:?}"),
            }
        }
    }

    #[test]
    fn ranks_with_different_transports_are_named() {
        let gloo = Facts { preference: Transport::Gloo, ..HERE };
        assert_eq!(
            decide(&[HERE, HERE, gloo]),
            Decision::Disagree([(0, Transport::Auto), (2, Transport::Gloo)])
        );
    }

    #[test]
    fn facts_survive_conversion_to_words() {
        for preference in [Transport::Auto, Transport::Gloo, Transport::Shared] {
            for local in [false, true] {
                let facts = Facts { preference, local, ..HERE };
                assert_eq!(Facts::from_words(facts.to_words()), facts);
            }
        }
        let own = Facts::new(Transport::Auto, true, false, 0);
        assert_ne!(own.boot, [0, 0]);
        assert_eq!(own, Facts::new(Transport::Auto, true, false, 0));
    }
}
