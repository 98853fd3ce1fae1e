//! The status vector: all facts on which ranks must agree in a step, in one small all-reduce after the
//! gradients. So a step commits on all ranks or on none, and no rank waits for a failed one.

use tch::{Device, Kind, TchError, Tensor};

use super::reading::Reading;
use super::recover::Shortage;
use crate::step::error::Result;
use crate::tasks::{Loss, Totals};

/// The report of one rank about a step; after [`Status::merge`], of all ranks.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Status {
    /// Losses, weights and the task's figures.
    pub(crate) totals: Totals,
    pub(crate) stop: f64,
    pub(crate) bad_samples: f64,
    /// The figures of the hashes of the samples ([`crate::data::SampleHashes::to_figures`]).
    pub(crate) samples: Vec<f64>,
    /// By parameter: the number of ranks with a gradient.
    pub(crate) uses: Vec<f64>,
    /// Whether rank 0 finds a checkpoint due by time.
    pub(crate) due: f64,
    /// Whether rank 0 finds that evaluations have had their share of the time.
    pub(crate) spent: f64,
    /// By rank: whether and where memory ran out. A rank sets only its element.
    pub(crate) shortages: Vec<Option<Shortage>>,
    /// By rank: the progress of a checkpoint, see [`crate::checkpoint::Checkpoints::progress`]. A rank sets
    /// only its element.
    pub(crate) writing: Vec<f64>,
}

impl Status {
    /// Returns an empty status for a task that counts `sums` figures, and for `ranks` ranks.
    pub(crate) fn empty(sums: usize, ranks: usize) -> Self {
        Self {
            totals: Totals { sums: vec![0.0; sums], ..Totals::default() },
            shortages: vec![None; ranks],
            writing: vec![0.0; ranks],
            ..Self::default()
        }
    }

    pub(crate) fn values(&self) -> Vec<f64> {
        let Totals { loss_sum, weight, sums } = &self.totals;
        let mut values = vec![*loss_sum, *weight, self.stop, self.bad_samples, self.due, self.spent];
        values.extend(sums);
        values.extend(&self.samples);
        values.extend(&self.uses);
        values.extend(self.shortages.iter().flat_map(|&own| Shortage::to_figures(own)));
        values.extend(&self.writing);
        values
    }

    /// Reads the sum over ranks of statuses with the same lengths as this one.
    pub(crate) fn merge(&self, reduced: &Tensor) -> Result<Self, TchError> {
        let values = Vec::<f64>::try_from(reduced.f_to_device(Device::Cpu)?.f_to_kind(Kind::Double)?)?;
        let mut rest = values.as_slice();
        let wrong = || {
            TchError::Convert(format!(
                "the status vector has the wrong length, {} values; this is a bug of dtrain",
                values.len()
            ))
        };
        let mut take = |count: usize| -> Result<&[f64], TchError> {
            let (taken, others) = rest.split_at_checked(count).ok_or_else(wrong)?;
            rest = others;
            Ok(taken)
        };
        let first = take(6)?;
        let merged = Self {
            totals: Totals {
                loss_sum: first[0],
                weight: first[1],
                sums: take(self.totals.sums.len())?.to_vec(),
            },
            stop: first[2],
            bad_samples: first[3],
            due: first[4],
            spent: first[5],
            samples: take(self.samples.len())?.to_vec(),
            uses: take(self.uses.len())?.to_vec(),
            shortages: take(self.shortages.len() * Shortage::FIGURES)?
                .chunks_exact(Shortage::FIGURES)
                .map(Shortage::from_figures)
                .collect(),
            writing: take(self.writing.len())?.to_vec(),
        };
        if rest.is_empty() { Ok(merged) } else { Err(wrong()) }
    }

    /// Returns whether memory ran out on a rank: then all ranks drop the step.
    pub(crate) fn ran_out(&self) -> bool {
        self.shortages.iter().any(Option::is_some)
    }

    /// Returns which parameters had a gradient on a rank; all in a rehearsal.
    pub(crate) fn used(&self, is_rehearsed: bool) -> Vec<bool> {
        let is_used = |&uses: &f64| is_rehearsed || uses > 0.0;
        self.uses.iter().map(is_used).collect()
    }
}

/// Sums of figures over a step's micro-batches, at one address of their device. Only [`Tally::totals`] waits for a GPU.
#[derive(Debug)]
pub(crate) struct Tally {
    sum: Tensor,
    /// Whether the sum is not of this step yet.
    is_old: bool,
}

impl Tally {
    /// Creates a tally of a training step, which needs no figures of the task.
    pub(crate) fn of_step(device: Device) -> Result<Self, TchError> {
        Self::of_evaluation(0, device)
    }

    /// Creates a tally of an evaluation by a task that counts `sums` figures.
    pub(crate) fn of_evaluation(sums: usize, device: Device) -> Result<Self, TchError> {
        Ok(Self { sum: Tensor::f_zeros([sums as i64 + 2], (Kind::Double, device))?, is_old: true })
    }

    pub(crate) fn begin(&mut self) {
        self.is_old = true;
    }

    /// Adds loss and weight of a micro-batch.
    pub(crate) fn add(&mut self, loss: &Loss) -> Result<(), TchError> {
        self.add_figures(&figures(loss)?)
    }

    /// Adds loss, weight and the task's figures of a batch of an evaluation.
    pub(crate) fn add_with_sums(&mut self, loss: &Loss) -> Result<(), TchError> {
        self.add_figures(&Tensor::f_cat(&[figures(loss)?, flat(&loss.sums)?], 0)?)
    }

