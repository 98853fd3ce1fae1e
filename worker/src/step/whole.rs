//! The loss over all samples of a step, exact for every cut.
//!
//! First, all micro-batches of all ranks run forward without a graph, and their values go to the places of their samples.
//! Every rank then computes the loss of the whole step, and its derivative by these values. Each micro-batch runs forward
//! again, and backward from the derivative by its own values (Gao et al. 2021, arXiv 2101.06983). A rank's only
//! micro-batch keeps the graph of its first pass, and does not run again.

use std::ops::Range;

use tch::{Device, Kind, TchError, Tensor};

use super::exchange::{Exchange, Pass};
use super::micro::{MicroStep, Passes};
use super::recover::{Shortage, catch_torch_panic, retry_on_oom};
use super::{ComputeResult, DeviceBatch, Feed, Replica, StepPlan, Stepper, begin_micro_step};
use crate::collectives::{Collective, Ranks, ReduceOp};
use crate::memory::Phase;
use crate::step::error::{Result, StepError};
use crate::tasks::{Batch, Loss, Mode, StepLoss, StepValue, TaskError};

/// The values of all samples of a step.
#[derive(Debug)]
pub(crate) struct Gathered {
    declared: Vec<StepValue>,
    values: Vec<Tensor>,
    /// By sample, float32.
    weights: Tensor,
    /// The sum of the weights of the micro-batches' losses: float64, of length 1.
    weight: Tensor,
}

impl Gathered {
    /// Allocates the values of `samples` samples. Retries, because the other ranks wait for this rank's values.
    pub(crate) fn new(declared: &[StepValue], samples: usize, device: Device) -> Result<Self> {
        let value = |value: &StepValue| {
            let of_sample = value.is_of_sample.then_some(samples as i64);
            let shape: Vec<i64> = of_sample.into_iter().chain(value.shape.iter().copied()).collect();
            retry_on_oom(device, || Tensor::f_zeros(&shape, (value.kind, device)))
        };
        let zeros = |length, kind| retry_on_oom(device, || Tensor::f_zeros([length], (kind, device)));
        Ok(Self {
            values: declared.iter().map(value).collect::<Result<_, _>>()?,
            declared: declared.to_vec(),
            weights: zeros(samples as i64, Kind::Float)?,
            weight: zeros(1, Kind::Double)?,
        })
    }

    fn samples(&self) -> usize {
        self.weights.numel()
    }

    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.values.iter().chain([&self.weights, &self.weight])
    }

    /// Makes all values 0 for the next step.
    fn clear(&self) -> Result<(), TchError> {
        tch::no_grad(|| self.tensors().try_for_each(|tensor| tensor.shallow_clone().f_zero_().map(drop)))
    }

    /// Puts the values of the samples at `places`, whose losses have this `weight`. Only the rank of the first sample puts a
    /// value that all samples share.
    pub(crate) fn put(
        &self,
        places: &Range<usize>,
        values: &[Tensor],
        weights: &Tensor,
        weight: &Tensor,
    ) -> Result<(), TchError> {
        let part = |all: &Tensor| all.f_narrow(0, places.start as i64, places.len() as i64);
        tch::no_grad(|| {
            let _ = self.weight.shallow_clone().f_add_(&weight.f_to_kind(Kind::Double)?)?;
            for ((all, value), declared) in self.values.iter().zip(values).zip(&self.declared) {
                let mut place = match declared.is_of_sample {
                    true => part(all)?,
                    false if places.start == 0 => all.shallow_clone(),
                    false => continue,
                };
                place.f_copy_(&value.f_reshape(place.size())?)?;
            }
            part(&self.weights)?.f_copy_(weights)
        })
    }

    /// Sums over the ranks: each value is 0 on all ranks but one. Every rank calls it.
    pub(crate) fn join(&self, ranks: &Ranks) -> Result<()> {
        let all: Vec<_> = self.tensors().map(|tensor| Collective::AllReduce(tensor, ReduceOp::Sum)).collect();
        Ok(ranks.start_all(&all)?.wait()?)
    }

    /// Returns the mean loss over the samples, computed on `device`, and the number of samples that counted.
    pub(crate) fn mean(&self, loss: &dyn StepLoss, device: Device) -> Result<[f64; 2], TaskError> {
        let there = |tensor: &Tensor| tensor.f_to_device(device);
        let values = self.values.iter().map(there).collect::<Result<Vec<_>, TchError>>()?;
        let mean = tch::no_grad(|| loss.mean(&values, &there(&self.weights)?))?;
        Ok([f64::try_from(mean.f_to_kind(Kind::Double)?)?, f64::try_from(self.weights.f_sum(Kind::Double)?)?])
    }

    /// Returns the mean loss and the derivative of the step's weight times this mean.
    fn derivative(&self, loss: &dyn StepLoss) -> Result<Derivative, TaskError> {
        let leaf = |value: &Tensor| Ok(value.f_detach()?.set_requires_grad(value.kind() == Kind::Float));
        let leaves: Vec<Tensor> = self.values.iter().map(leaf).collect::<Result<_, TchError>>()?;
        let mean = loss.mean(&leaves, &self.weights)?;
        let floats: Vec<&Tensor> = leaves.iter().filter(|leaf| leaf.requires_grad()).collect();
        let mut found = match mean.requires_grad() {
            true => {
                let whole = mean.f_mul(&self.weight.f_to_kind(Kind::Float)?)?.f_sum(Kind::Float)?;
                Tensor::f_run_backward(&[&whole], &floats, false, false)?.into_iter()
            }
            false => Vec::new().into_iter(),
        };
        let by_value = leaves.iter().map(|leaf| match leaf.requires_grad() {
            true => found.next().filter(Tensor::defined),
            false => None,
        });
        Ok(Derivative {
            by_value: by_value.collect(),
            declared: self.declared.clone(),
            mean: mean.f_detach()?.f_to_kind(Kind::Float)?,
        })
    }
}

