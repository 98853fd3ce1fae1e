//! Which of several failed workers is the cause.

use super::kind::Cause;
use crate::local::SAME_MOMENT;
use std::time::Duration;

/// A worker that failed this much later may still be why the first one failed: it has a moment to do so by itself, and is told to
/// stop then, which takes another.
const TOGETHER: Duration = SAME_MOMENT.saturating_mul(2);

/// A failed worker.
#[derive(Clone, Debug)]
pub struct Suspect {
    pub rank: usize,
    pub at: Duration,
    pub cause: Option<Cause>,
}

/// The place in `suspects` of the one to blame. `first` is the place of the one that was seen first; it yields if it
/// only lost a peer, and another one failed at about the same time of a cause of its own.
pub fn to_blame(first: usize, suspects: &[Suspect]) -> usize {
    let of = |suspect: &Suspect| suspect.cause.as_ref().map(|cause| cause.peer_lost);
    let Some(seen_first) = suspects.get(first).filter(|suspect| of(suspect) == Some(true)) else {
        return first;
    };
    let own = suspects
        .iter()
        .enumerate()
        .filter(|(_, suspect)| of(suspect) == Some(false) && suspect.at.abs_diff(seen_first.at) <= TOGETHER);
    own.min_by_key(|(_, suspect)| (suspect.at, suspect.rank))
        .map_or(first, |(place, _)| place)
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;
    use proptest::prelude::*;

    /// A worker that failed at this time in ms; `peer_lost` is none where its cause is not known.
    fn suspect(rank: usize, ms: u64, peer_lost: Option<bool>) -> Suspect {
        Suspect {
            rank,
            at: Duration::from_millis(ms),
            cause: peer_lost.map(|peer_lost| Cause {
                kind: Kind::Gloo,
                text: String::new(),
                peer_lost,
            }),
        }
    }

    #[test]
    fn who_lost_a_peer_yields_to_a_cause_of_the_same_moment() {
        let lost = Some(true);
        let own = Some(false);
        for (suspects, expected) in [
            (vec![suspect(0, 500, lost)], 0),
            (vec![suspect(0, 500, lost), suspect(1, 900, own)], 1),
            (vec![suspect(0, 500, lost), suspect(1, 2500, own)], 1),
            (vec![suspect(0, 500, lost), suspect(1, 2501, own)], 0),
            (vec![suspect(0, 500, lost), suspect(1, 600, lost)], 0),
            (vec![suspect(0, 500, lost), suspect(1, 600, None)], 0),
            (vec![suspect(0, 500, own), suspect(1, 500, own)], 0),
            (vec![suspect(0, 500, None), suspect(1, 501, own)], 0),
            (
                vec![suspect(0, 500, lost), suspect(3, 700, own), suspect(2, 600, own)],
                2,
            ),
            (
                vec![suspect(0, 500, lost), suspect(2, 600, own), suspect(1, 600, own)],
                2,
            ),
        ] {
            assert_eq!(to_blame(0, &suspects), expected, "{suspects:?}");
        }
        assert_eq!(to_blame(3, &[]), 3);
    }

    proptest! {
        #[test]
        fn whoever_is_blamed_in_the_place_of_the_first_has_a_cause_of_its_own(
            described in proptest::collection::vec((0..3000u64, proptest::option::of(any::<bool>())), 1..8),
        ) {
            let suspects: Vec<_> = described
                .iter()
                .enumerate()
                .map(|(rank, (ms, peer_lost))| suspect(rank, *ms, *peer_lost))
                .collect();
            let blamed = &suspects[to_blame(0, &suspects)];
            let own = blamed.cause.as_ref().is_some_and(|cause| !cause.peer_lost);
            prop_assert!(blamed.rank == 0 || (own && blamed.at.abs_diff(suspects[0].at) <= TOGETHER));
        }
    }
}
