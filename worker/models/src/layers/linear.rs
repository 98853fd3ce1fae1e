//! Fully connected layers and tables of vectors.

use dtrain_torch_shim::head::Head;
use tch::Tensor;

use super::super::error::ModelError;
use super::super::registry::Scope;
use super::init::Init;
use super::weight::{Shadow, Weight};

/// A fully connected layer with bias.
#[derive(Debug)]
pub struct Linear {
    weight: Weight,
    bias: Weight,
}

impl Linear {
    /// Registers `weight`, `output` x `input`, and `bias`, both drawn evenly from ±1 / sqrt(input) as PyTorch does.
    pub fn new(scope: &mut Scope<'_>, input: i64, output: i64) -> Result<Self, ModelError> {
        Self::with_init(scope, input, output, Init::FanIn)
    }

    /// As [`Linear::new`], with other initial values.
    pub fn with_init(scope: &mut Scope<'_>, input: i64, output: i64, init: Init) -> Result<Self, ModelError> {
        let shape = [output, input];
        let (weight, bias) = (init.weight(&shape)?, init.bias(output, &shape)?);
        Ok(Self { weight: scope.weight("weight", &weight)?, bias: scope.weight("bias", &bias)? })
    }

    /// ... x input to ... x output.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        Ok(x.f_linear(&self.weight.get()?, Some(self.bias.get()?))?)
    }
}

/// A table of vectors, one per token or per position.
#[derive(Debug)]
pub struct Embedding {
    weight: Weight,
}

impl Embedding {
    /// What stands in the place of a target where there is none; libtorch's own default.
    pub const NO_TARGET: i64 = -100;

    /// Registers `weight`, `rows` x `width`.
    pub fn new(scope: &mut Scope<'_>, rows: i64, width: i64, init: Init) -> Result<Self, ModelError> {
        let weight = Weight {
            leaf: scope.parameter("weight", &init.weight(&[rows, width])?)?,
            shadow: Shadow::default(),
        };
        Ok(Self { weight })
    }

    /// As [`Embedding::new`], for a table that a head shares: it is taken in products too.
    pub fn with_head(scope: &mut Scope<'_>, rows: i64, width: i64, init: Init) -> Result<Self, ModelError> {
        let weight = scope.weight("weight", &init.weight(&[rows, width])?)?;
        Ok(Self { weight })
    }

    /// Row numbers of any shape, int64, to that shape x width. One that the table lacks is an error on the
    /// CPU; a GPU reports it later, as a failure of the device.
    pub fn forward(&self, rows: &Tensor) -> Result<Tensor, ModelError> {
        Ok(Tensor::f_embedding(&self.weight.leaf, rows, -1, false, false)?)
    }

    /// The first `count` rows, `count` x width: those of the positions 0, 1, ...
    pub fn first(&self, count: i64) -> Result<Tensor, ModelError> {
        Ok(self.weight.leaf.f_narrow(0, 0, count)?)
    }

    /// ... x width to ... x rows: the product with every row, for a head that shares the table.
    pub fn scores(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        Ok(x.f_linear(&self.weight.get()?, None::<&Tensor>)?)
    }

    /// The sum of the cross-entropies of the scores of `x`, ... x width, against `targets`, the row numbers that are right, int64. A
    /// target of [`Embedding::NO_TARGET`] counts for nothing. It can be differentiated once.
    ///
    /// The scores are there a chunk of rows at a time, of at most 32 million (128 MiB in float32). Within the products a table of many
    /// rows is filled up to a multiple of 64, as GPUs compute them fastest.
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
