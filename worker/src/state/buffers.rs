//! The model's buffers (BatchNorm's running statistics and counters) in flat tensors, one per dtype. They
//! change once per optimizer step, however the step is divided.
//!
//! Every micro-step starts from the buffers as they were before the step. The step's change is the mean of
//! the changes of all micro-batches of all ranks, weighted by samples. So running averages move once towards
//! the mean statistics, the same for two ranks as for one rank with two micro-steps. Rank 0 writes them for
//! all ranks.
//!
//! Changes are summed in float64. A buffer without a change keeps its bits: its change is -0, and x + -0 = x.

use tch::{Kind, TchError, Tensor};

use super::average::is_floating;
use super::layout::Group;
use super::table::{Table, bytes};
use crate::collectives::{Collective, CollectiveError, Ranks, ReduceOp, Work};
use crate::out_of_memory::retry_on_oom;
use crate::train_error::Result;

/// Values of 32 and 16 bits from this magnitude on are summed as they are, not as changes: a change would
/// round a small new value away. A constant still keeps its bits, as float64 is exact enough for that.
const LARGE: f64 = (1u64 << 40) as f64;

/// Elements whose change is computed at a time: 8 MiB of float64.
const CHUNK: i64 = 1 << 20;

/// The data of all blocks of statistics, and the copies that a step needs.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    flats: Vec<Flat>,
}

#[derive(Debug)]
struct Flat {
    /// The block's data in the table, which the layers use.
    data: Tensor,
    /// The values before the current step.
    before: Tensor,
    /// For averaged buffers, the value from which changes are counted: `before`, or 0 where `before` reaches
    /// [`LARGE`] or, in float64, is not finite (the difference of two infinities is NaN). None for counters.
    base: Option<Tensor>,
    /// The values after a commit. For averaged buffers, first this rank's part of the sum, in float64.
    new_values: Tensor,
}