/// The loss of a step, and its derivative.
#[derive(Debug)]
pub(super) struct Derivative {
    mean: Tensor,
    declared: Vec<StepValue>,
    /// The derivative by each value, if it has one.
    by_value: Vec<Option<Tensor>>,
}

impl Derivative {
    /// Returns the loss of the micro-batch at `places` with its part of the step's. It has the value of this part, and its
    /// derivative by the parameters.
    fn add_to(
        &self,
        own: Loss,
        values: &[Tensor],
        weights: &Tensor,
        places: &Range<usize>,
    ) -> Result<Loss, TchError> {
        let absent = weights.f_eq(0.0)?;
        let share = self.mean.f_mul(&own.weight.f_to_kind(Kind::Float)?)?;
        let mut sum = own.sum.f_to_kind(Kind::Float)?.f_add(&share)?;
        for ((value, derivative), declared) in values.iter().zip(&self.by_value).zip(&self.declared) {
            let Some(derivative) = derivative.as_ref().filter(|_| value.requires_grad()) else { continue };
            let derivative = match declared.is_of_sample {
                true => derivative.f_narrow(0, places.start as i64, places.len() as i64)?,
                // The derivative by a value that all samples share counts once.
                false if places.start == 0 => derivative.shallow_clone(),
                false => continue,
            };
            let mut value = value.f_to_kind(Kind::Float)?.f_reshape(derivative.size())?;
            if declared.is_of_sample {
                // A sample that cannot be read may have any value, also NaN.
                let rows: Vec<i64> = (0..value.dim()).map(|at| if at == 0 { -1 } else { 1 }).collect();
                value = value.f_masked_fill(&absent.f_view(rows.as_slice())?, 0.0)?;
            }
            let linear = value.f_mul(&derivative)?.f_sum(Kind::Float)?;
            sum = sum.f_add(&linear.f_sub(&linear.f_detach()?)?)?;
        }
        Ok(Loss { sum, ..own })
    }
}

/// The results of a micro-batch's forward pass.
pub(super) struct Values {
    own: Loss,
    values: Vec<Tensor>,
}

/// What the second pass of a step takes from the first.
pub(super) struct Joined {
    derivative: Derivative,
    /// The only micro-batch of this rank, with its graph.
    kept: Option<(DeviceBatch, Values)>,
}

/// What a rank found in the first pass: nothing for a task without a loss over the step, or if memory ran out.
pub(super) type FirstPass = Result<Option<Joined>, Shortage>;

