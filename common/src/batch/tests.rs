#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

#[test]
fn the_guides_figures() {
    for (batch, micro, steps) in [(8, 2, 4), (4, 1, 4), (16, 2, 8), (16, 4, 4)] {
        let partition = Partition::new(batch, 1, Some(micro)).unwrap();
        assert_eq!((partition.micro_batch(), partition.grad_accum_steps()), (micro, steps));
    }
    assert_eq!(Partition::new(8, 2, Some(2)).unwrap().grad_accum_steps(), 2);
}

#[test]
fn invalid_environments_are_errors() {
    assert_eq!(Partition::new(0, 1, None), Err(BatchError::Zero("effective batch")));
    assert_eq!(Partition::new(1, 0, None), Err(BatchError::Zero("number of ranks")));
    assert_eq!(Partition::new(1, 1, Some(0)), Err(BatchError::Zero("micro-batch")));
    let error = Partition::new(3, 4, None).unwrap_err();
    assert_eq!(error, BatchError::FewerSamplesThanRanks { effective_batch: 3, ranks: 4 });
    assert!(error.to_string().contains("train.effective_batch"), "{error}");
}

#[test]
#[should_panic(expected = "share 3 of 3 parts")]
fn a_rank_beyond_the_last_is_a_bug() {
    Partition::new(9, 3, None).unwrap().samples_of(3);
}

#[test]
fn display_shows_the_partition() {
    let show = |batch, ranks, micro| Partition::new(batch, ranks, micro).unwrap().to_string();
    assert_eq!(show(128, 2, None), "128 = 2 ranks x 64 x 1 accumulation");
    assert_eq!(show(128, 2, Some(16)), "128 = 2 ranks x 16 x 4 accumulation");
    assert_eq!(show(8, 1, Some(2)), "8 = 1 rank x 2 x 4 accumulation");
    assert_eq!(show(10, 3, None), "10 = 3 ranks x (4, 3, 3)");
    assert_eq!(show(10, 2, Some(3)), "10 = 2 ranks x 5 in up to 2 micro-batches of 2 to 3");
    assert_eq!(show(10, 3, Some(2)), "10 = 3 ranks x (4, 3, 3) in up to 2 micro-batches of 1 to 2");
    assert_eq!(show(1001, 100, None), "1001 = 100 ranks x (1 of 11, 99 of 10)");
    assert_eq!(Partition::new(64, 4, None).unwrap().for_samples(2).to_string(), "2 = 4 ranks x (1, 1, 0, 0)");
    assert_eq!(show(3, 2, Some(1)), "3 = 2 ranks x (2, 1) in up to 2 micro-batches of 1");
}

#[test]
fn groups_that_do_not_fit_name_suitable_values() {
    let cut = |ranks, micro, group| Partition::in_groups(24, ranks, micro, Some(group));
    assert_eq!(cut(1, None, 8).unwrap().to_string(), "24 = 1 rank x 24 x 1 accumulation");
    assert_eq!(
        cut(2, Some(8), 8).unwrap().to_string(),
        "24 = 2 ranks x (16, 8) in up to 2 micro-batches of 8"
    );
    assert_eq!(cut(3, Some(15), 8).unwrap().to_string(), "24 = 3 ranks x 8 x 1 accumulation");
    // Two groups for three ranks; the micro-batches are smaller than a group.
    assert_eq!(cut(3, None, 12).unwrap().to_string(), "24 = 3 ranks x 4 x 2 accumulation");
    assert_eq!(cut(2, Some(4), 8).unwrap().to_string(), "24 = 2 ranks x 4 x 3 accumulation");
    let error = cut(2, Some(3), 8).unwrap_err().to_string();
    assert!(error.contains("memory.micro_batch to 4 or more") && error.contains("group:6"), "{error}");
    let (one, none) = (cut(2, Some(3), 1).unwrap(), Partition::new(24, 2, Some(3)).unwrap());
    assert_eq!((one.group(), none.group()), (Some(1), None));
    assert_eq!(one.limited(2).unwrap().group(), Some(1));
    assert_eq!(one.micro_ranges(1), none.micro_ranges(1));
}

