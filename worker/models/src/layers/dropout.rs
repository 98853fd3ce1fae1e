//! Dropout and stochastic depth, whose draws depend on the sample and not on the micro-batch.

use dtrain_torch_shim::rng;
use tch::Tensor;

use super::super::error::ModelError;
use super::super::registry::Scope;

/// Drops elements in training (Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from overfitting").
/// Each place in the network needs a separate layer: a layer that runs twice for a micro-batch drops the same elements twice.
#[derive(Debug)]
pub struct Dropout {
    p: f64,
    operation: u32,
}

impl Dropout {
    /// Makes a layer that drops elements with probability `p`, at least 0 and below 1. It has no parameters.
    pub fn new(scope: &mut Scope<'_>, p: f64) -> Self {
        Self { p, operation: if p > 0.0 { scope.take_dropout() } else { 0 } }
    }

    /// Drops elements of N x ... if `train`; keeps the shape.
    pub fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        match train && self.p > 0.0 {
            true => Ok(rng::dropout(x, self.p, self.operation, 0)?),
            false => Ok(x.shallow_clone()),
        }
    }
}

/// Drops a residual branch of whole samples in training: stochastic depth (Huang et al. 2016, arXiv 1603.09382), by the sample
/// as in timm.
#[derive(Debug)]
pub struct DropPath(Dropout);

impl DropPath {
    /// Makes a layer that drops a sample's branch with probability `p`, at least 0 and below 1. It has no parameters.
    pub fn new(scope: &mut Scope<'_>, p: f64) -> Self {
        Self(Dropout::new(scope, p))
    }

    /// Drops samples of a branch, N x ..., if `train`; keeps the shape.
    pub fn forward(&self, branch: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        if !train || self.0.p == 0.0 {
            return Ok(branch.shallow_clone());
        }
        let mut shape = vec![1; branch.dim()];
        shape[0] = branch.size()[0];
        let kept = Tensor::f_ones(shape.as_slice(), (branch.f_kind()?, branch.device()))?;
        Ok(branch.f_mul(&self.0.forward(&kept, train)?)?)
    }
}
