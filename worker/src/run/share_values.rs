//! The loss over a step's samples in an evaluation: the mean over the test set, as many samples at a time as in a step.

use tch::{Device, TchError, Tensor};

use crate::collectives::Ranks;
use crate::data::sampler::shuffled::epoch_order;
use crate::run::error::Result;
use crate::step::Gathered;
use crate::step::recover::retry_on_oom;
use crate::tasks::StepLoss;

/// The values of a rank's share of the test set, on the host.
#[derive(Default)]
pub(super) struct ShareValues(Vec<BatchValues>);

struct BatchValues {
    /// The number of the batch's first sample.
    first: usize,
    values: Vec<Tensor>,
    weights: Tensor,
}

impl ShareValues {
    /// Adds the values of the samples from number `first` on.
    pub(super) fn add(
        &mut self,
        first: usize,
        values: &[Tensor],
        weights: &Tensor,
        loss: &dyn StepLoss,
    ) -> Result<(), TchError> {
        // A copy, because a value may be a view of a large tensor.
        let copy = |value: &Tensor, kind| {
            let mut own = Tensor::f_empty(value.size(), (kind, Device::Cpu))?;
            own.f_copy_(value)?;
            Ok(own)
        };
        let values = values.iter().zip(loss.values()).map(|(value, declared)| copy(value, declared.kind));
        let values = values.collect::<Result<_, TchError>>()?;
        self.0.push(BatchValues { first, values, weights: copy(weights, weights.kind())? });
        Ok(())
    }

    /// Returns the mean loss over the test set of `samples` samples, in groups of `step`; the last may be smaller. The
    /// groups are drawn, the same in every evaluation of every run, because a test set lists its classes one after the other.
    /// So it does not depend on ranks and batches. Every rank calls it.
    pub(super) fn mean(
        &self,
        loss: &dyn StepLoss,
        samples: usize,
        step: usize,
        ranks: &Ranks,
        device: Device,
    ) -> Result<f64> {
        let order = epoch_order(samples, 0, 0);
        let (mut sum, mut count) = (0.0, 0.0);
        for group in order.chunks(step) {
            let gathered = Gathered::new(loss.values(), group.len(), Device::Cpu)?;
            for (place, sample) in group.iter().enumerate() {
                self.put(*sample as usize, place, loss, &gathered)?;
            }
            gathered.join(ranks)?;
            let [mean, weight] = retry_on_oom(device, || gathered.mean(loss, device))?;
            if weight > 0.0 {
                sum += mean * weight;
                count += weight;
            }
        }
        Ok(sum / count)
    }

    /// Puts the values of a sample at its place, if the sample is of this rank's share.
    fn put(
        &self,
        sample: usize,
        place: usize,
        loss: &dyn StepLoss,
        gathered: &Gathered,
    ) -> Result<(), TchError> {
        let after = self.0.partition_point(|batch| batch.first <= sample);
        let Some(batch) = after.checked_sub(1).map(|at| &self.0[at]) else { return Ok(()) };
        let row = sample - batch.first;
        if row >= batch.weights.numel() {
            return Ok(());
        }
        let part = |all: &Tensor| all.f_narrow(0, row as i64, 1);
        let values = batch.values.iter().zip(loss.values());
        let values = values.map(|(value, declared)| match declared.is_of_sample {
            true => part(value),
            false => Ok(value.shallow_clone()),
        });
        let weights = part(&batch.weights)?;
        gathered.put(&(place..place + 1), &values.collect::<Result<Vec<_>, _>>()?, &weights, &weights)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tch::Kind;

    use super::*;
    use crate::tasks::{Batch, Loss, Mode, StepValue, TaskError};

    /// The square of the sum of the values of a group, for each sample.
    struct Square([StepValue; 1]);

    impl StepLoss for Square {
        fn values(&self) -> &[StepValue] {
            &self.0
        }

        fn forward(&self, _: &Batch, _: Mode) -> Result<(Loss, Vec<Tensor>), TaskError> {
            unreachable!("the values are given")
        }

        fn mean(&self, values: &[Tensor], weights: &Tensor) -> Result<Tensor, TaskError> {
            let sum = (&values[0] * weights).sum(Kind::Float);
            Ok(sum.square() / weights.sum(Kind::Float))
        }
    }

    #[test]
    fn every_sample_counts_in_its_group_whatever_the_batches() {
        let values = [1f32, 10.0, 100.0, 1000.0, 10_000.0];
        let weights = [1f32, 1.0, 0.0, 1.0, 1.0];
        let loss = Square([StepValue { kind: Kind::Float, shape: Vec::new(), is_of_sample: true }]);
        let (mut sum, mut count) = (0.0, 0.0);
        for group in epoch_order(5, 0, 0).chunks(2) {
            let of = |sample: &u32| f64::from(values[*sample as usize] * weights[*sample as usize]);
            sum += group.iter().map(of).sum::<f64>().powi(2);
            count += group.iter().map(|sample| f64::from(weights[*sample as usize])).sum::<f64>();
        }
        for ends in [&[5][..], &[2, 5], &[1, 2, 3, 4, 5]] {
            let mut share = ShareValues::default();
            let mut first = 0;
            for &end in ends {
                let part = |all: &[f32]| Tensor::from_slice(&all[first..end]);
                share.add(first, &[part(&values)], &part(&weights), &loss).unwrap();
                first = end;
            }
            let mean = share.mean(&loss, 5, 2, &Ranks::single(), Device::Cpu).unwrap();
            assert!((mean - sum / count).abs() < 1e-6 * mean, "{ends:?}: {mean}");
        }
    }
}