impl<F: Feed> Stepper<'_, F> {
    /// Runs the first pass of a step whose task has a loss over all samples. Every rank joins in the values, also without
    /// memory.
    pub(super) fn first_pass(
        &mut self,
        replica: &mut Replica,
        exchange: &Exchange,
        plan: &StepPlan,
        computed: &mut ComputeResult,
    ) -> Result<FirstPass> {
        let Some(loss) = replica.model.task.step_loss() else {
            self.feed.repeat(false);
            return Ok(Ok(None));
        };
        self.phases.enter(Phase::Outputs)?;
        let gathered = match self.gathered.take().filter(|known| known.samples() == plan.samples) {
            Some(known) => known,
            None => Gathered::new(loss.values(), plan.samples, self.limits.device)?,
        };
        gathered.clear()?;
        let mut kept = None;
        let mut done = 0;
        let outcome = catch_torch_panic(|| {
            kept = self.gather(&gathered, replica, exchange, plan, computed, &mut done)?;
            Ok(())
        });
        let outcome = outcome.map_err(StepError::from).and_then(|outcome| outcome);
        let mut found = self.limits.find_shortage(outcome, Phase::Outputs)?;
        if found.is_err() {
            self.limits.empty_cache();
            exchange.join_remaining_sums(Pass::Outputs, plan.micro_batches.len() - done)?;
        }
        gathered.join(exchange.ranks())?;
        let mut joined = None;
        if found.is_ok() {
            let loss = replica.model.task.step_loss();
            let derivative = catch_torch_panic(|| loss.map(|loss| gathered.derivative(loss)).transpose());
            let derivative = derivative.map_err(StepError::from).and_then(|derivative| Ok(derivative?));
            match self.limits.find_shortage(derivative, Phase::Outputs)? {
                Ok(derivative) => joined = derivative.map(|derivative| Joined { derivative, kept }),
                Err(shortage) => found = Err(shortage),
            }
        }
        self.phases.fault.end();
        self.gathered = Some(gathered);
        self.feed.again();
        Ok(found.map(|()| joined))
    }

    /// Puts the values of this rank's micro-batches into `gathered`. Returns the only one, with its graph.
    fn gather(
        &mut self,
        gathered: &Gathered,
        replica: &mut Replica,
        exchange: &Exchange,
        plan: &StepPlan,
        computed: &mut ComputeResult,
        done: &mut usize,
    ) -> Result<Option<(DeviceBatch, Values)>> {
        // With sums over ranks within a micro-step, all ranks need the same passes.
        let is_kept = plan.micro_batches.len() == 1 && !exchange.has_joint_sums();
        self.feed.repeat(!is_kept);
        for (index, places) in plan.micro_batches.iter().enumerate() {
            let _draws = begin_micro_step(replica, exchange, plan, places, Pass::Outputs)?;
            let mut fetched = self.feed.next()?;
            computed.data_wait += std::mem::take(&mut fetched.data_wait);
            let passes = Passes { replica, exchange, phases: &mut self.phases, tally: &mut self.tally };
            let forward = || forward(&passes, &fetched.batch);
            let found = if is_kept { forward()? } else { tch::no_grad(forward)? };
            gathered.put(places, &found.values, &fetched.batch.weights, &found.own.weight)?;
            if is_kept {
                return Ok(Some((fetched, found)));
            }
            drop((found, fetched));
            // The second pass counts the changes of buffers.
            replica.model.buffers.rewind()?;
            exchange.end_micro_step()?;
            *done += 1;
            if index + 1 < plan.micro_batches.len() {
                self.feed.prefetch();
            }
        }
        Ok(None)
    }
}

impl Joined {
    /// Returns the only micro-batch of this rank, with its results.
    pub(super) fn take_kept(&mut self) -> Option<(DeviceBatch, Values)> {
        self.kept.take()
    }

    /// Adds a micro-step's gradients to the table, and its figures to the tally. `values`: of a forward pass that kept its
    /// graph.
    pub(super) fn run(
        &self,
        passes: &mut Passes<'_, '_>,
        micro: &MicroStep<'_>,
        places: &Range<usize>,
        values: Option<Values>,
    ) -> Result<()> {
        let Values { own, values } = match values {
            Some(values) => values,
            None => forward(passes, micro.batch)?,
        };
        let loss = self.derivative.add_to(own, &values, &micro.batch.weights, places)?;
        drop(values);
        passes.backward(|| loss.sum.f_mul_scalar(micro.factor), micro.hooks())?;
        Ok(passes.tally.add(&loss)?)
    }
}

fn forward(passes: &Passes<'_, '_>, batch: &Batch) -> Result<Values> {
    let (own, values) = passes.forward(|task| match task.step_loss() {
        Some(loss) => loss.forward(batch, Mode::Train),
        None => Ok((task.loss(batch, Mode::Train)?, Vec::new())),
    })?;
    Ok(Values { own, values })
}
