//! Batch normalisation (Ioffe and Szegedy 2015, arXiv 1502.03167), of one micro-batch or over participants.

use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use super::super::error::ModelError;
use super::super::recompute::is_recomputing;
use super::super::registry::Scope;
use super::batch_sync::{BatchGroups, BatchSync};
use super::init::CPU_FLOAT;

/// Batch normalisation of N x C x H x W per channel, with PyTorch's defaults (momentum 0.1, eps 1e-5).
///
/// If the registry has a [`BatchSync`] of several participants, training normalises by the statistics of all
/// their micro-batches: outputs, gradients and running statistics equal those of the concatenated batch. In
/// training, [`BatchGroups`] can divide a micro-batch into groups that are normalised separately. If a
/// [`Segment`](super::super::Segment) is recomputed, only its first pass updates the running statistics.
#[derive(Debug)]
pub struct BatchNorm2d {
    name: String,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    num_batches_tracked: Tensor,
    sync: Option<Arc<dyn BatchSync>>,
    groups: BatchGroups,
}

impl BatchNorm2d {
    const MOMENTUM: f64 = 0.1;
    const EPS: f64 = 1e-5;

    /// Registers `weight` = 1, `bias` = 0, `running_mean` = 0, `running_var` = 1, each of length `channels`,
    /// and the int64 scalar `num_batches_tracked` = 0.
    pub fn new(scope: &mut Scope<'_>, channels: i64) -> Result<Self, ModelError> {
        Self::with_weight(scope, channels, 1.0)
    }

    /// Like [`BatchNorm2d::new`], with another initial `weight`.
    pub fn with_weight(scope: &mut Scope<'_>, channels: i64, weight: f64) -> Result<Self, ModelError> {
        let full = |value: f64| Tensor::f_full([channels], value, CPU_FLOAT);
        let none = Tensor::f_zeros([0i64; 0], (Kind::Int64, Device::Cpu))?;
        Ok(Self {
            name: scope.name().to_owned(),
            weight: scope.parameter("weight", &full(weight)?)?,
            bias: scope.parameter("bias", &full(0.0)?)?,
            running_mean: scope.buffer("running_mean", &full(0.0)?)?,
            running_var: scope.buffer("running_var", &full(1.0)?)?,
            num_batches_tracked: scope.buffer("num_batches_tracked", &none)?,
            sync: scope.sync().cloned(),
            groups: scope.groups().clone(),
        })
    }

