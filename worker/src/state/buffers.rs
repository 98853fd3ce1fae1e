//! The model's buffers (running statistics, counters, flags) in flat tensors, one per dtype. They change once per
//! optimizer step, however the step is divided.
//!
//! Every micro-step starts from the buffers as they were before the step. For floating dtypes, the step's
//! change is the mean of the changes of all micro-batches of all ranks, weighted by samples. So running
//! averages move once towards the mean statistics, the same for two ranks as for one rank with two micro-steps.
//! Whole numbers and truth values are those of a rank's last micro-batch, and the largest over the ranks that
//! have samples: the same for counters and flags that each micro-batch changes alike.
//!
//! `model.state` gives buffers another join: see [`super::joined`].
//!
//! Changes are summed in float64. A buffer without a change keeps its bits: its change is -0, and x + -0 = x. If a
//! single micro-batch is the whole step, the layers' values are the new ones, and nothing is summed.

use std::collections::BTreeMap;
use std::ops::Range;

use dtrain_recipe::Join;
use tch::{Kind, TchError, Tensor};

use super::error::Result;
use super::joined::{self, Joined};
use super::layout::{Block, Group};
use super::table::Table;
use crate::collectives::{Collective, CollectiveError, Ranks, ReduceOp, Work};
use crate::out_of_memory::retry_on_oom;
use crate::tensors::{bytes, is_floating};

/// Values of 32 and 16 bits from this magnitude on are summed as they are, not as changes: a change would
/// round a small new value away. A constant still keeps its bits, as float64 is exact enough for that.
const LARGE: f64 = (1u64 << 40) as f64;

/// Elements whose change is computed at a time: 8 MiB of float64.
const CHUNK: i64 = 1 << 20;

/// The data of all blocks of statistics, and the copies that a step needs.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    flats: Vec<Flat>,
    /// Those that are not joined as the others.
    joined: Vec<Joined>,
    /// The samples of the step.
    samples: usize,
    /// Whether a single micro-batch is the whole step.
    is_single: bool,
}

#[derive(Debug)]
struct Flat {
    /// The block's data in the table, which the layers use.
    data: Tensor,
    /// The values before the current step.
    before: Tensor,
    /// For averaged buffers, the value from which changes are counted: `before`, or 0 where `before` reaches
    /// [`LARGE`] or, in float64, is not finite (the difference of two infinities is NaN). None for other buffers.
    base: Option<Tensor>,
    /// The values after a commit, in a dtype that ranks can reduce. Before the reduction: for averaged buffers,
    /// this rank's part of the sum, in float64; for others, [`smallest`] or the last micro-batch's values.
    new_values: Tensor,
}

/// Returns the dtype in which the ranks reduce values of `kind`.
fn reduced_kind(kind: Kind) -> Kind {
    match kind {
        Kind::Bool => Kind::Uint8,
        Kind::Int16 => Kind::Int,
        kind if is_floating(kind) => Kind::Double,
        kind => kind,
    }
}

/// Returns the smallest value of this dtype, with which a rank without samples changes no maximum.
fn smallest(kind: Kind) -> i64 {
    match kind {
        Kind::Int64 => i64::MIN,
        Kind::Int => i64::from(i32::MIN),
        Kind::Int8 => i64::from(i8::MIN),
        _ => 0,
    }
}

impl Flat {
    fn new(data: &Tensor) -> Result<Self, TchError> {
        // Complex numbers are pairs of real ones.
        let data =
            if data.is_complex() { data.f_view_as_real()?.f_view([-1])? } else { data.shallow_clone() };
        let before = data.f_zeros_like()?;
        Ok(Self {
            base: is_floating(data.kind()).then(|| before.f_zeros_like()).transpose()?,
            new_values: Tensor::f_zeros(before.size(), (reduced_kind(data.kind()), before.device()))?,
            before,
            data,
        })
    }

    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        [&self.data, &self.before, &self.new_values].into_iter().chain(&self.base)
    }
}

impl Buffers {
    /// Creates the buffers for the statistics in `table`, whose blocks never move.
    pub(crate) fn new(table: &Table, joins: &BTreeMap<String, Join>) -> Result<Self> {
        let is_buffer = |block: &Block| block.group == Group::Statistics;
        let joined = joined::of(joins, table.blocks().iter().filter(|block| is_buffer(block)))?;
        let flats = table.blocks().iter().zip(table.data()).filter(|(block, _)| is_buffer(block));
        let flats = flats.map(|(_, data)| Flat::new(data)).collect::<Result<_, TchError>>()?;
        Ok(Self { flats, joined, ..Self::default() })
    }

    /// Returns all bytes, including the copies for the current step.
    pub(crate) fn bytes(&self) -> u64 {
        let joined = self.joined.iter().flat_map(Joined::parts);
        self.flats.iter().flat_map(Flat::tensors).chain(joined).map(bytes).sum()
    }

