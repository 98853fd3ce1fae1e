//! The status vector: what the ranks must agree on about a step travels in one small all-reduce behind the gradients, so
//! that a step commits on all ranks or on none, and no rank waits for one that failed.

use tch::{Device, Kind, TchError, Tensor};

use crate::tasks::{Loss, Totals};

/// What one rank, and after [`Status::merge`] all ranks together, have to say about a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    /// Losses, weights and what the task counts.
    pub totals: Totals,
    /// Ranks that were asked to stop.
    pub stop: f64,
    /// Samples that could not be read.
    pub bad_samples: f64,
    /// By parameter: ranks that had a gradient for it.
    pub uses: Vec<f64>,
}

impl Status {
    /// The vector for the all-reduce (sum): float64 on the CPU.
    ///
    /// # Errors
    /// None known.
    pub fn to_tensor(&self) -> Result<Tensor, TchError> {
        let Totals {
            loss_sum,
            weight,
            sums,
        } = &self.totals;
        let mut values = vec![*loss_sum, *weight, self.stop, self.bad_samples];
        values.extend(sums);
        values.extend(&self.uses);
        Tensor::f_from_slice(&values)
    }

    /// What the reduced vector of statuses like this one says.
    ///
    /// # Errors
    /// Where the tensor is not one of [`Status::to_tensor`].
    pub fn merge(&self, reduced: &Tensor) -> Result<Self, TchError> {
        let values = Vec::<f64>::try_from(reduced.f_to_device(Device::Cpu)?.f_to_kind(Kind::Double)?)?;
        let (sums, uses) = (self.totals.sums.len(), self.uses.len());
        let [loss_sum, weight, stop, bad_samples, rest @ ..] = values.as_slice() else {
            return Err(TchError::Convert(format!("a status of {} values", values.len())));
        };
        if rest.len() != sums + uses {
            return Err(TchError::Convert(format!("a status of {} values", values.len())));
        }
        Ok(Self {
            totals: Totals {
                loss_sum: *loss_sum,
                weight: *weight,
                sums: rest[..sums].to_vec(),
            },
            stop: *stop,
            bad_samples: *bad_samples,
            uses: rest[sums..].to_vec(),
        })
    }

    /// Which parameters some rank had a gradient for.
    pub fn used(&self) -> Vec<bool> {
        self.uses.iter().map(|&uses| uses > 0.0).collect()
    }
}

/// The figures of a step's micro-batches, added up where they are: a GPU is not waited for until [`Tally::totals`].
#[derive(Debug, Default)]
pub(super) struct Tally {
    figures: Option<Tensor>,
}

impl Tally {
    /// Adds a micro-batch.
    pub(super) fn add(&mut self, loss: &Loss) -> Result<(), TchError> {
        let scalar = |tensor: &Tensor| tensor.f_detach()?.f_to_kind(Kind::Double)?.f_view([1]);
        let figures = Tensor::f_cat(
            &[
                scalar(&loss.sum)?,
                scalar(&loss.weight)?,
                loss.sums.f_detach()?.f_to_kind(Kind::Double)?.f_view([-1])?,
            ],
            0,
        )?;
        match &mut self.figures {
            Some(sum) => sum.f_add_(&figures).map(drop),
            none => {
                *none = Some(figures);
                Ok(())
            }
        }
    }

    /// The sums, `sums` of them the task's own; zero where there was no micro-batch.
    pub(super) fn totals(self, sums: usize) -> Result<Totals, TchError> {
        let Some(figures) = self.figures else {
            return Ok(Totals {
                sums: vec![0.0; sums],
                ..Totals::default()
            });
        };
        match Vec::<f64>::try_from(figures.f_to_device(Device::Cpu)?)?.as_slice() {
            [loss_sum, weight, own @ ..] if own.len() == sums => Ok(Totals {
                loss_sum: *loss_sum,
                weight: *weight,
                sums: own.to_vec(),
            }),
            other => Err(TchError::Convert(format!(
                "a task counted {} figures where it said {sums}",
                other.len().saturating_sub(2)
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn status() -> Status {
        Status {
            totals: Totals {
                loss_sum: 1.5,
                weight: 2.0,
                sums: vec![1.0, 7.0],
            },
            stop: 4.0,
            bad_samples: 5.0,
            uses: vec![0.0, 1.0, 1.0],
        }
    }

    #[test]
    fn the_vector_carries_every_field() {
        let status = status();
        assert_eq!(status.merge(&status.to_tensor().unwrap()).unwrap(), status);
        let twice = status.merge(&(status.to_tensor().unwrap() * 2.0)).unwrap();
        assert_eq!((twice.totals.loss(), twice.stop), (0.75, 8.0));
        assert_eq!(twice.used(), [false, true, true]);
        assert!(status.merge(&Tensor::from_slice(&[1.0])).is_err());
        assert!(status.merge(&Tensor::from_slice(&[1.0; 8])).is_err());
    }

    #[test]
    fn a_tally_adds_micro_batches() {
        let loss = |sum: f32, weight: f32, own: f64| Loss {
            sum: Tensor::from(sum).set_requires_grad(true),
            weight: Tensor::from(weight),
            sums: Tensor::from_slice(&[own]),
        };
        let mut tally = Tally::default();
        tally.add(&loss(1.5, 2.0, 1.0)).unwrap();
        tally.add(&loss(2.5, 3.0, 0.0)).unwrap();
        let totals = tally.totals(1).unwrap();
        assert_eq!(
            (totals.loss_sum, totals.weight, totals.sums),
            (4.0, 5.0, vec![1.0])
        );
        assert_eq!(Tally::default().totals(2).unwrap().sums, [0.0, 0.0]);
        let mut wrong = Tally::default();
        wrong.add(&loss(1.0, 1.0, 1.0)).unwrap();
        assert!(wrong.totals(3).is_err());
    }
}