    /// Normalises by the batch's statistics and updates the running ones (`train`), or by the running ones.
    /// In training, one value per channel over all participants is [`ModelError::Batch`].
    pub fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        let groups = self.groups.samples().filter(|_| train);
        match (groups, &self.sync) {
            (Some(group), _) if x.size()[0] > group => return self.forward_groups(x, group),
            (None, Some(sync)) if train => return self.forward_joint(x, sync.as_ref()),
            _ => {}
        }
        if train && values_per_channel(x) < 2 {
            return Err(self.too_small(x));
        }
        // Recomputation normalises by the batch's statistics, but must not update the running ones again.
        let is_repeated = train && is_recomputing();
        if train && !is_repeated {
            self.count_batch()?;
        }
        let running = [&self.running_mean, &self.running_var];
        self.normalise(x, (!is_repeated).then_some(running), train)
    }

    /// Normalises with these running statistics; training updates them.
    fn normalise(
        &self,
        x: &Tensor,
        running: Option<[&Tensor; 2]>,
        train: bool,
    ) -> Result<Tensor, ModelError> {
        Ok(x.f_batch_norm(
            Some(&self.weight),
            Some(&self.bias),
            running.map(|[mean, _]| mean),
            running.map(|[_, var]| var),
            train,
            Self::MOMENTUM,
            Self::EPS,
            true,
        )?)
    }

    /// Normalises each group of `group` samples separately; the last one may be smaller. The running
    /// statistics change by the mean of the groups' changes, weighted by samples, as over micro-batches.
    fn forward_groups(&self, x: &Tensor, group: i64) -> Result<Tensor, ModelError> {
        let samples = x.size()[0];
        let running = [&self.running_mean, &self.running_var];
        let updates_running = !is_recomputing();
        if updates_running {
            self.count_batch()?;
        }
        let mut averages = [running[0].f_zeros_like()?, running[1].f_zeros_like()?];
        let mut parts = Vec::new();
        for begin in (0..samples).step_by(group as usize) {
            let length = group.min(samples - begin);
            let part = x.f_narrow(0, begin, length)?;
            if values_per_channel(&part) < 2 {
                return Err(self.too_small(&part));
            }
            let own = updates_running
                .then(|| Ok::<_, ModelError>([copy_statistic(running[0])?, copy_statistic(running[1])?]));
            let own = own.transpose()?;
            parts.push(self.normalise(&part, own.as_ref().map(|[mean, var]| [mean, var]), true)?);
            let share = length as f64 / samples as f64;
            for (average, own) in averages.iter_mut().zip(own.iter().flatten()) {
                let _ = tch::no_grad(|| average.f_add_(&own.f_mul_scalar(share)?))?;
            }
        }
        for (running, average) in running.into_iter().zip(&averages).filter(|_| updates_running) {
            tch::no_grad(|| running.shallow_clone().f_copy_(average))?;
        }
        Ok(Tensor::f_cat(&parts, 0)?)
    }

    fn forward_joint(&self, x: &Tensor, sync: &dyn BatchSync) -> Result<Tensor, ModelError> {
        let kind = x.f_kind()?;
        // For half-precision values, statistics are in float32, as in libtorch's kernels.
        let wide = x.f_to_kind(if kind == Kind::Double { kind } else { Kind::Float })?;
        let joint = JointBatch::of(&wide, sync)?;
        // Reading the joint count waits for the device. It is unnecessary if this part has two values. If
        // there is one value in all, every participant reads it and fails.
        if values_per_channel(x) < 2 && f64::try_from(&joint.count)? < 2.0 {
            return Err(self.too_small(x));
        }
        if !is_recomputing() {
            self.count_batch()?;
            self.update_running(&joint)?;
        }
        let scale = joint.variance.f_add_scalar(Self::EPS)?.f_rsqrt()?.f_mul(&self.weight)?;
        let by_channel = |vector: &Tensor| vector.f_view([1, -1, 1, 1]);
        let y = by_channel(&self.bias)?.f_addcmul(&joint.centred, &by_channel(&scale)?)?;
        Ok(y.f_to_kind(kind)?)
    }

    /// Moves the running statistics towards those of the joint batch. The variance is the unbiased one.
    fn update_running(&self, joint: &JointBatch) -> Result<(), ModelError> {
        let kind = self.running_mean.f_kind()?;
        tch::no_grad(|| {
            let correction = joint.count.f_div(&joint.count.f_sub_scalar(1)?)?;
            let unbiased = joint.variance.f_mul(&correction)?;
            for (running, batch) in [(&self.running_mean, &joint.mean), (&self.running_var, &unbiased)] {
                let _ = running.shallow_clone().f_lerp_(&batch.f_to_kind(kind)?, Self::MOMENTUM)?;
            }
            Ok(())
        })
    }

    fn count_batch(&self) -> Result<(), ModelError> {
        // A second handle of the tensor, because the in-place call needs it mutable.
        let _ = self.num_batches_tracked.shallow_clone().f_add_scalar_(1)?;
        Ok(())
    }

    fn too_small(&self, x: &Tensor) -> ModelError {
        ModelError::Batch(self.name.clone(), x.size())
    }
}

/// Copies a statistic so that it can change independently.
fn copy_statistic(statistic: &Tensor) -> Result<Tensor, ModelError> {
    let mut own = statistic.f_empty_like()?;
    tch::no_grad(|| own.f_copy_(statistic))?;
    Ok(own)
}

/// Returns N x H x W for N x C x H x W.
fn values_per_channel(x: &Tensor) -> i64 {
    let sizes = x.size().into_iter().enumerate();
    sizes.filter(|(dim, _)| *dim != 1).map(|(_, size)| size).product()
}

/// One participant's part of a joint batch, with the joint statistics per channel.
struct JointBatch {
    /// Values per channel over all participants: a vector of length 1, without gradient.
    count: Tensor,
    /// Length C, differentiable.
    mean: Tensor,
    /// Length C, differentiable: the mean squared deviation, biased.
    variance: Tensor,
    /// This participant's values minus the joint mean, N x C x H x W, differentiable.
    centred: Tensor,
}

impl JointBatch {
    /// Computes the statistics from this participant's part, N x C x H x W float32 or float64; N may be 0.
    ///
    /// It sums twice: the squares are of deviations from the joint mean, because a sum of squares minus the
    /// squared sum would lose digits. Of `x`'s size, backward keeps only `centred`.
    fn of(x: &Tensor, sync: &dyn BatchSync) -> Result<Self, ModelError> {
        let (samples, channels, height, width) = x.size4()?;
        let dims: &[i64] = &[0, 2, 3];
        let own = (samples * height * width) as f64;
        let own = Tensor::f_full([1], own, (x.f_kind()?, x.device()))?;
        // For an empty part these zeros depend on `x`, so its backward pass joins that of the others.
        let sum = x.f_sum_dim_intlist(dims, false, None::<Kind>)?;
        let sums = sync.all_reduce(&Tensor::f_cat(&[sum, own], 0)?)?;
        let count = sums.f_narrow(0, channels, 1)?.f_detach()?;
        let mean = sums.f_narrow(0, 0, channels)?.f_div(&count)?;
        let centred = x.f_sub(&mean.f_view([1, -1, 1, 1])?)?;
        let squares = centred.f_square()?.f_sum_dim_intlist(dims, false, None::<Kind>)?;
        let variance = sync.all_reduce(&squares)?.f_div(&count)?;
        Ok(Self { count, mean, variance, centred })
    }
}