#[test]
fn ranks_take_the_same_number_of_micro_steps_where_they_can() {
    let sizes = |batch, ranks, micro| {
        let partition = Partition::new(batch, ranks, Some(micro)).unwrap();
        let of = |rank| partition.micro_ranges(rank).iter().map(Range::len).collect::<Vec<_>>();
        (partition.is_even(), (0..ranks).map(of).collect::<Vec<_>>())
    };
    // Rank 1 could take its 4 samples at once, but follows rank 0, which cannot.
    assert_eq!(sizes(9, 2, 4), (true, vec![vec![3, 2], vec![2, 2]]));
    assert_eq!(sizes(13, 3, 2), (true, vec![vec![2, 2, 1], vec![2, 1, 1], vec![2, 1, 1]]));
    // Four samples cannot make five micro-batches.
    assert_eq!(sizes(9, 2, 1), (false, vec![vec![1; 5], vec![1; 4]]));
    let last = Partition::new(9, 4, Some(4)).unwrap().for_samples(2);
    assert!(!last.is_even());
    assert!(last.for_samples(4).is_even() && last.for_samples(0).is_even());
}

#[test]
fn a_short_step_keeps_the_limit() {
    let partition = Partition::new(64, 4, None).unwrap();
    let short = partition.for_samples(2);
    assert_eq!(short.micro_ranges(0), vec![0..1; 1]);
    assert_eq!(short.micro_ranges(1), vec![1..2; 1]);
    assert!(short.micro_ranges(2).is_empty() && short.micro_ranges(3).is_empty());
    assert_eq!((short.micro_batch(), short.smallest_micro_batch(), short.grad_accum_steps()), (1, 1, 1));
    let none = partition.for_samples(0);
    assert_eq!((none.micro_batch(), none.smallest_micro_batch(), none.grad_accum_steps()), (0, 0, 0));
    // A longer step takes more pieces, not larger ones.
    let long = partition.for_samples(128);
    assert_eq!((long.micro_batch(), long.grad_accum_steps()), (16, 2));
}

/// Returns any effective batch, number of ranks up to it, and micro-batch limit.
fn partitions() -> impl Strategy<Value = Partition> {
    (1usize..2000, prop::option::of(1usize..200))
        .prop_flat_map(|(batch, micro)| (Just(batch), 1..=batch.min(70), Just(micro)))
        .prop_map(|(batch, ranks, micro)| Partition::new(batch, ranks, micro).unwrap())
}

/// Returns any partition in groups; some groups are spread over the ranks.
fn grouped() -> impl Strategy<Value = (Partition, usize)> {
    let sizes = (1usize..600, prop::option::of(1usize..100), 1usize..40);
    sizes
        .prop_flat_map(|(batch, micro, group)| (Just(batch), 1..=batch.min(12), Just(micro), Just(group)))
        .prop_filter_map("the group does not fit", |(batch, ranks, micro, group)| {
            let cut = Partition::in_groups(batch, ranks, micro, Some(group)).ok()?;
            Some((cut, group.min(batch)))
        })
}

fn check(partition: &Partition) -> Result<(), TestCaseError> {
    let mut seen = vec![0; partition.effective_batch()];
    let (mut largest, mut smallest, mut busiest, mut even) = (0, usize::MAX, 0, true);
    let most = partition.micro_ranges(0).len();
    for rank in 0..partition.ranks() {
        let micro = partition.micro_ranges(rank);
        even &= micro.len() == most;
        prop_assert!(micro.is_sorted_by(|a, b| a.end <= b.start), "micro-batches follow each other");
        for piece in &micro {
            prop_assert!(!piece.is_empty());
            seen[piece.clone()].iter_mut().for_each(|seen| *seen += 1);
        }
        let sizes = micro.iter().map(Range::len);
        prop_assert_eq!(sizes.clone().sum::<usize>(), partition.samples_of(rank));
        if !partition.is_spread() {
            let unit = partition.unit;
            prop_assert!(sizes.clone().all(|size| size <= partition.limit * unit));
            let (max, min) = (sizes.clone().max().unwrap_or(0), sizes.clone().min().unwrap_or(0));
            prop_assert!(max.div_ceil(unit) - min.div_ceil(unit) <= 1, "balanced");
        }
        largest = largest.max(sizes.clone().max().unwrap_or(0));
        smallest = smallest.min(sizes.min().unwrap_or(usize::MAX));
        busiest = busiest.max(micro.len());
    }
    prop_assert!(seen.iter().all(|&seen| seen == 1), "every sample exactly once");
    prop_assert_eq!(partition.micro_batch(), largest);
    let smallest = if smallest == usize::MAX { 0 } else { smallest };
    prop_assert_eq!(partition.smallest_micro_batch(), smallest);
    prop_assert_eq!(partition.grad_accum_steps(), busiest);
    prop_assert_eq!(partition.is_even(), even);
    // Only these kinds of steps can be uneven.
    let spare =
        partition.effective_batch() >= partition.ranks() && partition.limit > 1 && partition.unit == 1;
    prop_assert!(even || !spare, "{}", partition);
    Ok(())
}

