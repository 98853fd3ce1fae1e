//! The model's buffers (BatchNorm's running statistics and counters) in flat tensors, one per dtype, moved once per
//! optimizer step, whatever its partition.
//!
//! Every micro-step finds the buffers as the step began and leaves its own change of them; the step's change is the mean of
//! these over all micro-batches of all ranks, weighted by their samples. For running averages that is one move towards the
//! mean statistics of the step's micro-batches, so two ranks, or one rank with two micro-steps, end with the same buffers;
//! and since every rank holds the same state between two steps, a checkpoint of rank 0 is one of all.
//!
//! Changes are added up in float64. A buffer that no micro-step changes keeps its bits, whatever the shares: its change is -0,
//! which added to any number is that number.

use tch::{Kind, TchError, Tensor};

use super::average::is_floating;
use super::layout::Group;
use super::table::{Table, bytes};
use crate::collectives::{Collective, CollectiveError, Ranks, ReduceOp, Work};
use crate::out_of_memory::patiently;
use crate::train_error::Result;

/// From here on values of 32 and 16 bits are counted from 0: a change that is counted from them would swallow a small new value, and
/// without one float64 gives a constant back to the bit.
const FAR: f64 = (1u64 << 40) as f64;

/// Elements whose change is computed at a time, as float64 takes 8 bytes for each: 8 MiB.
const CHUNK: i64 = 1 << 20;

/// What a step needs of the blocks of statistics beside their data.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    flats: Vec<Flat>,
}

#[derive(Debug)]
struct Flat {
    /// What the layers see: the block's data in the table.
    data: Tensor,
    /// The values as the step under way began.
    before: Tensor,
    /// What changes are counted from, where the buffers are averaged: `before`, with 0 where that is [`FAR`] or, in float64, not finite, as
    /// a constant mask of infinities would otherwise change by their difference, which is no number. Of counters the greatest counts.
    base: Option<Tensor>,
    /// What the buffers will be when the step commits. On the way there, where they are averaged, the sum over the ranks is.
    next: Tensor,
}

impl Flat {
    fn new(data: Tensor) -> Result<Self, TchError> {
        let averaged = is_floating(data.kind());
        let before = data.f_zeros_like()?;
        Ok(Self {
            base: averaged.then(|| before.f_zeros_like()).transpose()?,
            next: match averaged {
                true => Tensor::f_zeros(before.size(), (Kind::Double, before.device()))?,
                false => before.f_zeros_like()?,
            },
            before,
            data,
        })
    }

    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        [&self.data, &self.before, &self.next].into_iter().chain(&self.base)
    }
}

impl Buffers {
    /// For the statistics in `table`, whose blocks stay where they are in every order and phase.
    pub(crate) fn new(table: &Table) -> Result<Self, TchError> {
        let blocks = table.blocks().iter().zip(table.data());
        let statistics = blocks.filter(|(block, _)| block.group == Group::Statistics);
        let flats = statistics.map(|(_, data)| Flat::new(data.shallow_clone()));
        let flats = flats.collect::<Result<_, _>>()?;
        Ok(Self { flats })
    }

    /// All bytes, with those of the copies that belong to the step under way.
    pub(crate) fn bytes(&self) -> u64 {
        self.flats.iter().flat_map(Flat::tensors).map(bytes).sum()
    }

    /// Moves the updates into memory that `allocate` (elements, dtype) gives, as [`Table::share`] does.
    pub(crate) fn share(
        &mut self,
        mut allocate: impl FnMut(usize, Kind) -> Result<Option<Tensor>, CollectiveError>,
    ) -> Result<(), CollectiveError> {
        for flat in &mut self.flats {
            if let Some(memory) = allocate(flat.next.numel(), flat.next.kind())? {
                flat.next = memory;
            }
        }
        Ok(())
    }

    /// A step begins on this rank. The sum over the ranks counts from what rank 0 has, which is what all have.
    pub(crate) fn begin(&mut self, rank: usize) -> Result<(), TchError> {
        self.each(|flat| {
            flat.before.f_copy_(&flat.data)?;
            let Some(base) = &mut flat.base else { return flat.next.f_copy_(&flat.data) };
            base.f_copy_(&flat.data)?;
            // Nobody can be told of a lack of memory yet.
            let far = patiently(base.device(), || match base.kind() {
                Kind::Double => base.f_isfinite()?.f_logical_not_(),
                _ => base.f_abs()?.f_lt(FAR)?.f_logical_not_(),
            })?;
            let _ = base.f_masked_fill_(&far, 0.0)?;
            match rank {
                0 => flat.next.f_copy_(base),
                _ => flat.next.f_fill_(-0.0).map(drop),
            }
        })
    }

