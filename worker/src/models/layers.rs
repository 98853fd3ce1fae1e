//! The layers that the networks are made of, each registering its tensors under PyTorch's names.
//!
//! Initial values come from torch's global CPU generator, whatever the device, so that after the same
//! `tch::manual_seed` every rank builds the same model on any hardware.

use tch::{Device, Kind, Tensor};

use super::error::ModelError;
use super::registry::Scope;

const CPU_FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

/// A two-dimensional convolution with a square kernel and no bias (a batch normalisation follows it).
#[derive(Debug)]
pub struct Conv2d {
    weight: Tensor,
    stride: i64,
    padding: i64,
}

impl Conv2d {
    /// Registers `weight`, `output` x `input` x `kernel` x `kernel`, drawn from the normal distribution of variance
    /// 2 / (output x kernel x kernel): Kaiming's, by fan-out, for ReLU.
    ///
    /// # Errors
    /// The name is taken, or libtorch cannot allocate.
    pub fn new(
        scope: &mut Scope<'_>,
        (input, output): (i64, i64),
        kernel: i64,
        stride: i64,
        padding: i64,
    ) -> Result<Self, ModelError> {
        let fan_out = output * kernel * kernel;
        let init = Tensor::f_empty([output, input, kernel, kernel], CPU_FLOAT)?
            .f_normal_(0.0, (2.0 / fan_out as f64).sqrt())?;
        Ok(Self {
            weight: scope.parameter("weight", &init)?,
            stride,
            padding,
        })
    }

    /// N x input x H x W to N x output x H' x W'.
    ///
    /// # Errors
    /// Those of libtorch: shape, device, memory.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        let (stride, padding) = ([self.stride; 2], [self.padding; 2]);
        Ok(x.f_conv2d::<&Tensor>(&self.weight, None, stride, padding, [1, 1], 1)?)
    }
}

/// Batch normalisation of N x C x H x W by channel, with PyTorch's defaults (momentum 0.1, eps 1e-5).
#[derive(Debug)]
pub struct BatchNorm2d {
    name: String,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    num_batches_tracked: Tensor,
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
        })
    }

    /// Normalises by the batch's own statistics and moves the running ones (`train`), or by the running ones.
    ///
    /// # Errors
    /// [`ModelError::Batch`] in training with one value per channel; those of libtorch.
    pub fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        if train {
            let shape = x.size();
            let values: i64 = shape
                .iter()
                .enumerate()
                .filter(|(dim, _)| *dim != 1)
                .map(|(_, size)| size)
                .product();
            if values < 2 {
                return Err(ModelError::Batch {
                    layer: self.name.clone(),
                    shape,
                });
            }
            // A handle of the same tensor: the in-place call takes it mutably.
            let _ = self.num_batches_tracked.shallow_clone().f_add_scalar_(1)?;
        }
        Ok(x.f_batch_norm(
            Some(&self.weight),
            Some(&self.bias),
            Some(&self.running_mean),
            Some(&self.running_var),
            train,
            Self::MOMENTUM,
            Self::EPS,
            true,
        )?)
    }
}

/// A fully connected layer with bias.
#[derive(Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Tensor,
}

impl Linear {
    /// Registers `weight`, `output` x `input`, and `bias`, both drawn evenly from ±1 / sqrt(input) as PyTorch does.
    ///
    /// # Errors
    /// A name is taken, or libtorch cannot allocate.
    pub fn new(scope: &mut Scope<'_>, input: i64, output: i64) -> Result<Self, ModelError> {
        let bound = 1.0 / (input as f64).sqrt();
        let weight = Tensor::f_empty([output, input], CPU_FLOAT)?.f_uniform_(-bound, bound)?;
        let bias = Tensor::f_empty([output], CPU_FLOAT)?.f_uniform_(-bound, bound)?;
        Ok(Self {
            weight: scope.parameter("weight", &weight)?,
            bias: scope.parameter("bias", &bias)?,
        })
    }

    /// N x input to N x output.
    ///
    /// # Errors
    /// Those of libtorch: shape, device, memory.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        Ok(x.f_linear(&self.weight, Some(&self.bias))?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::registry::Registry;
    use super::*;

