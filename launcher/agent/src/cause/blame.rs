//! Chooses the worker to blame among several failed ones.

use super::kind::{Cause, Kind};
use crate::local::SAME_MOMENT;
use std::time::Duration;

/// A worker that fails up to this time after another may still be the cause.
const TOGETHER: Duration = SAME_MOMENT.saturating_mul(2);

/// A failed worker.
#[derive(Clone, Debug)]
pub struct Suspect {
    pub rank: usize,
    pub at: Duration,
    pub cause: Option<Cause>,
}

/// Returns the index in `suspects` of the worker to blame. `first` is the index of the worker seen first. If
/// that worker only lost a peer, a nearer cause of about the same time is blamed instead.
pub fn to_blame(first: usize, suspects: &[Suspect]) -> usize {
    let seen_first = suspects.get(first).and_then(|it| Some((it.at, distance(it)?)));
    let Some((at, lost)) = seen_first else {
        return first;
    };
    let near = suspects.iter().enumerate().filter(|(_, it)| it.at.abs_diff(at) <= TOGETHER);
    let nearer = near.filter_map(|(place, it)| {
        let own = distance(it).filter(|own| *own < lost)?;
        Some((own, it.at, it.rank, place))
    });
    nearer.min().map_or(first, |(.., place)| place)
}

/// Returns the distance from the cause: 0 for an own error, 1 for a collective timeout, 2 for a lost peer.
fn distance(suspect: &Suspect) -> Option<u8> {
    let cause = suspect.cause.as_ref()?;
    Some(match (cause.peer_lost, cause.kind) {
        (false, _) => 0,
        (true, Kind::CollectiveTimeout) => 1,
        (true, _) => 2,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Builds a worker that failed at this time in ms; `peer_lost` is `None` if its cause is unknown.
    fn suspect(rank: usize, ms: u64, peer_lost: Option<bool>) -> Suspect {
        Suspect {
            rank,
            at: Duration::from_millis(ms),
            cause: peer_lost.map(|peer_lost| Cause { kind: Kind::Gloo, text: String::new(), peer_lost }),
        }
    }

    #[test]
    fn a_lost_peer_yields_to_a_simultaneous_cause() {
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
            (vec![suspect(0, 500, lost), suspect(3, 700, own), suspect(2, 600, own)], 2),
            (vec![suspect(0, 500, lost), suspect(2, 600, own), suspect(1, 600, own)], 2),
        ] {
            assert_eq!(to_blame(0, &suspects), expected, "{suspects:?}");
        }
        assert_eq!(to_blame(3, &[]), 3);
    }

    #[test]
    fn a_lost_peer_yields_to_a_timeout_and_both_to_an_own_cause() {
        let waited = |rank, ms| {
            let mut suspect = suspect(rank, ms, Some(true));
            suspect.cause.as_mut().expect("it is known").kind = Kind::CollectiveTimeout;
            suspect
        };
        let lost = suspect(2, 500, Some(true));
        let own = suspect(3, 700, Some(false));
        assert_eq!(to_blame(0, &[lost.clone(), waited(0, 600)]), 1);
        assert_eq!(to_blame(0, &[waited(0, 500), lost.clone()]), 0);
        assert_eq!(to_blame(0, &[waited(0, 500), waited(2, 510)]), 0);
        assert_eq!(to_blame(0, &[lost, waited(0, 600), own.clone()]), 2);
        assert_eq!(to_blame(0, &[waited(0, 500), own]), 1);
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
