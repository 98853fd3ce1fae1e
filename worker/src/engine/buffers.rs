//! The model's buffers (BatchNorm's running statistics and counters) in flat tensors, one per dtype, moved once per
//! optimizer step, whatever its partition.
//!
//! Every micro-step finds the buffers as the step began and leaves its own update of them; the step's update is the mean of
//! these over all micro-batches of all ranks, weighted by their samples. For running averages that is one move towards the
//! mean statistics of the step's micro-batches, so two ranks, or one rank with two micro-steps, end with the same buffers;
//! and since every rank holds the same state between two steps, a checkpoint of rank 0 is one of all.

use tch::{Kind, TchError, Tensor};

use super::arena::{ArenaError, Layout, LayoutOptions, Slot, pack, spec};
use super::reducer::ReduceError;
use crate::collectives::{Collective, CollectiveError, Ranks, ReduceOp, Work};

/// The flat buffers of a model.
#[derive(Debug)]
pub struct Buffers {
    flats: Vec<Flat>,
}

#[derive(Debug)]
struct Flat {
    /// What the layers see.
    data: Tensor,
    /// Where each of them lies.
    slots: Vec<Slot>,
    /// The values as the step under way began.
    before: Tensor,
    /// The step's update, so far.
    next: Tensor,
    /// Floating buffers are averaged; of counters the greatest counts.
    floating: bool,
}

