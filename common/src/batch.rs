//! Exact batch arithmetic: divides the samples of one optimizer step into ranks and micro-batches.
//!
//! Invariant: over all ranks and micro-steps the pieces cover the step's samples exactly once, in order, for
//! any batch size. No micro-batch is larger than the limit. Every rank takes as many micro-steps as the
//! busiest rank if it has enough samples: collectives in the forward pass then match.

use std::fmt;
use std::ops::Range;

/// Returns part `index` of `0..total` in `parts` parts, whose sizes differ by at most 1, larger first.
pub fn share(total: usize, parts: usize, index: usize) -> Range<usize> {
    assert!(index < parts, "share {index} of {parts} parts");
    let (base, larger) = (total / parts, total % parts);
    let start = index * base + index.min(larger);
    start..start + base + usize::from(index < larger)
}

/// Divides `0..total` among `parts`. Returns the batches of part `index`: of `batch` each, the last smaller, but of at
/// least `least` if `total` has as many. Parts may get none. Where no cut avoids a smaller rest, the last batch takes it
/// on top.
pub fn batches_of(total: usize, parts: usize, index: usize, batch: usize, least: usize) -> Vec<Range<usize>> {
    let least = least.max(1);
    let used = (total / least).clamp(1, parts);
    if index >= used {
        return Vec::new();
    }
    let (own, batch) = (share(total, used, index), batch.max(least));
    let all = own.clone().step_by(batch).map(|first| first..own.end.min(first + batch));
    let mut all: Vec<Range<usize>> = all.collect();
    if let [.., before, last] = all.as_mut_slice()
        && last.len() < least
    {
        let border = last.end - least;
        if border >= before.start + least {
            (before.end, last.start) = (border, border);
        } else {
            before.end = last.end;
            all.pop();
        }
    }
    all
}

/// Error for a batch that cannot be divided.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
pub enum BatchError {
    #[error("the {0} is 0; it must be at least 1")]
    Zero(&'static str),
    #[error(
        "an effective batch of {effective_batch} cannot be shared by {ranks} ranks: every rank needs at least one \
         sample; start at most {effective_batch} processes or raise train.effective_batch"
    )]
    FewerSamplesThanRanks { effective_batch: usize, ranks: usize },
    #[error(
        "a group of {group} samples is normalised together, and {ranks} ranks take micro-batches of at most {micro_batch}; set \
         memory.micro_batch to {least} or more, or model.batchnorm to \"group:{most}\" or less"
    )]
    LargeGroup { group: usize, ranks: usize, micro_batch: usize, least: usize, most: usize },
}

/// Division of one optimizer step's samples into ranks and micro-batches.
///
/// Samples may be divided in groups of a fixed size; the last group of a step may be smaller. A micro-batch
/// then consists of whole groups. If a rank cannot take a whole group at once, the group is spread: all ranks
/// take a part of each group in the same micro-step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    samples: usize,
    ranks: usize,
    /// Most units of a micro-batch; at least 1.
    limit: usize,
    /// Samples of a unit, which is never divided between micro-batches: 1, or the size of a group.
    unit: usize,
    is_grouped: bool,
    /// Whether every rank takes its part of each unit.
    is_spread: bool,
}

