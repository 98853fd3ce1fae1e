//! Repeated measurements, in turn.

use std::collections::BTreeMap;

use anyhow::Result;

/// Runs every case once per round: a slow phase of the machine affects all cases. Ends at the first error.
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
