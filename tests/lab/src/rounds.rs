//! Repeated measurements, in turn.

use std::collections::BTreeMap;

use anyhow::Result;

/// Runs every case once in each round, so that what slows the machine for a while slows all of them. The first error ends it.
pub(crate) fn interleave<Case: Copy + Ord, Found>(
    cases: &[Case],
    rounds: usize,
    mut run: impl FnMut(Case, usize) -> Result<Found>,
) -> Result<BTreeMap<Case, Vec<Found>>> {
    let mut found: BTreeMap<Case, Vec<Found>> = BTreeMap::new();
    for round in 0..rounds {
        for &case in cases {
            found.entry(case).or_default().push(run(case, round)?);
        }
    }
    Ok(found)
}
