//! Exact batch arithmetic: how the samples of one optimizer step are cut into ranks and micro-batches.
//!
//! Invariant: over all ranks and micro-steps the pieces cover the step's samples exactly once, in order, also
//! where nothing divides. No micro-batch is larger than the limit, and every rank takes as many micro-steps as the busiest
//! one, as far as it has samples for them: operations in the forward pass that all ranks take part in then meet.

use std::fmt;
use std::ops::Range;

/// The effective batch of an even cut: `micro_batch x grad_accum_steps x ranks`; saturates at `usize::MAX`.
pub fn effective_batch(micro_batch: usize, grad_accum_steps: usize, ranks: usize) -> usize {
    micro_batch.saturating_mul(grad_accum_steps).saturating_mul(ranks)
}

/// Part `index` of `0..total` cut into `parts` contiguous parts whose sizes differ by at most one, larger first.
///
/// # Panics
/// If `index` is not below `parts`.
pub fn share(total: usize, parts: usize, index: usize) -> Range<usize> {
    assert!(index < parts, "share {index} of {parts} parts");
    let (base, larger) = (total / parts, total % parts);
    let start = index * base + index.min(larger);
    start..start + base + usize::from(index < larger)
}

/// Why a batch cannot be cut up.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
pub enum BatchError {
    /// The effective batch is 0.
    #[error("the effective batch is 0; it must be at least 1 sample")]
    ZeroEffectiveBatch,
    /// There are no ranks.
    #[error("the number of ranks is 0; at least 1 process must train")]
    ZeroRanks,
    /// The micro-batch limit is 0.
    #[error("the micro-batch is 0; it must be at least 1 sample")]
    ZeroMicroBatch,
    /// Some ranks would have nothing to do in any step.
    #[error(
        "an effective batch of {effective_batch} cannot be shared by {ranks} ranks: every rank needs at least one \
         sample; start at most {effective_batch} processes or raise train.effective_batch"
    )]
    FewerSamplesThanRanks {
        /// Samples of one optimizer step.
        effective_batch: usize,
        /// Ranks that should share them.
        ranks: usize,
    },
}

/// How one optimizer step's samples are cut up among ranks and micro-steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    samples: usize,
    ranks: usize,
    /// Largest micro-batch allowed; at least 1.
    limit: usize,
}

impl Partition {
    /// Cuts `effective_batch` samples among `ranks` into micro-batches of at most `micro_batch` samples (`None`:
    /// a rank's whole share).
    ///
    /// # Errors
    /// [`BatchError`] for a zero, or for fewer samples than ranks.
    pub fn new(effective_batch: usize, ranks: usize, micro_batch: Option<usize>) -> Result<Self, BatchError> {
        if effective_batch == 0 {
            return Err(BatchError::ZeroEffectiveBatch);
        }
        if ranks == 0 {
            return Err(BatchError::ZeroRanks);
        }
        if micro_batch == Some(0) {
            return Err(BatchError::ZeroMicroBatch);
        }
        if effective_batch < ranks {
            return Err(BatchError::FewerSamplesThanRanks {
                effective_batch,
                ranks,
            });
        }
        let limit = micro_batch.unwrap_or_else(|| effective_batch.div_ceil(ranks));
        Ok(Self {
            samples: effective_batch,
            ranks,
            limit,
        })
    }

    /// The same cutting for a step of `samples`, such as the short last step of an epoch. Ranks may get none.
    pub fn for_samples(&self, samples: usize) -> Self {
        Self { samples, ..*self }
    }

    /// Samples of the step.
    pub fn effective_batch(&self) -> usize {
        self.samples
    }

    /// Ranks that share the step.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The largest micro-batch in use; 0 for a step without samples.
    pub fn micro_batch(&self) -> usize {
        // Rank 0 has the largest share, and all ranks cut theirs into as many pieces.
        let largest = self.rank_range(0).len();
        largest.div_ceil(self.pieces(largest).max(1))
    }

    /// Micro-steps of the busiest rank, and of every rank that has so many samples; 0 for a step without samples.
    pub fn grad_accum_steps(&self) -> usize {
        self.rank_range(0).len().div_ceil(self.limit)
    }

    /// Whether all ranks take the same number of micro-steps. They do not where a rank has fewer samples than the busiest
    /// one has micro-steps: in a step of fewer samples than ranks, or with micro-batches of one sample that do not divide.
    pub fn is_even(&self) -> bool {
        self.pieces(self.rank_range(self.ranks - 1).len()) == self.grad_accum_steps()
    }

    /// The samples of `rank`, as positions within the step.
    ///
    /// # Panics
    /// If `rank` is not below [`Partition::ranks`].
    pub fn rank_range(&self, rank: usize) -> Range<usize> {
        share(self.samples, self.ranks, rank)
    }

    /// The micro-batches of `rank` in order: [`Partition::grad_accum_steps`] pieces of [`Partition::rank_range`], or one for
    /// each sample where there are fewer, whose sizes differ by at most one. Empty when the rank has no samples.
    ///
    /// # Panics
    /// If `rank` is not below [`Partition::ranks`].
    pub fn micro_ranges(&self, rank: usize) -> Vec<Range<usize>> {
        let range = self.rank_range(rank);
        let pieces = self.pieces(range.len());
        (0..pieces)
            .map(|index| {
                let piece = share(range.len(), pieces, index);
                range.start + piece.start..range.start + piece.end
            })
            .collect()
    }

    /// The smallest micro-batch of any rank that has samples; 0 for a step without samples.
    pub fn smallest_micro_batch(&self) -> usize {
        self.distinct_shares()
            .filter(|share| *share > 0)
            .map(|share| share / self.pieces(share))
            .min()
            .unwrap_or(0)
    }

    /// Into how many pieces a rank cuts its share.
    fn pieces(&self, share: usize) -> usize {
        share.min(self.grad_accum_steps())
    }

    /// The share sizes that occur: the first rank's and the last rank's.
    fn distinct_shares(&self) -> impl Iterator<Item = usize> + use<> {
        [self.rank_range(0).len(), self.rank_range(self.ranks - 1).len()].into_iter()
    }
}

/// At most this many per-rank sizes are written one by one.
const LISTED: usize = 8;

/// `128 = 2 ranks x 64 x 1 accumulation` where all pieces are equal, and otherwise what the pieces are.
impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = if self.ranks == 1 { "rank" } else { "ranks" };
        write!(f, "{} = {} {ranks} x ", self.samples, self.ranks)?;
        let (first, last) = (self.rank_range(0).len(), self.rank_range(self.ranks - 1).len());
        let (largest, smallest) = (self.micro_batch(), self.smallest_micro_batch());
        if first == last && largest == smallest {
            return write!(f, "{largest} x {} accumulation", self.grad_accum_steps());
        }
        if first == last {
            write!(f, "{first}")?;
        } else if self.ranks <= LISTED {
            let sizes: Vec<String> = (0..self.ranks)
                .map(|rank| self.rank_range(rank).len().to_string())
                .collect();
            write!(f, "({})", sizes.join(", "))?;
        } else {
            let larger = self.samples % self.ranks;
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
