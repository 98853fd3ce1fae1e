//! Fully connected layers and embeddings.

use dtrain_torch_shim::head::Head;
use tch::Tensor;

use super::super::error::ModelError;
use super::super::registry::Scope;
use super::super::weight::{Shadow, Weight};
use super::adapter::Adapter;
use super::init::Init;

/// A fully connected layer with bias.
#[derive(Debug)]
pub struct Linear {
    weight: Weight,
    bias: Weight,
    adapter: Option<Adapter>,
}

impl Linear {
    /// Registers `weight`, `output` x `input`, and `bias`, both uniform in ±1 / sqrt(input) as in PyTorch.
    pub fn new(scope: &mut Scope<'_>, input: i64, output: i64) -> Result<Self, ModelError> {
        Self::with_init(scope, input, output, Init::FanIn)
    }

    /// Like [`Linear::new`], with other initial values.
    pub fn with_init(scope: &mut Scope<'_>, input: i64, output: i64, init: Init) -> Result<Self, ModelError> {
        let shape = [output, input];
        let (weight, bias) = (init.weight(&shape)?, init.bias(output, &shape)?);
        let (weight, bias) = (scope.product_weight("weight", &weight)?, scope.weight("bias", &bias)?);
        Ok(Self { weight, bias, adapter: Adapter::of_layer(scope)? })
    }

    /// Computes ... x output from ... x input. An adapter drops elements if `train`.
    pub fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        let bias = self.bias.get()?;
        let y = match self.weight.frozen() {
            Some(weight) => weight.linear(x, Some(&bias))?,
            None => x.f_linear(&self.weight.get()?, Some(bias))?,
        };
        let Some(adapter) = &self.adapter else { return Ok(y) };
        let product = |x: &Tensor, weight: &Tensor| x.f_linear(weight, None::<&Tensor>);
        adapter.add(&y, x, train, product, product)
    }
}

/// A table of vectors, one per token or position.
#[derive(Debug)]
pub struct Embedding {
    weight: Weight,
}

impl Embedding {
    /// The target of a row to ignore: libtorch's default.
    pub const NO_TARGET: i64 = -100;

    /// Registers `weight`, `rows` x `width`.
    pub fn new(scope: &mut Scope<'_>, rows: i64, width: i64, init: Init) -> Result<Self, ModelError> {
        let weight = Weight {
            leaf: scope.parameter("weight", &init.weight(&[rows, width])?)?,
            shadow: Shadow::default(),
            frozen: None,
        };
        Ok(Self { weight })
    }

    /// Like [`Embedding::new`], for a table that a head shares, and that products therefore use too.
    pub fn with_head(scope: &mut Scope<'_>, rows: i64, width: i64, init: Init) -> Result<Self, ModelError> {
        let weight = scope.weight("weight", &init.weight(&[rows, width])?)?;
        Ok(Self { weight })
    }

    /// Looks up int64 row numbers of any shape; returns that shape x width. A number beyond the table is an
    /// error on the CPU; a GPU reports it later, as a device error.
    pub fn forward(&self, rows: &Tensor) -> Result<Tensor, ModelError> {
        Ok(Tensor::f_embedding(&self.weight.leaf, rows, -1, false, false)?)
    }

    /// Returns the first `count` rows, `count` x width: those of positions 0, 1, ...
    pub fn first(&self, count: i64) -> Result<Tensor, ModelError> {
        Ok(self.weight.leaf.f_narrow(0, 0, count)?)
    }

    /// Computes ... x rows from ... x width: the products with all rows, for a head that shares the table.
    pub fn scores(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        Ok(x.f_linear(&self.weight.get()?, None::<&Tensor>)?)
    }

    /// Computes the sum of the cross-entropies of the scores of `x` (... x width) against `targets`, the
    /// correct int64 row numbers. Targets of [`Embedding::NO_TARGET`] are ignored. Differentiable once.
    ///
    /// It holds the scores of one chunk of rows at a time, at most 32 million (128 MiB in float32). Within
    /// products, a table of many rows is padded to a multiple of 64, for which GPUs are fastest.
    pub fn cross_entropy(&self, x: &Tensor, targets: &Tensor) -> Result<Tensor, ModelError> {
        const SCORES: i64 = 1 << 25;
        const MANY: i64 = 1 << 10;
        let (rows, width) = self.weight.leaf.size2()?;
        let head = Head {
            ignored: Self::NO_TARGET,
            rows: (SCORES / rows / 64 * 64).max(64),
            multiple: if rows < MANY { 1 } else { 64 },
        };
        let (x, targets) = (x.f_reshape([-1, width])?, targets.f_reshape([-1])?);
        let shadow = self.weight.shadow.lock();
        Ok(head.loss(&x, &self.weight.leaf, shadow.as_ref(), &targets)?)
    }
}
