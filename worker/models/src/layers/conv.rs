//! Convolutions and transposed convolutions.

use tch::Tensor;

use super::super::error::ModelError;
use super::super::registry::Scope;
use super::super::weight::Weight;
use super::adapter::Adapter;
use super::init::Init;

/// The settings of a convolution with a square kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvOptions {
    /// The side of the kernel in pixels.
    pub kernel: i64,
    /// The distance between output pixels, in input pixels.
    pub stride: i64,
    /// Zeros added around the input, in pixels.
    pub padding: i64,
    /// Whether there is a bias. A batch normalisation behind it would cancel the bias.
    pub bias: bool,
    /// The initial values of weight and bias.
    pub init: Init,
}

impl ConvOptions {
    /// Returns settings with stride 1, no padding, no bias and initial values for a ReLU.
    pub fn kernel(kernel: i64) -> Self {
        Self { kernel, stride: 1, padding: 0, bias: false, init: Init::FanOut }
    }
}

/// A two-dimensional convolution with a square kernel.
#[derive(Debug)]
pub struct Conv2d {
    weight: Weight,
    bias: Option<Weight>,
    stride: i64,
    padding: i64,
    adapter: Option<Adapter>,
}

impl Conv2d {
    /// Registers `weight`, `output` x `input` x kernel x kernel, and optionally `bias`, of length `output`.
    pub fn new(
        scope: &mut Scope<'_>,
        (input, output): (i64, i64),
        options: ConvOptions,
    ) -> Result<Self, ModelError> {
        let shape = [output, input, options.kernel, options.kernel];
        let weight = scope.product_weight("weight", &options.init.weight(&shape)?)?;
        let bias = match options.bias {
            true => Some(scope.weight("bias", &options.init.bias(output, &shape)?)?),
            false => None,
        };
        let ConvOptions { stride, padding, .. } = options;
        Ok(Self { weight, bias, stride, padding, adapter: Adapter::of_layer(scope)? })
    }

    /// N x input x H x W to N x output x H' x W': H' = (H + 2 padding - kernel) / stride + 1, rounded down. An adapter drops
    /// elements if `train`.
    pub fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        let (stride, padding) = ([self.stride; 2], [self.padding; 2]);
        let bias = self.bias.as_ref().map(Weight::get).transpose()?;
        let y = match self.weight.frozen() {
            Some(weight) => weight.conv2d(x, bias.as_ref(), self.stride, self.padding)?,
            None => x.f_conv2d(&self.weight.get()?, bias, stride, padding, [1, 1], 1)?,
        };
        let Some(adapter) = &self.adapter else { return Ok(y) };
        let down = |x: &Tensor, a: &Tensor| x.f_conv2d(a, None::<&Tensor>, stride, padding, [1, 1], 1);
        let up = |x: &Tensor, b: &Tensor| x.f_conv2d(b, None::<&Tensor>, [1, 1], [0, 0], [1, 1], 1);
        adapter.add(&y, x, train, down, up)
    }
}

/// A transposed convolution with bias whose kernel is as large as its stride: every input pixel becomes a
/// square of output pixels, without overlap.
#[derive(Debug)]
pub struct ConvTranspose2d {
    weight: Weight,
    bias: Weight,
    stride: i64,
}

impl ConvTranspose2d {
    /// Registers `weight`, `input` x `output` x `stride` x `stride`, and `bias`, as PyTorch initialises them.
    pub fn new(scope: &mut Scope<'_>, (input, output): (i64, i64), stride: i64) -> Result<Self, ModelError> {
        let shape = [input, output, stride, stride];
        let (weight, bias) = (Init::FanIn.weight(&shape)?, Init::FanIn.bias(output, &shape)?);
        Ok(Self { weight: scope.weight("weight", &weight)?, bias: scope.weight("bias", &bias)?, stride })
    }

    /// Enlarges N x input x H x W to N x output x stride H x stride W.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        let stride = [self.stride; 2];
        Ok(x.f_conv_transpose2d(
            &self.weight.get()?,
            Some(self.bias.get()?),
            stride,
            [0, 0],
            [0, 0],
            1,
            [1, 1],
        )?)
    }
}
