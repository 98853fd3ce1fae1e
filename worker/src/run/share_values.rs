//! The loss over a step's samples in an evaluation: the mean over the test set, as many samples at a time as in a step.

use std::collections::HashMap;
use std::ops::Range;

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
            let places: HashMap<usize, usize> =
                group.iter().enumerate().map(|(place, sample)| (*sample as usize, place)).collect();
            for batch in &self.0 {
                batch.put(&places, loss, &gathered)?;
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
}

impl BatchValues {
    /// Puts the values of the samples that have a place.
    fn put(
        &self,
        places: &HashMap<usize, usize>,
        loss: &dyn StepLoss,
        gathered: &Gathered,
    ) -> Result<(), TchError> {
        for row in 0..self.weights.numel() {
            let Some(&place) = places.get(&(self.first + row)) else { continue };
            let part = |all: &Tensor| all.f_narrow(0, row as i64, 1);
            let values = self.values.iter().zip(loss.values());
            let values = values.map(|(value, declared)| match declared.is_of_sample {
                true => part(value),
                false => Ok(value.shallow_clone()),
            });
            let weights = part(&self.weights)?;
            let places: Range<usize> = place..place + 1;
            gathered.put(&places, &values.collect::<Result<Vec<_>, _>>()?, &weights, &weights)?;
        }
        Ok(())
    }
}
