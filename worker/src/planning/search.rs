//! Finds the largest size that fits with few tries: memory is nearly linear in the size.

/// Returns the position in `sizes`, which ascend, of a size that fits `budget`, while the next larger size,
/// if any, does not. `peak` returns the bytes of a size, or `None` if they are unknown and too much.
///
/// Tries the largest size, the smallest, then interpolates between the nearest two. After two tries in a row
/// that leave more than half of the sizes, tries the middle: at most three times the tries of a bisection.
pub(crate) fn find_largest<E>(
    sizes: &[usize],
    budget: u64,
    mut peak: impl FnMut(usize) -> Result<Option<u64>, E>,
) -> Result<Option<usize>, E> {
    let fits = |bytes: Option<u64>| bytes.is_some_and(|bytes| bytes <= budget);
    let (mut below, Some(mut above)) = (0, sizes.len().checked_sub(1)) else { return Ok(None) };
    let mut peak_above = peak(sizes[above])?;
    if fits(peak_above) {
        return Ok(Some(above));
    }
    if above == 0 {
        return Ok(None);
    }
    let mut peak_below = peak(sizes[below])?;
    if !fits(peak_below) {
        return Ok(None);
    }
    // Interpolations in a row that left more than half of the sizes.
    let mut misses = 0;
    while above - below > 1 {
        let guess = match (peak_below, peak_above) {
            (Some(low), Some(high)) if misses < 2 && low < high => {
                let part = (budget - low) as f64 / (high - low) as f64;
                let size = sizes[below] as f64 + part * (sizes[above] - sizes[below]) as f64;
                sizes.partition_point(|candidate| *candidate as f64 <= size).saturating_sub(1)
            }
            _ => below + (above - below) / 2,
        };
        let guess = guess.clamp(below + 1, above - 1);
        let before = above - below;
        let bytes = peak(sizes[guess])?;
        if fits(bytes) {
            (below, peak_below) = (guess, bytes);
        } else {
            (above, peak_above) = (guess, bytes);
        }
        let halved = (above - below) * 2 <= before;
        misses = if halved { 0 } else { misses + 1 };
    }
    Ok(Some(below))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;
    use std::convert::Infallible;

    /// Returns the answer and the number of tries.
    fn search(sizes: &[usize], budget: u64, peak: impl Fn(usize) -> Option<u64>) -> (Option<usize>, usize) {
        let mut tries = 0;
        let found = find_largest(sizes, budget, |size| {
            tries += 1;
            Ok::<_, Infallible>(peak(size))
        });
        (found.unwrap(), tries)
    }

    #[test]
    fn a_straight_line_takes_few_tries() {
        let sizes: Vec<_> = (1..=1000).collect();
        let (found, tries) = search(&sizes, 5_550, |size| Some(500 + 10 * size as u64));
        assert_eq!(found.map(|position| sizes[position]), Some(505));
        assert!(tries <= 5, "{tries}");
    }

    #[test]
    fn no_size_or_all_sizes_may_fit() {
        assert_eq!(search(&[], 10, |_| Some(1)).0, None);
        assert_eq!(search(&[3], 10, |_| Some(11)), (None, 1));
        assert_eq!(search(&[1, 2, 3], 10, |_| Some(10)), (Some(2), 1));
        assert_eq!(search(&[1, 2, 3], 10, |_| Some(11)), (None, 2));
        assert_eq!(search(&[1, 2, 3], 10, |size| (size < 3).then_some(1)).0, Some(1));
    }

    proptest! {
        #[test]
        fn growing_memory_gives_the_largest_size(
            steps in prop::collection::vec((1usize..9, 0u64..1000), 1..60),
            budget in 0u64..40_000,
            dead in any::<bool>(),
        ) {
            let sizes: Vec<usize> = steps.iter().scan(0, |size, (step, _)| { *size += step; Some(*size) }).collect();
            let peaks: Vec<u64> = steps.iter().scan(0, |peak, (_, step)| { *peak += step; Some(*peak) }).collect();
            let peak = |size| {
                let bytes = peaks[sizes.iter().position(|one| *one == size).unwrap()];
                // A process that died reports no peak.
                (!dead || bytes <= budget).then_some(bytes)
            };
            let (found, tries) = search(&sizes, budget, peak);
            prop_assert_eq!(found, peaks.iter().rposition(|bytes| *bytes <= budget));
            prop_assert!(tries <= 2 + 3 * (sizes.len().ilog2() as usize + 1), "{} tries", tries);
        }

        #[test]
        fn any_memory_gives_a_fitting_size(peaks in prop::collection::vec(0u64..100, 1..40), budget in 0u64..100) {
            let sizes: Vec<usize> = (1..=peaks.len()).collect();
            if let Some(found) = search(&sizes, budget, |size| Some(peaks[size - 1])).0 {
                prop_assert!(peaks[found] <= budget);
                prop_assert!(found + 1 == peaks.len() || peaks[found + 1] > budget);
            }
        }
    }
}
