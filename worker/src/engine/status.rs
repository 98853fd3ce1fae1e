//! The status vector: what the ranks must agree on about a step travels in one small all-reduce behind the gradients, so
//! that a step commits on all ranks or on none, and no rank waits for one that failed.

use tch::{Device, Kind, TchError, Tensor};

/// What one rank, and after [`Status::merge`] all ranks together, have to say about a step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Status {
    /// Sum of the losses of the samples.
    pub loss_sum: f64,
    /// Number of samples (their summed weights) behind the loss.
    pub weight: f64,
    /// Number of samples classified rightly.
    pub correct: f64,
    /// Ranks whose loss is not finite.
    pub non_finite: f64,
    /// Ranks that were asked to stop.
    pub stop: f64,
    /// Images that could not be read.
    pub bad_images: f64,
}

const LEN: usize = 6;

impl Status {
    /// The vector for the all-reduce (sum): float64 on the CPU.
    ///
    /// # Errors
    /// None known.
    pub fn to_tensor(self) -> Result<Tensor, TchError> {
        let values = [
            self.loss_sum,
            self.weight,
            self.correct,
            self.non_finite,
            self.stop,
            self.bad_images,
        ];
        Tensor::f_from_slice(&values)
    }

    /// What the reduced vector says.
    ///
    /// # Errors
    /// Where the tensor is not one of [`Status::to_tensor`].
    pub fn merge(reduced: &Tensor) -> Result<Self, TchError> {
        let values = Vec::<f64>::try_from(reduced.f_to_device(Device::Cpu)?.f_to_kind(Kind::Double)?)?;
        let values: [f64; LEN] = values
            .try_into()
            .map_err(|got: Vec<f64>| TchError::Convert(format!("a status of {} values", got.len())))?;
        let [loss_sum, weight, correct, non_finite, stop, bad_images] = values;
        Ok(Self {
            loss_sum,
            weight,
            correct,
            non_finite,
            stop,
            bad_images,
        })
    }

    /// Adds what another micro-step has to say.
    pub fn add(&mut self, other: Self) {
        self.loss_sum += other.loss_sum;
        self.weight += other.weight;
        self.correct += other.correct;
        self.non_finite += other.non_finite;
        self.stop += other.stop;
        self.bad_images += other.bad_images;
    }

    /// Mean loss over the samples.
    pub fn loss(&self) -> f64 {
        self.loss_sum / self.weight
    }

    /// Share of samples classified rightly.
    pub fn accuracy(&self) -> f64 {
        self.correct / self.weight
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_vector_carries_every_field() {
        let status = Status {
            loss_sum: 1.5,
            weight: 2.0,
            correct: 1.0,
            non_finite: 3.0,
            stop: 4.0,
            bad_images: 5.0,
        };
        assert_eq!(Status::merge(&status.to_tensor().unwrap()).unwrap(), status);
        let mut twice = status;
        twice.add(status);
        assert_eq!(
            Status::merge(&(status.to_tensor().unwrap() * 2.0)).unwrap(),
            twice
        );
        assert_eq!((status.loss(), status.accuracy()), (0.75, 0.5));
        assert!(Status::merge(&Tensor::from_slice(&[1.0])).is_err());
    }
}