proptest! {
    #[test]
    fn batches_of_parts_cover_all_samples_and_are_not_too_small(
        total in 0usize..400, parts in 1usize..9, batch in 1usize..40, least in 0usize..6,
    ) {
        let all: Vec<_> = (0..parts).flat_map(|index| batches_of(total, parts, index, batch, least)).collect();
        let mut end = 0;
        for one in &all {
            prop_assert_eq!((one.start, one.is_empty()), (end, false));
            end = one.end;
            prop_assert!(one.len() >= least || total < least);
            // A batch below twice the minimum may have a rest that no other cut takes.
            prop_assert!(one.len() <= batch.max(least) || one.len() < 2 * least);
        }
        prop_assert_eq!(end, total);
        if least < 2 {
            let shares: Vec<_> = (0..parts).map(|index| share(total, parts, index)).collect();
            let plain = shares.iter().map(|own| own.len().div_ceil(batch)).sum::<usize>();
            prop_assert_eq!(all.len(), plain);
        }
    }

    #[test]
    fn shares_cover_everything_once(total in 0usize..5000, parts in 1usize..300) {
        let shares: Vec<_> = (0..parts).map(|index| share(total, parts, index)).collect();
        let mut next = 0;
        for piece in &shares {
            prop_assert_eq!(piece.start, next);
            next = piece.end;
        }
        prop_assert_eq!(next, total);
        let sizes: Vec<_> = shares.iter().map(Range::len).collect();
        prop_assert!(sizes.is_sorted_by(|a, b| a >= b), "larger first");
        prop_assert!(sizes[0] - sizes[parts - 1] <= 1);
    }

    #[test]
    fn shares_do_not_overflow(total: usize, parts in 1usize.., pick: usize) {
        let piece = share(total, parts, pick % parts);
        prop_assert!(piece.start <= piece.end && piece.end <= total);
    }

    #[test]
    fn a_partition_is_exact(partition in partitions()) {
        check(&partition)?;
    }

    #[test]
    fn a_short_or_long_step_is_exact(partition in partitions(), samples in 0usize..4000) {
        let step = partition.for_samples(samples);
        prop_assert_eq!(step.effective_batch(), samples);
        check(&step)?;
    }

    #[test]
    fn a_group_is_taken_whole_or_by_all_ranks_at_once((partition, group) in grouped(), samples in 0usize..700) {
        for step in [partition, partition.for_samples(samples)] {
            check(&step)?;
            let mut members = std::collections::BTreeMap::<usize, Vec<(usize, usize)>>::new();
            for rank in 0..step.ranks() {
                for (index, piece) in step.micro_ranges(rank).into_iter().enumerate() {
                    piece.for_each(|at| members.entry(at / group).or_default().push((rank, index)));
                }
            }
            for places in members.values_mut() {
                places.dedup();
                let micro_step = places[0].1;
                prop_assert!(places.iter().all(|(_, index)| *index == micro_step), "one micro-step");
                prop_assert!(step.is_spread() || places.len() == 1, "one rank");
            }
        }
    }

    #[test]
    fn an_even_cut_multiplies_back(micro in 1usize..64, steps in 1usize..64, ranks in 1usize..64) {
        let partition = Partition::new(micro * steps * ranks, ranks, Some(micro)).unwrap();
        prop_assert_eq!((partition.micro_batch(), partition.smallest_micro_batch()), (micro, micro));
        prop_assert_eq!(partition.grad_accum_steps(), steps);
    }
}
