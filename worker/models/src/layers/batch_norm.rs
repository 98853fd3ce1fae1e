//! Batch normalisation (Ioffe and Szegedy 2015, arXiv 1502.03167), of one micro-batch or over participants.

use std::sync::Arc;

use tch::{Device, Kind, TchError, Tensor};

use super::super::batch_sync::{BatchGroups, BatchSync};
use super::super::error::ModelError;
use super::super::recompute::is_recomputing;
use super::super::registry::{Registry, Scope};
use super::init::CPU_FLOAT;

/// The numbers of a batch normalisation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BatchNormOptions {
    /// The share of a batch's statistics in the running ones.
    pub momentum: f64,
    /// Added to the variance.
    pub eps: f64,
}

impl Default for BatchNormOptions {
    /// Returns PyTorch's defaults.
    fn default() -> Self {
        Self { momentum: 0.1, eps: 1e-5 }
    }
}

/// Batch normalisation of N x C, N x C x L, N x C x H x W or more dimensions per channel.
///
/// If the registry has a [`BatchSync`] of several participants, training normalises by the statistics of all
/// their micro-batches: outputs, gradients and running statistics equal those of the concatenated batch. In
/// training, [`BatchGroups`] can divide a micro-batch into groups that are normalised separately; all rows of a sample,
/// which are together, are in one group. If a
/// [`Segment`](super::super::Segment) is recomputed, only its first pass updates the running statistics.
#[derive(Debug)]
pub struct BatchNorm {
    name: String,
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    /// The running mean and variance.
    running: Option<[Tensor; 2]>,
    /// None if its owner counts the batches.
    num_batches_tracked: Option<Tensor>,
    options: BatchNormOptions,
    /// Whether training normalises by the running statistics too.
    is_frozen: bool,
    sync: Option<Arc<dyn BatchSync>>,
    groups: BatchGroups,
}

impl BatchNorm {
    /// Registers `weight` = 1, `bias` = 0, `running_mean` = 0, `running_var` = 1, each of length `channels`,
    /// and the int64 scalar `num_batches_tracked` = 0.
    pub fn new(scope: &mut Scope<'_>, channels: i64) -> Result<Self, ModelError> {
        Self::with_weight(scope, channels, 1.0)
    }

    /// Like [`BatchNorm::new`], with another initial `weight`.
    pub fn with_weight(scope: &mut Scope<'_>, channels: i64, weight: f64) -> Result<Self, ModelError> {
        let full = |value: f64| Tensor::f_full([channels], value, CPU_FLOAT);
        let none = Tensor::f_zeros([0i64; 0], (Kind::Int64, Device::Cpu))?;
        let weight = scope.parameter("weight", &full(weight)?)?;
        let bias = scope.parameter("bias", &full(0.0)?)?;
        let mean = scope.buffer("running_mean", &full(0.0)?)?;
        let variance = scope.buffer("running_var", &full(1.0)?)?;
        let num_batches_tracked = Some(scope.buffer("num_batches_tracked", &none)?);
        let (parameters, running) = ([Some(weight), Some(bias)], Some((mean, variance)));
        let options = BatchNormOptions::default();
        let layer = Self::of_tensors(scope.registry(), scope.name(), parameters, running, options);
        Ok(Self { num_batches_tracked, ..layer })
    }

    /// Makes a layer of tensors that are registered already: weight and bias, and the running mean and variance.
    pub(crate) fn of_tensors(
        registry: &Registry,
        name: &str,
        [weight, bias]: [Option<Tensor>; 2],
        running: Option<(Tensor, Tensor)>,
        options: BatchNormOptions,
    ) -> Self {
        Self {
            name: name.to_owned(),
            weight,
            bias,
            running: running.map(|(mean, variance)| [mean, variance]),
            num_batches_tracked: None,
            options,
            is_frozen: registry.is_batch_frozen,
            sync: registry.sync().cloned(),
            groups: registry.groups().clone(),
        }
    }

    /// Normalises by the batch's statistics and updates the running ones (`train`), or by the running ones: always if the
    /// registry's [`Registry::is_batch_frozen`].
    /// In training, one value per channel over all participants is [`ModelError::Batch`].
    pub fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        if x.dim() < 2 {
            let shape = x.size();
            return Err(TchError::Shape(format!(
                "BatchNorm takes N x channels, and this has the shape {shape:?}"
            ))
            .into());
        }
        if let (true, Some(running)) = (self.is_frozen, &self.running) {
            return self.normalise(x, Some(running), false);
        }
        if train && self.groups.record(&self.name, x)? {
            return match &self.running {
                Some(running) => self.normalise(x, Some(running), false),
                None => Ok(x.shallow_clone()),
            };
        }
        let rows = x.size()[0];
        let groups = self.groups.rows(rows).filter(|_| train).transpose();
        let groups = groups.map_err(|samples| ModelError::Rows(self.name.clone(), rows, samples))?;
        match (groups, &self.sync) {
            (Some(group), _) if rows > group => return self.forward_groups(x, group),
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
        self.normalise(x, self.running.as_ref().filter(|_| !is_repeated), train)
    }

    /// Normalises with these running statistics; training updates them.
    fn normalise(
        &self,
        x: &Tensor,
        running: Option<&[Tensor; 2]>,
        train: bool,
    ) -> Result<Tensor, ModelError> {
        Ok(x.f_batch_norm(
            self.weight.as_ref(),
            self.bias.as_ref(),
            running.map(|[mean, _]| mean),
            running.map(|[_, var]| var),
            train,
            self.options.momentum,
            self.options.eps,
            true,
        )?)
    }