impl Buffers {
    /// Moves `buffers` (name and tensor) into flat tensors; every layer that holds one of them sees the new storage.
    ///
    /// # Errors
    /// Where memory runs out.
    pub fn new<'a>(buffers: impl IntoIterator<Item = (&'a str, &'a Tensor)>) -> Result<Self, ArenaError> {
        let (specs, tensors): (Vec<_>, Vec<_>) = buffers
            .into_iter()
            .map(|(name, tensor)| (spec(name, tensor, 0), tensor.shallow_clone()))
            .unzip();
        let order: Vec<usize> = (0..specs.len()).collect();
        let layout = Layout::new(&specs, &order, LayoutOptions::default());
        let flats = layout
            .buffers
            .iter()
            .map(|layout| {
                let data = pack(layout, &tensors)?;
                let (before, next) = (data.f_zeros_like()?, data.f_zeros_like()?);
                Ok(Flat {
                    data,
                    slots: layout.slots.clone(),
                    before,
                    next,
                    floating: matches!(layout.kind, Kind::Float | Kind::Double),
                })
            })
            .collect::<Result<_, ArenaError>>()?;
        Ok(Self { flats })
    }

    /// All bytes, with those of the two copies that belong to the step under way.
    pub fn bytes(&self) -> u64 {
        self.flats()
            .map(|flat| 3 * flat.numel() as u64 * flat.kind().elt_size_in_bytes() as u64)
            .sum()
    }

    /// The flat tensors.
    pub fn flats(&self) -> impl Iterator<Item = &Tensor> {
        self.flats.iter().map(|flat| &flat.data)
    }

    /// Moves the updates into memory that `allocate` (elements, dtype) gives, as [`super::Arena::share`] does.
    ///
    /// # Errors
    /// Where there is no memory.
    pub fn share(
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

    /// Where the buffers lie in the flat tensors, in the order of [`Buffers::flats`].
    pub fn slots(&self) -> impl Iterator<Item = &[Slot]> {
        self.flats.iter().map(|flat| flat.slots.as_slice())
    }

    /// A step begins.
    pub(super) fn begin(&mut self) -> Result<(), TchError> {
        self.each(|flat| {
            flat.before.f_copy_(&flat.data)?;
            if flat.floating {
                flat.next.f_zero_().map(drop)
            } else {
                flat.next.f_copy_(&flat.data)
            }
        })
    }

    /// A micro-step with this share of the step's samples has moved the buffers: its update is taken, and the next
    /// micro-step finds them as the step began.
    pub(super) fn take(&mut self, share: f64) -> Result<(), TchError> {
        self.each(|flat| {
            if flat.floating {
                let _ = flat.next.f_add_(&flat.data.f_mul_scalar(share)?)?;
            } else {
                flat.next.f_copy_(&flat.data)?;
            }
            flat.data.f_copy_(&flat.before)
        })
    }

    /// Starts the reductions of the step's update.
    pub(super) fn start(&self, ranks: &Ranks) -> Result<Box<dyn Work>, ReduceError> {
        let all: Vec<_> = self
            .flats
            .iter()
            .map(|flat| match flat.floating {
                true => Collective::AllReduce(&flat.next, ReduceOp::Sum),
                false => Collective::AllReduce(&flat.next, ReduceOp::Max),
            })
            .collect();
        Ok(ranks.start_all(&all)?)
    }

    /// The step is to be taken again: the layers see what they saw when it began.
    pub(super) fn rewind(&mut self) -> Result<(), TchError> {
        self.each(|flat| flat.data.f_copy_(&flat.before))
    }

    /// The step commits: the reduced update becomes what the layers see. A step that is dropped does not call it and leaves
    /// no trace.
    pub(super) fn commit(&mut self) -> Result<(), TchError> {
        self.each(|flat| flat.data.f_copy_(&flat.next))
    }

    fn each(&mut self, change: impl FnMut(&mut Flat) -> Result<(), TchError>) -> Result<(), TchError> {
        tch::no_grad(|| self.flats.iter_mut().try_for_each(change))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn model() -> (Tensor, Tensor, Buffers) {
        let mean = Tensor::from_slice(&[1f32, 2.0]);
        let count = Tensor::from(5i64);
        let buffers = Buffers::new([("mean", &mean), ("count", &count)]).unwrap();
        (mean, count, buffers)
    }

    /// What a BatchNorm does in a micro-step.
    fn micro_step(mean: &Tensor, count: &Tensor, statistic: f64) {
        let _ = mean
            .shallow_clone()
            .g_mul_scalar_(0.9)
            .g_add_scalar_(0.1 * statistic);
        let _ = count.shallow_clone().g_add_scalar_(1);
    }

    #[test]
    fn a_step_moves_once_towards_the_mean_of_its_micro_steps() {
        let (mean, count, mut buffers) = model();
        buffers.begin().unwrap();
        for (statistic, share) in [(10.0, 0.75), (30.0, 0.25)] {
            micro_step(&mean, &count, statistic);
            buffers.take(share).unwrap();
            assert_eq!(
                (mean.double_value(&[0]), count.int64_value(&[])),
                (1.0, 5),
                "as the step began"
            );
        }
        buffers.start(&Ranks::single()).unwrap().wait().unwrap();
        buffers.commit().unwrap();
        assert!((mean.double_value(&[0]) - (0.9 + 0.1 * 15.0)).abs() < 1e-6);
        assert_eq!(count.int64_value(&[]), 6);
    }

    #[test]
    fn a_step_that_ends_in_the_middle_is_taken_back() {
        let (mean, count, mut buffers) = model();
        buffers.begin().unwrap();
        micro_step(&mean, &count, 10.0);
        buffers.take(0.5).unwrap();
        micro_step(&mean, &count, 30.0);
        buffers.rewind().unwrap();
        assert_eq!((mean.double_value(&[0]), count.int64_value(&[])), (1.0, 5));
        buffers.begin().unwrap();
        micro_step(&mean, &count, 10.0);
        buffers.take(1.0).unwrap();
        buffers.commit().unwrap();
        assert!((mean.double_value(&[0]) - (0.9 + 0.1 * 10.0)).abs() < 1e-6);
        assert_eq!(count.int64_value(&[]), 6);
    }

    #[test]
    fn a_dropped_step_leaves_no_trace() {
        let (mean, count, mut buffers) = model();
        buffers.begin().unwrap();
        micro_step(&mean, &count, f64::NAN);
        buffers.take(1.0).unwrap();
        // The next step begins without a commit.
        buffers.begin().unwrap();
        assert_eq!((mean.double_value(&[1]), count.int64_value(&[])), (2.0, 5));
        // A rank without samples in a step counts nothing of its own.
        buffers.commit().unwrap();
        assert_eq!((mean.double_value(&[1]), count.int64_value(&[])), (0.0, 5));
    }
}
