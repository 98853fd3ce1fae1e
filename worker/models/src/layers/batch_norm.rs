//! Batch normalisation (Ioffe and Szegedy 2015, arXiv 1502.03167), of a micro-batch alone or of several together.

use tch::{Device, Kind, Tensor};

use super::super::error::ModelError;
use super::super::recompute::is_recomputing;
use super::super::registry::Scope;
use super::batch_sync::{JointBatch, SyncHandle};
use super::init::CPU_FLOAT;

/// Batch normalisation of N x C x H x W by channel, with PyTorch's defaults (momentum 0.1, eps 1e-5).
///
/// In a registry with a [`BatchSync`](super::BatchSync) of several participants, training normalises by the statistics of
/// all their micro-batches together: outputs, gradients and running statistics are those of the concatenated batch.
///
/// In a [`Segment`](super::super::Segment) that is computed again the running statistics move the first time alone.
#[derive(Debug)]
pub struct BatchNorm2d {
    name: String,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    num_batches_tracked: Tensor,
    sync: Option<SyncHandle>,
}

impl BatchNorm2d {
    const MOMENTUM: f64 = 0.1;
    const EPS: f64 = 1e-5;

    /// Registers `weight` = 1, `bias` = 0, `running_mean` = 0, `running_var` = 1, each of length `channels`, and the
    /// int64 scalar `num_batches_tracked` = 0.
    ///
    /// # Errors
    /// A name is taken, or libtorch cannot allocate.
    pub fn new(scope: &mut Scope<'_>, channels: i64) -> Result<Self, ModelError> {
        Self::with_weight(scope, channels, 1.0)
    }

    /// As [`BatchNorm2d::new`] with `weight` = 0: a residual branch that ends in it adds nothing at first.
    ///
    /// # Errors
    /// As [`BatchNorm2d::new`].
    pub fn silent(scope: &mut Scope<'_>, channels: i64) -> Result<Self, ModelError> {
        Self::with_weight(scope, channels, 0.0)
    }

    fn with_weight(scope: &mut Scope<'_>, channels: i64, weight: f64) -> Result<Self, ModelError> {
        let ones = || Tensor::f_ones([channels], CPU_FLOAT);
        let zeros = || Tensor::f_zeros([channels], CPU_FLOAT);
        let scalar: [i64; 0] = [];
        Ok(Self {
            name: scope.name().to_owned(),
            weight: scope.parameter("weight", &Tensor::f_full([channels], weight, CPU_FLOAT)?)?,
            bias: scope.parameter("bias", &zeros()?)?,
            running_mean: scope.buffer("running_mean", &zeros()?)?,
            running_var: scope.buffer("running_var", &ones()?)?,
            num_batches_tracked: scope.buffer(
                "num_batches_tracked",
                &Tensor::f_zeros(scalar, (Kind::Int64, Device::Cpu))?,
            )?,
            sync: scope.sync().cloned(),
        })
    }

    /// Normalises by the batch's own statistics and moves the running ones (`train`), or by the running ones.
    ///
    /// # Errors
    /// [`ModelError::Batch`] in training with one value per channel, all participants together; [`ModelError::Sync`];
    /// those of libtorch.
    pub fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        if let (true, Some(sync)) = (train, &self.sync) {
            return self.forward_joint(x, sync);
        }
        if train && values_per_channel(x) < 2 {
            return Err(self.too_small(x));
        }
        // A second time in backward normalises by the same statistics of the batch, and the running ones have moved.
        let moved = train && is_recomputing();
        if train && !moved {
            self.count()?;
        }
        let running = |statistics| if moved { None } else { Some(statistics) };
        Ok(x.f_batch_norm(
            Some(&self.weight),
            Some(&self.bias),
            running(&self.running_mean),
            running(&self.running_var),
            train,
            Self::MOMENTUM,
            Self::EPS,
            true,
        )?)
    }

    fn forward_joint(&self, x: &Tensor, sync: &SyncHandle) -> Result<Tensor, ModelError> {
        let kind = x.f_kind()?;
        // Statistics of half-precision values are taken in float32, as libtorch's own kernels do.
        let wide = x.f_to_kind(if kind == Kind::Double { kind } else { Kind::Float })?;
        let joint = JointBatch::of(&wide, sync)?;
        // To look at the joint count is to wait for the device; where this part has two values there is no need. Where
        // there is one value in all, every participant looks and finds it.
        if values_per_channel(x) < 2 && f64::try_from(&joint.count)? < 2.0 {
            return Err(self.too_small(x));
        }
        if !is_recomputing() {
            self.count()?;
            self.track(&joint)?;
        }
        let scale = joint
            .variance
            .f_add_scalar(Self::EPS)?
            .f_rsqrt()?
            .f_mul(&self.weight)?;
        let by_channel = |vector: &Tensor| vector.f_view([1, -1, 1, 1]);
        let y = by_channel(&self.bias)?.f_addcmul(&joint.centred, &by_channel(&scale)?)?;
        Ok(y.f_to_kind(kind)?)
    }

    /// Moves the running statistics towards those of the joint batch; the variance is the unbiased one.
    fn track(&self, joint: &JointBatch) -> Result<(), ModelError> {
        let kind = self.running_mean.f_kind()?;
        tch::no_grad(|| {
            let correction = joint.count.f_div(&joint.count.f_sub_scalar(1)?)?;
            let unbiased = joint.variance.f_mul(&correction)?;
            for (running, batch) in [(&self.running_mean, &joint.mean), (&self.running_var, &unbiased)] {
                let _ = running
                    .shallow_clone()
                    .f_lerp_(&batch.f_to_kind(kind)?, Self::MOMENTUM)?;
            }
            Ok(())
        })
    }

    fn count(&self) -> Result<(), ModelError> {
        // A handle of the same tensor: the in-place call takes it mutably.
        let _ = self.num_batches_tracked.shallow_clone().f_add_scalar_(1)?;
        Ok(())
    }

    fn too_small(&self, x: &Tensor) -> ModelError {
        ModelError::Batch {
            layer: self.name.clone(),
            shape: x.size(),
        }
    }
}

/// N x H x W of N x C x H x W.
fn values_per_channel(x: &Tensor) -> i64 {
    let sizes = x.size().into_iter().enumerate();
    sizes.filter(|(dim, _)| *dim != 1).map(|(_, size)| size).product()
}
