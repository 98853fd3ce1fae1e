//! Weights that are never trained and have fewer bytes than float32. Products widen them: [`dtrain_torch_shim::frozen`].

use std::fmt;
use std::sync::Arc;

use dtrain_torch_shim::frozen::quantise;
use tch::{Kind, TchError, Tensor};

/// How a weight is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrozenAs {
    /// As bfloat16.
    Bf16,
    /// As float16.
    Fp16,
    /// As int8 with a float32 factor for each row.
    Int8,
}

impl FrozenAs {
    /// Returns the values in their form, and the factors of the rows.
    pub(super) fn of(self, values: &Tensor) -> Result<(Tensor, Option<Tensor>), TchError> {
        match self {
            Self::Bf16 => Ok((values.f_to_kind(Kind::BFloat16)?, None)),
            Self::Fp16 => Ok((values.f_to_kind(Kind::Half)?, None)),
            Self::Int8 => quantise(values).map(|(values, scale)| (values, Some(scale))),
        }
    }
}

/// Decides by its full name how a weight is held; None for one in float32.
type Chooses = dyn Fn(&str) -> Option<FrozenAs> + Send + Sync;

/// The choice of the weights of a model that are held in fewer bytes.
#[derive(Clone)]
pub struct FrozenWeights(pub Arc<Chooses>);

impl FrozenWeights {
    pub(super) fn of(&self, name: &str) -> Option<FrozenAs> {
        (self.0)(name)
    }
}

impl fmt::Debug for FrozenWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FrozenWeights")
    }
}
