//! Several pieces of text in one sample.

use std::cmp::Reverse;
use std::collections::BTreeSet;

/// The pieces of each pack, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Packs {
    /// The pieces of the first pack, then those of the second, and so on.
    pieces: Vec<u32>,
    /// Where the pieces of each pack end.
    ends: Vec<usize>,
}

impl Packs {
    /// Packs pieces of these lengths, none above `room`, into packs of at most `room`.
    ///
    /// By best-fit-decreasing (Ding et al. 2024, "Fewer Truncations Improve Language Modeling"): the longest piece first,
    /// each into the fullest pack that has room for it. It draws no random numbers, and takes O(n log n) time.
    pub(super) fn new(lengths: &[u32], room: u32) -> Self {
        let mut longest_first: Vec<u32> = (0u32..).take(lengths.len()).collect();
        longest_first.sort_by_key(|&piece| Reverse(lengths[piece as usize]));
        // The free room of each pack that is not full, with its number.
        let mut open = BTreeSet::new();
        let (mut pack_of, mut packs) = (vec![0; lengths.len()], 0);
        for piece in longest_first {
            let length = lengths[piece as usize];
            let fullest = open.range((length, 0)..).next().copied();
            let (free, pack) = fullest.unwrap_or((room, packs));
            match fullest {
                Some(found) => _ = open.remove(&found),
                None => packs += 1,
            }
            pack_of[piece as usize] = pack;
            if free > length {
                open.insert((free - length, pack));
            }
        }
        let mut pieces: Vec<u32> = (0u32..).take(lengths.len()).collect();
        pieces.sort_by_key(|&piece| pack_of[piece as usize]);
        let mut ends = vec![0; packs];
        pack_of.iter().for_each(|&pack| ends[pack] += 1);
        ends.iter_mut().fold(0, |before, end| {
            *end += before;
            *end
        });
        Self { pieces, ends }
    }

    /// Returns the number of packs.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the pieces of a pack.
    pub(super) fn of(&self, pack: usize) -> &[u32] {
        let start = if pack == 0 { 0 } else { self.ends[pack - 1] };
        &self.pieces[start..self.ends[pack]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packed(lengths: &[u32], room: u32) -> Vec<Vec<u32>> {
        let packs = Packs::new(lengths, room);
        (0..packs.len()).map(|pack| packs.of(pack).to_vec()).collect()
    }

    #[test]
    fn each_piece_goes_into_the_fullest_pack_that_has_room() {
        assert_eq!(packed(&[], 8), [[0u32; 0]; 0]);
        assert_eq!(packed(&[1, 5, 6, 3, 2, 8], 8), [vec![5], vec![2, 4], vec![1, 3], vec![0]]);
        assert_eq!(packed(&[2, 4, 2, 8, 4], 8), [vec![3], vec![1, 4], vec![0, 2]]);
    }

    #[test]
    fn packs_of_random_lengths_are_nearly_full() {
        for (least, most) in [(1, 100), (1, 20), (5, 60)] {
            let lengths: Vec<u32> = (0..5000u32)
                .map(|it| least + (it.wrapping_mul(2_654_435_761) >> 8) % (most - least))
                .collect();
            let total: u32 = lengths.iter().sum();
            let packs = packed(&lengths, 100).len() as u32;
            assert!(packs * 100 <= total / 100 * 101 + 100, "{least} to {most}: {packs} packs of {total}");
        }
    }

    proptest! {
        #[test]
        fn each_piece_stands_once_and_each_pack_fits(lengths in prop::collection::vec(1u32..40, 0..300), room in 39u32..80) {
            let packs = packed(&lengths, room);
            let length = |piece: u32| lengths[piece as usize];
            for pack in &packs {
                prop_assert!(pack.iter().map(|&piece| length(piece)).sum::<u32>() <= room && !pack.is_empty());
                prop_assert!(pack.is_sorted());
            }
            let mut pieces = packs.concat();
            pieces.sort_unstable();
            prop_assert!(pieces.into_iter().eq(0..lengths.len() as u32));
            // At most one pack is less than half full, and best-fit-decreasing needs at most 11/9 of the fewest packs, and one.
            let total: u32 = lengths.iter().sum();
            let half = packs.iter().filter(|pack| pack.iter().map(|&piece| length(piece)).sum::<u32>() * 2 <= room);
            prop_assert!(half.count() <= 1);
            prop_assert!(packs.len() as u32 * room < 2 * total + room);
        }
    }
}