    /// Normalises each group of `group` rows separately; the last one may be smaller. The running
    /// statistics change by the mean of the groups' changes, weighted by rows, as over micro-batches.
    fn forward_groups(&self, x: &Tensor, group: i64) -> Result<Tensor, ModelError> {
        let rows = x.size()[0];
        let updated = self.running.as_ref().filter(|_| !is_recomputing());
        if !is_recomputing() {
            self.count_batch()?;
        }
        let zeros = |running: &[Tensor; 2]| {
            Ok::<_, ModelError>([running[0].f_zeros_like()?, running[1].f_zeros_like()?])
        };
        let mut averages = updated.map(zeros).transpose()?;
        let mut parts = Vec::new();
        for begin in (0..rows).step_by(group as usize) {
            let length = group.min(rows - begin);
            let part = x.f_narrow(0, begin, length)?;
            if values_per_channel(&part) < 2 {
                return Err(self.too_small(&part));
            }
            let copies =
                |running: &[Tensor; 2]| Ok::<_, ModelError>([copy_of(&running[0])?, copy_of(&running[1])?]);
            let own = updated.map(copies).transpose()?;
            parts.push(self.normalise(&part, own.as_ref(), true)?);
            let share = length as f64 / rows as f64;
            for (average, own) in averages.iter_mut().flatten().zip(own.iter().flatten()) {
                let _ = tch::no_grad(|| average.f_add_(&own.f_mul_scalar(share)?))?;
            }
        }
        for (running, average) in updated.into_iter().flatten().zip(averages.iter().flatten()) {
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
        let mut scale = joint.variance.f_add_scalar(self.options.eps)?.f_rsqrt()?;
        if let Some(weight) = &self.weight {
            scale = scale.f_mul(weight)?;
        }
        let scale = by_channel(&scale, x.dim())?;
        let y = match &self.bias {
            Some(bias) => by_channel(bias, x.dim())?.f_addcmul(&joint.centred, &scale)?,
            None => joint.centred.f_mul(&scale)?,
        };
        Ok(y.f_to_kind(kind)?)
    }

    /// Moves the running statistics towards those of the joint batch. The variance is the unbiased one.
    fn update_running(&self, joint: &JointBatch) -> Result<(), ModelError> {
        let Some([mean, variance]) = &self.running else { return Ok(()) };
        let kind = mean.f_kind()?;
        tch::no_grad(|| {
            let correction = joint.count.f_div(&joint.count.f_sub_scalar(1)?)?;
            let unbiased = joint.variance.f_mul(&correction)?;
            for (running, batch) in [(mean, &joint.mean), (variance, &unbiased)] {
                let _ = running.shallow_clone().f_lerp_(&batch.f_to_kind(kind)?, self.options.momentum)?;
            }
            Ok(())
        })
    }

    fn count_batch(&self) -> Result<(), ModelError> {
        self.num_batches_tracked.as_ref().map_or(Ok(()), |counter| self.groups.count(counter))
    }

    fn too_small(&self, x: &Tensor) -> ModelError {
        ModelError::Batch(self.name.clone(), x.size())
    }
}

/// Copies a tensor so that it can change independently.
pub(crate) fn copy_of(statistic: &Tensor) -> Result<Tensor, ModelError> {
    let mut own = statistic.f_empty_like()?;
    tch::no_grad(|| own.f_copy_(statistic))?;
    Ok(own)
}

/// Views a vector of channels as a tensor of `dims` dimensions, for operations with N x C x ...
fn by_channel(vector: &Tensor, dims: usize) -> Result<Tensor, TchError> {
    let mut shape = vec![1; dims];
    shape[1] = -1;
    vector.f_view(shape.as_slice())
}

/// Returns the number of values per channel of N x C x ...
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
    /// This participant's values minus the joint mean, N x C x ..., differentiable.
    centred: Tensor,
}

impl JointBatch {
    /// Computes the statistics from this participant's part, N x C x ... float32 or float64; N may be 0.
    ///
    /// It sums twice: the squares are of deviations from the joint mean, because a sum of squares minus the
    /// squared sum would lose digits. Of `x`'s size, backward keeps only `centred`.
    fn of(x: &Tensor, sync: &dyn BatchSync) -> Result<Self, ModelError> {
        let channels = x.size()[1];
        let dims: Vec<i64> = (0..x.dim() as i64).filter(|dim| *dim != 1).collect();
        let dims = dims.as_slice();
        let own = values_per_channel(x) as f64;
        let own = Tensor::f_full([1], own, (x.f_kind()?, x.device()))?;
        // For an empty part these zeros depend on `x`, so its backward pass joins that of the others.
        let sum = x.f_sum_dim_intlist(dims, false, None::<Kind>)?;
        let sums = sync.all_reduce(&Tensor::f_cat(&[sum, own], 0)?)?;
        let count = sums.f_narrow(0, channels, 1)?.f_detach()?;
        let mean = sums.f_narrow(0, 0, channels)?.f_div(&count)?;
        let centred = x.f_sub(&by_channel(&mean, x.dim())?)?;
        let squares = centred.f_square()?.f_sum_dim_intlist(dims, false, None::<Kind>)?;
        let variance = sync.all_reduce(&squares)?.f_div(&count)?;
        Ok(Self { count, mean, variance, centred })
    }
}
