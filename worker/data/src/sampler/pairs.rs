//! Partners: another sample of the same step for each sample.

use super::super::rng::{Domain, below, keyed};

/// Returns the partner's place for each place of a step with these samples; steps count over the run. It is a permutation
/// without fixed points, and no sample is its own partner unless it stands at more than half of the places. Panics if
/// there is one place.
///
/// Sattolo's algorithm: start from 0, 1, ...; for i from the last place down to 1 draw j in 0..i from the generator keyed
/// by ([`Domain::Pairs`], seed, step, 0) and exchange i and j. Each cycle is equally likely. If a sample stands at several
/// places and is its own partner, its place then exchanges partners with the next that leaves neither with itself.
pub fn partners(samples: &[u32], seed: u64, step: u64) -> Vec<u32> {
    let count = samples.len();
    assert_ne!(count, 1, "a step of one sample has no partner for it");
    let mut places: Vec<u32> = (0..count as u32).collect();
    let mut rng = keyed(Domain::Pairs, seed, step, 0);
    for i in (1..count).rev() {
        let j = below(&mut rng, i as u32) as usize;
        places.swap(i, j);
    }
    let is_own = |place: usize, partner: u32| samples[place] == samples[partner as usize];
    for place in 0..count {
        if is_own(place, places[place]) {
            let others = (1..count).map(|further| (place + further) % count);
            let mut free =
                others.filter(|&other| !is_own(place, places[other]) && !is_own(other, places[place]));
            if let Some(other) = free.next() {
                places.swap(place, other);
            }
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn partners_never_change() {
        // Golden values of a second implementation.
        let different = [9, 8, 7, 6, 5, 4];
        assert_eq!(partners(&different, 1, 0), [1, 3, 4, 5, 0, 2]);
        assert_eq!(partners(&different, 1, 1), [1, 2, 5, 0, 3, 4]);
        assert_eq!(partners(&different[..2], 1, 5), [1, 0]);
        assert!(partners(&[], 1, 0).is_empty());
    }

    #[test]
    fn every_partner_is_equally_likely() {
        let mut counts = [[0u32; 5]; 5];
        for step in 0..8_000 {
            for (place, partner) in partners(&[0, 1, 2, 3, 4], 3, step).into_iter().enumerate() {
                counts[place][partner as usize] += 1;
            }
        }
        for (place, row) in counts.iter().enumerate() {
            for (partner, count) in row.iter().enumerate() {
                let expected = if place == partner { 0..1 } else { 1_850..2_150 };
                assert!(expected.contains(count), "{place} {partner}: {count}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_step_s_partners_are_a_permutation_without_fixed_points(samples in 2usize..300, seed: u64, step: u64) {
            let found = partners(&(0..samples as u32).collect::<Vec<_>>(), seed, step);
            prop_assert!(found.iter().enumerate().all(|(place, partner)| place != *partner as usize));
            let mut sorted = found;
            sorted.sort_unstable();
            prop_assert!(sorted.into_iter().eq(0..samples as u32));
        }

        #[test]
        fn no_sample_is_its_own_partner_unless_most_places_have_it(
            samples in prop::collection::vec(0u32..6, 2..30), seed: u64, step: u64,
        ) {
            let found = partners(&samples, seed, step);
            let mut sorted = found.clone();
            sorted.sort_unstable();
            prop_assert!(sorted.into_iter().eq(0..samples.len() as u32));
            let most = (0..6).map(|one| samples.iter().filter(|sample| **sample == one).count()).max().unwrap_or(0);
            let own = found.iter().enumerate().filter(|(at, to)| samples[*at] == samples[**to as usize]).count();
            prop_assert!(own == 0 || 2 * most > samples.len(), "{samples:?}: {found:?}");
        }
    }
}