impl Flat {
    fn new(data: Tensor) -> Result<Self, TchError> {
        let averaged = is_floating(data.kind());
        let before = data.f_zeros_like()?;
        Ok(Self {
            base: averaged.then(|| before.f_zeros_like()).transpose()?,
            new_values: match averaged {
                true => Tensor::f_zeros(before.size(), (Kind::Double, before.device()))?,
                false => before.f_zeros_like()?,
            },
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
    pub(crate) fn new(table: &Table) -> Result<Self, TchError> {
        let blocks = table.blocks().iter().zip(table.data());
        let statistics = blocks.filter(|(block, _)| block.group == Group::Statistics);
        let flats = statistics.map(|(_, data)| Flat::new(data.shallow_clone()));
        let flats = flats.collect::<Result<_, _>>()?;
        Ok(Self { flats })
    }

    /// Returns all bytes, including the copies for the current step.
    pub(crate) fn bytes(&self) -> u64 {
        self.flats.iter().flat_map(Flat::tensors).map(bytes).sum()
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

    /// Starts a step. The sum over ranks includes the base once, from rank 0; all ranks have the same base.
    pub(crate) fn begin_step(&mut self, rank: usize) -> Result<(), TchError> {
        self.for_each(|flat| {
            flat.before.f_copy_(&flat.data)?;
            let Some(base) = &mut flat.base else { return flat.new_values.f_copy_(&flat.data) };
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

    /// Records the change that a micro-step with this share of the step's samples made, and sets the buffers
    /// back to their values before the step.
    pub(crate) fn record_change(&mut self, share: f64) -> Result<(), TchError> {
        self.for_each(|flat| {
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
        })
    }

    pub(crate) fn start_reduce(&self, ranks: &Ranks) -> Result<Box<dyn Work>> {
        let op = |flat: &Flat| if flat.base.is_some() { ReduceOp::Sum } else { ReduceOp::Max };
        let all = self.flats.iter().map(|flat| Collective::AllReduce(&flat.new_values, op(flat)));
        Ok(ranks.start_all(&all.collect::<Vec<_>>())?)
    }

    /// Sets the buffers back to their values before the step, for a retry.
    pub(crate) fn rewind(&mut self) -> Result<(), TchError> {
        self.for_each(|flat| flat.data.f_copy_(&flat.before))
    }

    /// Makes the reduced values the layers' buffers. A dropped step does not call it and changes nothing.
    pub(crate) fn commit(&mut self) -> Result<(), TchError> {
        self.for_each(|flat| flat.data.f_copy_(&flat.new_values))
    }

    fn for_each(&mut self, change: impl FnMut(&mut Flat) -> Result<(), TchError>) -> Result<(), TchError> {
        tch::no_grad(|| self.flats.iter_mut().try_for_each(change))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::layout::LayoutOptions;
    use super::super::table::Parameter;
    use super::*;

    /// Returns buffers for statistics with these names.
    fn of(statistics: &[(&'static str, &Tensor)]) -> Buffers {
        let group = Group::Statistics;
        let parameter = |&(name, tensor): &(&'static str, _)| Parameter { name, tensor, group };
        let parameters: Vec<_> = statistics.iter().map(parameter).collect();
        Buffers::new(&Table::new(&parameters, LayoutOptions::default(), 0).unwrap()).unwrap()
    }

    fn model() -> (Tensor, Tensor, Buffers) {
        let mean = Tensor::from_slice(&[1f32, 2.0]);
        let count = Tensor::from(5i64);
        let buffers = of(&[("mean", &mean), ("count", &count)]);
        (mean, count, buffers)
    }

    /// Updates the buffers as a BatchNorm does in a micro-step.
    fn micro_step(mean: &Tensor, count: &Tensor, statistic: f64) {
        let _ = mean.shallow_clone().g_mul_scalar_(0.9).g_add_scalar_(0.1 * statistic);
        let _ = count.shallow_clone().g_add_scalar_(1);
    }

    #[test]
    fn buffers_move_once_towards_the_mean_of_the_micro_steps() {
        let (mean, count, mut buffers) = model();
        buffers.begin_step(0).unwrap();
        for (statistic, share) in [(10.0, 0.75), (30.0, 0.25)] {
            micro_step(&mean, &count, statistic);
            buffers.record_change(share).unwrap();
            assert_eq!((mean.double_value(&[0]), count.int64_value(&[])), (1.0, 5), "as the step began");
        }
        buffers.start_reduce(&Ranks::single()).unwrap().wait().unwrap();
        buffers.commit().unwrap();
        assert!((mean.double_value(&[0]) - (0.9 + 0.1 * 15.0)).abs() < 1e-6);
        assert_eq!(count.int64_value(&[]), 6);
    }

    #[test]
    fn rewinding_restores_the_buffers() {
        let (mean, count, mut buffers) = model();
        buffers.begin_step(0).unwrap();
        micro_step(&mean, &count, 10.0);
        buffers.record_change(0.5).unwrap();
        micro_step(&mean, &count, 30.0);
        buffers.rewind().unwrap();
        assert_eq!((mean.double_value(&[0]), count.int64_value(&[])), (1.0, 5));
        buffers.begin_step(0).unwrap();
        micro_step(&mean, &count, 10.0);
        buffers.record_change(1.0).unwrap();
        buffers.commit().unwrap();
        assert!((mean.double_value(&[0]) - (0.9 + 0.1 * 10.0)).abs() < 1e-6);
        assert_eq!(count.int64_value(&[]), 6);
    }

    #[test]
    fn a_dropped_step_changes_no_buffer() {
        let (mean, count, mut buffers) = model();
        buffers.begin_step(0).unwrap();
        micro_step(&mean, &count, f64::NAN);
        buffers.record_change(1.0).unwrap();
        // The next step begins without a commit.
        buffers.begin_step(0).unwrap();
        assert_eq!((mean.double_value(&[1]), count.int64_value(&[])), (2.0, 5));
        // A rank without samples in a step changes nothing.
        buffers.commit().unwrap();
        assert_eq!((mean.double_value(&[1]), count.int64_value(&[])), (2.0, 5));
    }

    /// Returns values that reveal rounding and the loss of an infinity or a sign of zero; always the same.
    fn constants() -> Vec<f32> {
        let mut values = vec![0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE / 4.0, f32::MAX];
        values.extend(
            (1..500u32).map(|at| (f64::from(at) * 0.37).sin() as f32 * 10f32.powi(at as i32 % 30 - 15)),
        );
        values
    }

    /// Returns shares that add up to 1, except for rounding.
    fn splits() -> Vec<Vec<f64>> {
        (1..=24usize)
            .flat_map(|count| {
                let uneven: Vec<f64> = (1..=count).map(|at| (at * at % 7 + 1) as f64).collect();
                let all: f64 = uneven.iter().sum();
                [vec![1.0 / count as f64; count], uneven.iter().map(|share| share / all).collect()]
            })
            .collect()
    }

    fn bits(tensor: &Tensor) -> Vec<u32> {
        let values = Vec::<f32>::try_from(tensor).unwrap();
        values.into_iter().map(f32::to_bits).collect()
    }

    #[test]
    fn unchanged_buffers_keep_their_bits_in_every_split() {
        let constant = Tensor::from_slice(&constants());
        let whole = Tensor::from_slice(&[i64::MAX, -3, 0]);
        let wide = Tensor::from_slice(&[0.1f64, -1e300, 1.0 / 3.0]);
        let mut buffers = of(&[("constant", &constant), ("whole", &whole), ("wide", &wide)]);
        for split in splits() {
            buffers.begin_step(0).unwrap();
            for share in split {
                buffers.record_change(share).unwrap();
            }
            buffers.commit().unwrap();
        }
        assert_eq!(bits(&constant), constants().into_iter().map(f32::to_bits).collect::<Vec<_>>());
        assert_eq!(Vec::<i64>::try_from(&whole).unwrap(), [i64::MAX, -3, 0]);
        assert_eq!(Vec::<f64>::try_from(&wide).unwrap(), [0.1, -1e300, 1.0 / 3.0]);
    }

    #[test]
    fn one_micro_batch_gives_exactly_the_layers_values() {
        let (mean, count, mut buffers) = model();
        let (expected, _) = (mean.copy(), buffers.begin_step(0).unwrap());
        for (mean, count) in [(&mean, &count), (&expected, &Tensor::from(0i64))] {
            micro_step(mean, count, 0.7);
        }
        buffers.record_change(1.0).unwrap();
        buffers.commit().unwrap();
        assert_eq!(bits(&mean), bits(&expected));
    }

    #[test]
    fn buffers_of_more_than_a_chunk_change_as_a_whole() {
        let table = Tensor::arange(CHUNK + 17, (Kind::Float, tch::Device::Cpu));
        let expected = &table * 3.0;
        let mut buffers = of(&[("table", &table)]);
        buffers.begin_step(0).unwrap();
        let _ = table.shallow_clone().g_mul_scalar_(3.0);
        buffers.record_change(1.0).unwrap();
        buffers.commit().unwrap();
        assert!(table.equal(&expected));
    }

    #[test]
    fn buffers_change_by_the_mean_over_ranks() {
        for split in splits() {
            let mut sums = Vec::new();
            for rank in 0..2 {
                let (mean, count, mut buffers) = model();
                buffers.begin_step(rank).unwrap();
                for (at, share) in split.iter().enumerate().filter(|(at, _)| at % 2 == rank) {
                    micro_step(&mean, &count, at as f64);
                    buffers.record_change(*share).unwrap();
                }
                sums.push(buffers.flats[0].new_values.copy());
            }
            let together = (&sums[0] + &sums[1]).to_kind(Kind::Float);
            let statistic: f64 = split.iter().enumerate().map(|(at, share)| at as f64 * share).sum();
            let expected = 0.9 + 0.1 * statistic;
            assert!((together.double_value(&[0]) - expected).abs() < 1e-6 * expected, "{split:?}");
        }
    }

    #[test]
    fn large_initial_values_are_replaced_exactly() {
        for large in [f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 1e13] {
            check_replaced(large);
        }
    }

    fn check_replaced(large: f32) {
        let least = Tensor::from_slice(&[large]);
        let mut buffers = of(&[("least", &least)]);
        buffers.begin_step(0).unwrap();
        for seen in [2.0, 4.0] {
            let _ = least.shallow_clone().fill_(seen);
            buffers.record_change(0.5).unwrap();
        }
        buffers.commit().unwrap();
        assert_eq!(least.double_value(&[0]), 3.0);
    }
}