    #[test]
    fn batch_norm_counts_and_normalises_only_in_training() {
        let mut registry = Registry::new(Device::Cpu);
        let layer = BatchNorm2d::new(&mut registry.root().sub("bn"), 2).unwrap();
        let x = Tensor::from_slice(&[1.0f32, 3.0, 10.0, 30.0])
            .f_view([1, 2, 1, 2])
            .unwrap();
        let counter = registry.get("bn.num_batches_tracked").unwrap().tensor();

        let unchanged = layer.forward(&x, false).unwrap();
        assert!((unchanged.double_value(&[0, 1, 0, 1]) - 30.0).abs() < 1e-3);
        assert_eq!(counter.int64_value(&[]), 0);

        let y = layer.forward(&x, true).unwrap();
        assert!((y.double_value(&[0, 0, 0, 0]) + 1.0).abs() < 1e-4);
        assert!((y.double_value(&[0, 1, 0, 1]) - 1.0).abs() < 1e-4);
        assert_eq!(counter.int64_value(&[]), 1);
        // 0.9 x 0 + 0.1 x 20, and 0.9 x 1 + 0.1 x 200 (the running variance is the unbiased one).
        assert!(
            (registry
                .get("bn.running_mean")
                .unwrap()
                .tensor()
                .double_value(&[1])
                - 2.0)
                .abs()
                < 1e-5
        );
        assert!(
            (registry
                .get("bn.running_var")
                .unwrap()
                .tensor()
                .double_value(&[1])
                - 20.9)
                .abs()
                < 1e-4
        );
    }

    #[test]
    fn batch_norm_refuses_one_value_per_channel() {
        let mut registry = Registry::new(Device::Cpu);
        let layer = BatchNorm2d::new(&mut registry.root().sub("bn"), 3).unwrap();
        let x = Tensor::f_zeros([1, 3, 1, 1], CPU_FLOAT).unwrap();
        let error = layer.forward(&x, true).unwrap_err();
        assert!(
            matches!(&error, ModelError::Batch { layer, .. } if layer == "bn"),
            "{error}"
        );
        assert!(error.to_string().contains("[1, 3, 1, 1]"));
        assert_eq!(
            registry
                .get("bn.num_batches_tracked")
                .unwrap()
                .tensor()
                .int64_value(&[]),
            0
        );
        assert!(layer.forward(&x, false).is_ok());
    }

    #[test]
    fn a_wrong_shape_is_an_error_and_not_a_panic() {
        let mut registry = Registry::new(Device::Cpu);
        let conv = Conv2d::new(&mut registry.root().sub("conv"), (3, 4), 3, 1, 1).unwrap();
        let linear = Linear::new(&mut registry.root().sub("fc"), 4, 2).unwrap();
        let x = Tensor::f_zeros([1, 5, 8, 8], CPU_FLOAT).unwrap();
        assert!(matches!(conv.forward(&x), Err(ModelError::Torch(_))));
        assert!(matches!(linear.forward(&x), Err(ModelError::Torch(_))));
        let x = Tensor::f_zeros([2, 3, 9, 9], CPU_FLOAT).unwrap();
        assert_eq!(conv.forward(&x).unwrap().size(), [2, 4, 9, 9]);
    }

    #[test]
    fn initial_values_have_the_documented_spread() {
        let mut registry = Registry::new(Device::Cpu);
        Conv2d::new(&mut registry.root().sub("conv"), (64, 128), 3, 1, 1).unwrap();
        Linear::new(&mut registry.root().sub("fc"), 400, 100).unwrap();
        let deviation = |name| {
            registry
                .get(name)
                .unwrap()
                .tensor()
                .f_std(true)
                .unwrap()
                .f_double_value(&[])
                .unwrap()
        };
        let of_conv = (2.0f64 / (128.0 * 9.0)).sqrt();
        assert!((deviation("conv.weight") / of_conv - 1.0).abs() < 0.02);
        let of_linear = 1.0 / 400.0f64.sqrt() / 3.0f64.sqrt();
        assert!((deviation("fc.weight") / of_linear - 1.0).abs() < 0.02);
        let largest = registry
            .get("fc.bias")
            .unwrap()
            .tensor()
            .f_abs()
            .unwrap()
            .f_max()
            .unwrap();
        assert!(largest.double_value(&[]) <= 0.05);
    }
}
