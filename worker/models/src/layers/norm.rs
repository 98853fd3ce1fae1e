//! Layer normalisation (Ba et al. 2016, arXiv 1607.06450).

use tch::Tensor;

use super::super::error::ModelError;
use super::super::registry::Scope;
use super::init::CPU_FLOAT;

/// Normalisation of every token over its features.
#[derive(Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f64,
}

impl LayerNorm {
    /// Registers `weight` = 1 and `bias` = 0, each of length `width`. `eps` is added to the variance.
    pub fn new(scope: &mut Scope<'_>, width: i64, eps: f64) -> Result<Self, ModelError> {
        Ok(Self {
            weight: scope.parameter("weight", &Tensor::f_ones([width], CPU_FLOAT)?)?,
            bias: scope.parameter("bias", &Tensor::f_zeros([width], CPU_FLOAT)?)?,
            eps,
        })
    }

    /// ... x width to the same shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        Ok(x.f_layer_norm(self.weight.size(), Some(&self.weight), Some(&self.bias), self.eps, true)?)
    }
}