    /// Adds a micro-batch's [`figures`].
    pub(super) fn add_figures(&mut self, figures: &Tensor) -> Result<(), TchError> {
        if figures.size() != self.sum.size() {
            let [counted, declared] = [figures, &self.sum].map(|figures| figures.numel().saturating_sub(2));
            return Err(TchError::Convert(format!(
                "Task::loss returned {counted} sums, but Facts::sums is {declared}; make them equal"
            )));
        }
        match std::mem::take(&mut self.is_old) {
            true => self.sum.f_copy_(figures),
            false => self.sum.f_add_(figures).map(drop),
        }
    }

    /// Returns loss, weight and the task's figures: float64, on the device. They are zero without a micro-batch: a rank
    /// without memory still joins the reduction.
    pub(crate) fn figures(&mut self) -> Result<Tensor, TchError> {
        if self.is_old {
            let _ = self.sum.f_zero_()?;
        }
        Ok(self.sum.shallow_clone())
    }

    /// Returns [`Tally::figures`] on the host, and waits for them.
    pub(crate) fn totals(&mut self) -> Result<Totals> {
        let figures = Reading::begin(&self.figures()?)?.wait()?;
        Ok(Totals { loss_sum: figures[0], weight: figures[1], sums: figures[2..].to_vec() })
    }
}

/// Returns a micro-batch's loss and weight as one float64 tensor, detached.
pub(super) fn figures(loss: &Loss) -> Result<Tensor, TchError> {
    Tensor::f_cat(&[flat(&loss.sum)?, flat(&loss.weight)?], 0)
}

fn flat(tensor: &Tensor) -> Result<Tensor, TchError> {
    tensor.f_detach()?.f_to_kind(Kind::Double)?.f_view([-1])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::memory::Phase;

    fn status() -> Status {
        Status {
            totals: Totals { loss_sum: 1.5, weight: 2.0, sums: vec![1.0, 7.0] },
            stop: 4.0,
            bad_samples: 5.0,
            samples: vec![3.0, 6.0],
            due: 1.0,
            spent: 1.0,
            uses: vec![0.0, 1.0, 1.0],
            shortages: vec![None; 3],
            writing: vec![0.0, 2.0, 1.0],
        }
    }

    fn tensor(status: &Status) -> Tensor {
        Tensor::from_slice(&status.values())
    }

    #[test]
    fn the_status_vector_round_trips() {
        let status = status();
        assert_eq!(status.merge(&tensor(&status)).unwrap(), status);
        let twice = status.merge(&(tensor(&status) * 2.0)).unwrap();
        assert_eq!((twice.totals.loss(), twice.stop), (0.75, 8.0));
        assert_eq!(twice.used(false), [false, true, true]);
        assert!(status.merge(&Tensor::from_slice(&[1.0])).is_err());
        assert!(status.merge(&Tensor::from_slice(&[1.0; 8])).is_err());
        let too_long = [status.values(), vec![0.0]].concat();
        assert!(status.merge(&Tensor::from_slice(&too_long)).is_err());
    }

    #[test]
    fn merging_keeps_the_shortages_of_all_ranks() {
        let shortage = Shortage {
            phase: Phase::Backward,
            at_us: 1_795_000_000_123_456,
            allocated: 3 << 30,
            limit: Some(4 << 30),
            requested_bytes: Some(1 << 29),
        };
        let mut ranks = [status(), status(), status()];
        ranks[1].shortages[1] = Some(shortage);
        let sum = ranks.iter().map(tensor).reduce(|sum, next| sum + next).unwrap();
        let merged = ranks[0].merge(&sum).unwrap();
        assert!(merged.ran_out() && !ranks[0].ran_out());
        assert_eq!(merged.shortages, [None, Some(shortage), None]);
    }

    #[test]
    fn tallies_add_micro_batches() {
        let loss = |sum: f32, weight: f32, own: f64| Loss {
            sum: Tensor::from(sum).set_requires_grad(true),
            weight: Tensor::from(weight),
            sums: Tensor::from_slice(&[own]),
        };
        let mut tally = Tally::of_evaluation(1, Device::Cpu).unwrap();
        tally.add_with_sums(&loss(1.5, 2.0, 1.0)).unwrap();
        tally.add_with_sums(&loss(2.5, 3.0, 0.0)).unwrap();
        let totals = tally.totals().unwrap();
        assert_eq!((totals.loss_sum, totals.weight, totals.sums), (4.0, 5.0, vec![1.0]));
        let mut wrong = Tally::of_evaluation(3, Device::Cpu).unwrap();
        assert!(wrong.add_with_sums(&loss(1.0, 1.0, 1.0)).is_err());
        let mut of_step = Tally::of_step(Device::Cpu).unwrap();
        of_step.add(&loss(1.5, 2.0, 1.0)).unwrap();
        assert_eq!(of_step.totals().unwrap(), Totals { loss_sum: 1.5, weight: 2.0, sums: Vec::new() });
    }

    #[test]
    fn an_empty_tally_is_zero_and_allocates_nothing() {
        let mut tally = Tally::of_evaluation(2, Device::Cpu).unwrap();
        for _ in 0..2 {
            tally.begin();
            let mut figures = tally.figures().unwrap();
            assert_eq!(figures.data_ptr(), tally.sum.data_ptr());
            assert_eq!(Vec::<f64>::try_from(&figures).unwrap(), [0.0; 4]);
            // A reduction leaves values too.
            let _ = figures.fill_(7.0);
        }
    }
}