impl Partition {
    /// Divides a step among `ranks` into micro-batches of at most `micro_batch` samples (`None`: no limit).
    pub fn new(effective_batch: usize, ranks: usize, micro_batch: Option<usize>) -> Result<Self, BatchError> {
        let counts = [
            ("effective batch", effective_batch),
            ("number of ranks", ranks),
            ("micro-batch", micro_batch.unwrap_or(1)),
        ];
        if let Some((what, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(BatchError::Zero(what));
        }
        if effective_batch < ranks {
            return Err(BatchError::FewerSamplesThanRanks { effective_batch, ranks });
        }
        let limit = micro_batch.unwrap_or_else(|| effective_batch.div_ceil(ranks));
        Ok(Self { samples: effective_batch, ranks, limit, unit: 1, is_grouped: false, is_spread: false })
    }

    /// As [`Partition::new`], in groups of `group` samples. Ranks take whole groups if there are enough and
    /// one fits into a micro-batch; otherwise each group is spread over all ranks, if its parts fit.
    pub fn in_groups(
        effective_batch: usize,
        ranks: usize,
        micro_batch: Option<usize>,
        group: Option<usize>,
    ) -> Result<Self, BatchError> {
        let cut = Self::new(effective_batch, ranks, micro_batch)?;
        let Some(group) = group.map(|group| group.clamp(1, effective_batch)) else { return Ok(cut) };
        let room = micro_batch.unwrap_or(effective_batch);
        let cut = Self { unit: group, is_grouped: true, ..cut };
        if effective_batch.div_ceil(group) >= ranks && room >= group {
            return Ok(Self { limit: room / group, ..cut });
        }
        let part = group.div_ceil(ranks);
        if group < ranks || room < part {
            return Err(BatchError::LargeGroup {
                group,
                ranks,
                micro_batch: room,
                least: part,
                most: room.saturating_mul(ranks),
            });
        }
        Ok(Self { limit: 1, is_spread: true, ..cut })
    }

    /// Returns the same division for `samples`, such as the last step of an epoch. Ranks may get none.
    pub fn for_samples(&self, samples: usize) -> Self {
        Self { samples, ..*self }
    }

    /// Returns the same step in micro-batches of at most `micro_batch` samples.
    pub fn limited(&self, micro_batch: usize) -> Result<Self, BatchError> {
        let group = self.is_grouped.then_some(self.unit);
        Self::in_groups(self.samples, self.ranks, Some(micro_batch), group)
    }

    /// Returns the samples of a group if a micro-batch consists of whole groups.
    pub fn group(&self) -> Option<usize> {
        (self.is_grouped && !self.is_spread).then_some(self.unit)
    }

    /// Returns the samples of the step.
    pub fn effective_batch(&self) -> usize {
        self.samples
    }

    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Returns whether all ranks take a part of each group in the same micro-step.
    pub fn is_spread(&self) -> bool {
        self.is_spread
    }

    /// Returns the largest micro-batch in use; 0 for a step without samples.
    pub fn micro_batch(&self) -> usize {
        if self.is_spread {
            return self.samples.min(self.unit).div_ceil(self.ranks);
        }
        // Rank 0 has the largest share, and all ranks divide their shares into as many pieces.
        let largest = self.units_of(0).len();
        let units = largest.div_ceil(self.pieces(largest).max(1));
        (units * self.unit).min(self.samples)
    }

    /// Returns the micro-steps of the busiest rank; 0 for a step without samples.
    pub fn grad_accum_steps(&self) -> usize {
        if self.is_spread { self.units() } else { self.units_of(0).len().div_ceil(self.limit) }
    }

    /// Returns whether all ranks take equally many micro-steps.
    pub fn is_even(&self) -> bool {
        self.micro_ranges(self.ranks - 1).len() == self.grad_accum_steps()
    }

    /// Returns the number of samples of `rank`. Panics if `rank` is not below [`Partition::ranks`].
    pub fn samples_of(&self, rank: usize) -> usize {
        match self.is_spread {
            true => self.micro_ranges(rank).iter().map(Range::len).sum(),
            false => self.positions(self.units_of(rank)).len(),
        }
    }

    /// Returns the micro-batches of `rank` in order, as positions within the step:
    /// [`Partition::grad_accum_steps`] pieces, or fewer if the rank has fewer units. Empty for a rank without
    /// samples.
    pub fn micro_ranges(&self, rank: usize) -> Vec<Range<usize>> {
        if self.is_spread {
            let part = |unit: usize| {
                let whole = self.positions(unit..unit + 1);
                let part = share(whole.len(), self.ranks, rank);
                whole.start + part.start..whole.start + part.end
            };
            return (0..self.units()).map(part).filter(|part| !part.is_empty()).collect();
        }
        let units = self.units_of(rank);
        let pieces = self.pieces(units.len());
        (0..pieces)
            .map(|index| {
                let piece = share(units.len(), pieces, index);
                self.positions(units.start + piece.start..units.start + piece.end)
            })
            .collect()
    }

    /// Returns the smallest micro-batch of any rank that has samples; 0 for a step without samples.
    pub fn smallest_micro_batch(&self) -> usize {
        // The last rank with samples has the smallest share, and the step's last unit.
        let smallest = |rank| self.micro_ranges(rank).iter().map(Range::len).min();
        [0, self.units().clamp(1, self.ranks) - 1, self.ranks - 1]
            .into_iter()
            .filter_map(smallest)
            .min()
            .unwrap_or(0)
    }

    fn units(&self) -> usize {
        self.samples.div_ceil(self.unit)
    }

    fn units_of(&self, rank: usize) -> Range<usize> {
        share(self.units(), self.ranks, rank)
    }

    /// Returns the samples of units, as positions within the step.
    fn positions(&self, units: Range<usize>) -> Range<usize> {
        let at = |unit: usize| (unit * self.unit).min(self.samples);
        at(units.start)..at(units.end)
    }

    /// Returns the number of pieces into which a rank divides its share of `units`.
    fn pieces(&self, units: usize) -> usize {
        units.min(self.grad_accum_steps())
    }
}

/// Most ranks whose sizes are written one by one.
const LISTED: usize = 8;

/// Writes `128 = 2 ranks x 64 x 1 accumulation` for equal pieces, else the sizes of the pieces.
impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = if self.ranks == 1 { "rank" } else { "ranks" };
        write!(f, "{} = {} {ranks} x ", self.samples, self.ranks)?;
        let (first, last) = (self.samples_of(0), self.samples_of(self.ranks - 1));
        let (largest, smallest) = (self.micro_batch(), self.smallest_micro_batch());
        if first == last && largest == smallest {
            return write!(f, "{largest} x {} accumulation", self.grad_accum_steps());
        }
        if first == last {
            write!(f, "{first}")?;
        } else if self.ranks <= LISTED {
            let sizes: Vec<String> = (0..self.ranks).map(|rank| self.samples_of(rank).to_string()).collect();
            write!(f, "({})", sizes.join(", "))?;
        } else {
            let larger = (0..self.ranks).filter(|&rank| self.samples_of(rank) == first).count();
            write!(f, "({larger} of {first}, {} of {last})", self.ranks - larger)?;
        }
        match self.grad_accum_steps() {
            0 | 1 => Ok(()),
            steps if largest == smallest => write!(f, " in up to {steps} micro-batches of {largest}"),
            steps => write!(f, " in up to {steps} micro-batches of {smallest} to {largest}"),
        }
    }
}

#[cfg(test)]
mod tests;
