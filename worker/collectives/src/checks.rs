//! What every backend asks of its tensors, checked before anything is sent: a rank that refuses alone would leave the
//! others waiting, so the checks depend on nothing but the call.

use tch::{Kind, Tensor};

use super::CollectiveError;

/// The dtypes that every backend takes.
const KINDS: [Kind; 8] = [
    Kind::Float,
    Kind::Double,
    Kind::Half,
    Kind::BFloat16,
    Kind::Int64,
    Kind::Int,
    Kind::Int8,
    Kind::Uint8,
];

pub(crate) struct Check {
    pub(crate) op: &'static str,
    pub(crate) rank: usize,
    pub(crate) size: usize,
}

impl Check {
    fn refuse(&self, reason: String) -> CollectiveError {
        CollectiveError::InvalidTensor {
            op: self.op,
            rank: self.rank,
            reason,
        }
    }

    /// Defined, of a known dtype, dense and contiguous.
    pub(crate) fn tensor(&self, tensor: &Tensor) -> Result<(), CollectiveError> {
        if !tensor.defined() {
            return Err(self.refuse("the tensor is undefined".into()));
        }
        if !KINDS.contains(&tensor.kind()) {
            return Err(self.refuse(format!("tensors of {:?} cannot be sent", tensor.kind())));
        }
        if !tensor.is_contiguous() {
            return Err(self.refuse(format!("a tensor of shape {:?} is not contiguous", tensor.size())));
        }
        Ok(())
    }

    pub(crate) fn root(&self, root: usize) -> Result<(), CollectiveError> {
        if root >= self.size {
            return Err(self.refuse(format!("there is no rank {root} among {}", self.size)));
        }
        Ok(())
    }

    /// `whole` holds `size` parts of `part`'s elements.
    pub(crate) fn parts(&self, whole: &Tensor, part: &Tensor) -> Result<(), CollectiveError> {
        self.tensor(whole)?;
        self.tensor(part)?;
        if whole.kind() != part.kind() || whole.device() != part.device() {
            return Err(self.refuse(format!(
                "{:?} on {:?} does not go with {:?} on {:?}",
                whole.kind(),
                whole.device(),
                part.kind(),
                part.device()
            )));
        }
        if whole.numel() != part.numel() * self.size {
            return Err(self.refuse(format!(
                "{} ranks x {} elements do not make {}",
                self.size,
                part.numel(),
                whole.numel()
            )));
        }
        Ok(())
    }
}