    /// Moves `new_values` into the memory that `allocate` (elements, dtype) returns, as [`Table::share`] does.
    pub(crate) fn share(
        &mut self,
        mut allocate: impl FnMut(usize, Kind) -> Result<Option<Tensor>, CollectiveError>,
    ) -> Result<(), CollectiveError> {
        for flat in &mut self.flats {
            if let Some(memory) = allocate(flat.new_values.numel(), flat.new_values.kind())? {
                flat.new_values = memory;
            }
        }
        Ok(())
    }

    /// Starts a step of `samples`; `is_single`: one micro-batch of one rank. The sum over ranks includes the base once, from
    /// rank 0; all ranks have the same base.
    pub(crate) fn begin_step(
        &mut self,
        rank: usize,
        is_single: bool,
        samples: usize,
    ) -> Result<(), TchError> {
        (self.is_single, self.samples) = (is_single, samples);
        if !is_single {
            for joined in &mut self.joined {
                let data = &self.flats[joined.flat].data;
                tch::no_grad(|| joined.begin(samples, reduced_kind(data.kind()), data.device()))?;
            }
        }
        self.for_each(|flat| {
            flat.before.f_copy_(&flat.data)?;
            if is_single {
                return Ok(());
            }
            let Some(base) = &mut flat.base else {
                let none = smallest(flat.new_values.kind());
                return flat.new_values.f_fill_(none).map(drop);
            };
            base.f_copy_(&flat.data)?;
            // Retries: at this point a rank cannot report an allocation failure to the others.
            let large = retry_on_oom(base.device(), || match base.kind() {
                Kind::Double => base.f_isfinite()?.f_logical_not_(),
                _ => base.f_abs()?.f_lt(LARGE)?.f_logical_not_(),
            })?;
            let _ = base.f_masked_fill_(&large, 0.0)?;
            match rank {
                0 => flat.new_values.f_copy_(base),
                _ => flat.new_values.f_fill_(-0.0).map(drop),
            }
        })
    }

    /// Records the change that the micro-batch at these places of the step made, and sets the buffers back to their values
    /// before the step.
    pub(crate) fn record_change(&mut self, places: &Range<usize>) -> Result<()> {
        if self.is_single {
            return Ok(());
        }
        for joined in &mut self.joined {
            let Flat { data, before, .. } = &self.flats[joined.flat];
            tch::no_grad(|| joined.record(data, before, places, self.samples))?;
        }
        let share = places.len() as f64 / self.samples as f64;
        Ok(self.for_each(|flat| {
            match &flat.base {
                // In this order an unchanged value gives -0, which changes no sum.
                Some(base) => {
                    for begin in (0..base.size1()?).step_by(CHUNK as usize) {
                        let length = CHUNK.min(base.size1()? - begin);
                        let part = |flat: &Tensor| flat.f_narrow(0, begin, length);
                        let mut change = part(base)?.f_to_dtype(Kind::Double, false, true)?;
                        let change = change.f_sub_(&part(&flat.data)?)?.f_mul_scalar_(-share)?;
                        let _ = part(&flat.new_values)?.f_add_(&change)?;
                    }
                }
                None => flat.new_values.f_copy_(&flat.data)?,
            }
            flat.data.f_copy_(&flat.before)
        })?)
    }

    pub(crate) fn start_reduce(&self, ranks: &Ranks) -> Result<Box<dyn Work>> {
        let op = |flat: &Flat| if flat.base.is_some() { ReduceOp::Sum } else { ReduceOp::Max };
        let summed = if self.is_single { &[] } else { self.flats.as_slice() };
        let all = summed.iter().map(|flat| Collective::AllReduce(&flat.new_values, op(flat)));
        let joined = if self.is_single { &[] } else { self.joined.as_slice() };
        let all = all.chain(joined::sums(joined));
        Ok(ranks.start_all(&all.collect::<Vec<_>>())?)
    }

    /// Sets the buffers back to their values before the step, for a retry, or if the step is skipped.
    pub(crate) fn rewind(&mut self) -> Result<(), TchError> {
        self.for_each(|flat| flat.data.f_copy_(&flat.before))
    }

    /// Makes the reduced values the layers' buffers. A dropped step does not call it and changes nothing.
    pub(crate) fn commit(&mut self) -> Result<()> {
        if self.is_single {
            return Ok(());
        }
        self.for_each(|flat| flat.data.f_copy_(&flat.new_values))?;
        for joined in &mut self.joined {
            let Flat { data, before, .. } = &self.flats[joined.flat];
            tch::no_grad(|| retry_on_oom(data.device(), || joined.commit(data, before)))?;
        }
        Ok(())
    }

    fn for_each(&mut self, change: impl FnMut(&mut Flat) -> Result<(), TchError>) -> Result<(), TchError> {
        tch::no_grad(|| self.flats.iter_mut().try_for_each(change))
    }
}

#[cfg(test)]
mod tests;