    /// A micro-step with this share of the step's samples has moved the buffers: its change is taken, and the next
    /// micro-step finds them as the step began.
    pub(crate) fn take(&mut self, share: f64) -> Result<(), TchError> {
        self.each(|flat| {
            match &flat.base {
                // Backwards, so that no change is -0.
                Some(base) => {
                    for begin in (0..base.size1()?).step_by(CHUNK as usize) {
                        let length = CHUNK.min(base.size1()? - begin);
                        let part = |flat: &Tensor| flat.f_narrow(0, begin, length);
                        let mut change = part(base)?.f_to_dtype(Kind::Double, false, true)?;
                        let change = change.f_sub_(&part(&flat.data)?)?.f_mul_scalar_(-share)?;
                        let _ = part(&flat.next)?.f_add_(&change)?;
                    }
                }
                None => flat.next.f_copy_(&flat.data)?,
            }
            flat.data.f_copy_(&flat.before)
        })
    }

    pub(crate) fn start(&self, ranks: &Ranks) -> Result<Box<dyn Work>> {
        let op = |flat: &Flat| if flat.base.is_some() { ReduceOp::Sum } else { ReduceOp::Max };
        let all = self.flats.iter().map(|flat| Collective::AllReduce(&flat.next, op(flat)));
        Ok(ranks.start_all(&all.collect::<Vec<_>>())?)
    }

    /// The step is to be taken again: the layers see what they saw when it began.
    pub(crate) fn rewind(&mut self) -> Result<(), TchError> {
        self.each(|flat| flat.data.f_copy_(&flat.before))
    }

    /// The step commits: the reduced update becomes what the layers see. A step that is dropped does not call it and leaves
    /// no trace.
    pub(crate) fn commit(&mut self) -> Result<(), TchError> {
        self.each(|flat| flat.data.f_copy_(&flat.next))
    }

    fn each(&mut self, change: impl FnMut(&mut Flat) -> Result<(), TchError>) -> Result<(), TchError> {
        tch::no_grad(|| self.flats.iter_mut().try_for_each(change))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::layout::LayoutOptions;
    use super::super::table::Parameter;
    use super::*;

    /// Statistics of these names.
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

    /// What a BatchNorm does in a micro-step.
    fn micro_step(mean: &Tensor, count: &Tensor, statistic: f64) {
        let _ = mean.shallow_clone().g_mul_scalar_(0.9).g_add_scalar_(0.1 * statistic);
        let _ = count.shallow_clone().g_add_scalar_(1);
    }

    #[test]
    fn a_step_moves_once_towards_the_mean_of_its_micro_steps() {
        let (mean, count, mut buffers) = model();
        buffers.begin(0).unwrap();
        for (statistic, share) in [(10.0, 0.75), (30.0, 0.25)] {
            micro_step(&mean, &count, statistic);
            buffers.take(share).unwrap();
            assert_eq!((mean.double_value(&[0]), count.int64_value(&[])), (1.0, 5), "as the step began");
        }
        buffers.start(&Ranks::single()).unwrap().wait().unwrap();
        buffers.commit().unwrap();
        assert!((mean.double_value(&[0]) - (0.9 + 0.1 * 15.0)).abs() < 1e-6);
        assert_eq!(count.int64_value(&[]), 6);
    }

    #[test]
    fn a_step_that_ends_in_the_middle_is_taken_back() {
        let (mean, count, mut buffers) = model();
        buffers.begin(0).unwrap();
        micro_step(&mean, &count, 10.0);
        buffers.take(0.5).unwrap();
        micro_step(&mean, &count, 30.0);
        buffers.rewind().unwrap();
        assert_eq!((mean.double_value(&[0]), count.int64_value(&[])), (1.0, 5));
        buffers.begin(0).unwrap();
        micro_step(&mean, &count, 10.0);
        buffers.take(1.0).unwrap();
        buffers.commit().unwrap();
        assert!((mean.double_value(&[0]) - (0.9 + 0.1 * 10.0)).abs() < 1e-6);
        assert_eq!(count.int64_value(&[]), 6);
    }

    #[test]
    fn a_dropped_step_leaves_no_trace() {
        let (mean, count, mut buffers) = model();
        buffers.begin(0).unwrap();
        micro_step(&mean, &count, f64::NAN);
        buffers.take(1.0).unwrap();
        // The next step begins without a commit.
        buffers.begin(0).unwrap();
        assert_eq!((mean.double_value(&[1]), count.int64_value(&[])), (2.0, 5));
        // A rank without samples in a step changes nothing.
        buffers.commit().unwrap();
        assert_eq!((mean.double_value(&[1]), count.int64_value(&[])), (2.0, 5));
    }

    /// Values that rounding, infinities and the sign of zero would show in, the same at every call.
    fn constants() -> Vec<f32> {
        let mut values = vec![0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE / 4.0, f32::MAX];
        values.extend(
            (1..500u32).map(|at| (f64::from(at) * 0.37).sin() as f32 * 10f32.powi(at as i32 % 30 - 15)),
        );
        values
    }

    /// Shares that add up to 1 but for rounding.
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
    fn what_no_micro_step_changes_keeps_its_bits_in_every_split() {
        let constant = Tensor::from_slice(&constants());
        let whole = Tensor::from_slice(&[i64::MAX, -3, 0]);
        let wide = Tensor::from_slice(&[0.1f64, -1e300, 1.0 / 3.0]);
        let mut buffers = of(&[("constant", &constant), ("whole", &whole), ("wide", &wide)]);
        for split in splits() {
            buffers.begin(0).unwrap();
            for share in split {
                buffers.take(share).unwrap();
            }
            buffers.commit().unwrap();
        }
        assert_eq!(bits(&constant), constants().into_iter().map(f32::to_bits).collect::<Vec<_>>());
        assert_eq!(Vec::<i64>::try_from(&whole).unwrap(), [i64::MAX, -3, 0]);
        assert_eq!(Vec::<f64>::try_from(&wide).unwrap(), [0.1, -1e300, 1.0 / 3.0]);
    }

    #[test]
    fn one_micro_batch_leaves_exactly_what_its_layers_left() {
        let (mean, count, mut buffers) = model();
        let (expected, _) = (mean.copy(), buffers.begin(0).unwrap());
        for (mean, count) in [(&mean, &count), (&expected, &Tensor::from(0i64))] {
            micro_step(mean, count, 0.7);
        }
        buffers.take(1.0).unwrap();
        buffers.commit().unwrap();
        assert_eq!(bits(&mean), bits(&expected));
    }

    #[test]
    fn buffers_of_more_than_a_chunk_change_as_a_whole() {
        let table = Tensor::arange(CHUNK + 17, (Kind::Float, tch::Device::Cpu));
        let expected = &table * 3.0;
        let mut buffers = of(&[("table", &table)]);
        buffers.begin(0).unwrap();
        let _ = table.shallow_clone().g_mul_scalar_(3.0);
        buffers.take(1.0).unwrap();
        buffers.commit().unwrap();
        assert!(table.equal(&expected));
    }

    #[test]
    fn ranks_change_what_they_share_by_the_mean_of_their_micro_steps() {
        for split in splits() {
            let mut sums = Vec::new();
            for rank in 0..2 {
                let (mean, count, mut buffers) = model();
                buffers.begin(rank).unwrap();
                for (at, share) in split.iter().enumerate().filter(|(at, _)| at % 2 == rank) {
                    micro_step(&mean, &count, at as f64);
                    buffers.take(*share).unwrap();
                }
                sums.push(buffers.flats[0].next.copy());
            }
            let together = (&sums[0] + &sums[1]).to_kind(Kind::Float);
            let statistic: f64 = split.iter().enumerate().map(|(at, share)| at as f64 * share).sum();
            let expected = 0.9 + 0.1 * statistic;
            assert!((together.double_value(&[0]) - expected).abs() < 1e-6 * expected, "{split:?}");
        }
    }

    #[test]
    fn what_began_far_away_becomes_what_the_layers_make_of_it() {
        for far in [f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 1e13] {
            becomes_what_the_layers_make_of_it(far);
        }
    }

    fn becomes_what_the_layers_make_of_it(far: f32) {
        let least = Tensor::from_slice(&[far]);
        let mut buffers = of(&[("least", &least)]);
        buffers.begin(0).unwrap();
        for seen in [2.0, 4.0] {
            let _ = least.shallow_clone().fill_(seen);
            buffers.take(0.5).unwrap();
        }
        buffers.commit().unwrap();
        assert_eq!(least.double_value(&[0]), 3.0);
    }
}
