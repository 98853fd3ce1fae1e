//! One tensor of a model.

use tch::Tensor;

use crate::error::ModelError;
use crate::frozen::FrozenAs;
use crate::weight::Shadow;

/// Whether a tensor is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Trained: it has a gradient, and the optimizer updates it.
    Parameter,
    /// Part of the model's state, but not trained: running statistics and counters.
    Buffer,
}

/// One named tensor of a model.
#[derive(Debug)]
pub struct Entry {
    pub(super) name: String,
    pub(super) tensor: Tensor,
    pub(super) role: Role,
    pub(super) shadow: Option<Shadow>,
    pub(crate) is_frozen: bool,
    pub(super) is_held: bool,
    pub(crate) is_base: bool,
    pub(super) frozen: Option<FrozenAs>,
    pub(super) scale: Option<Tensor>,
}

impl Entry {
    /// Returns the full name in PyTorch's style, such as `layer1.0.conv1.weight`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the tensor that the layer uses, not a copy.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Returns its role.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Returns the slot for its values in autocast's dtype, if the layer can use them: see `Scope::weight`.
    pub fn shadow(&self) -> Option<&Shadow> {
        self.shadow.as_ref()
    }

    /// Returns whether the model itself does not train this parameter; stages may unfreeze it.
    pub fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// Returns whether it is a buffer that PyTorch's files lack: not persistent, but written in training.
    pub fn is_held(&self) -> bool {
        self.is_held
    }

    /// Returns whether it is a parameter that this run does not train and its checkpoints lack: see `Registry::set_base`.
    pub fn is_base(&self) -> bool {
        self.is_base
    }

    /// Returns how it is held, if it has fewer bytes than float32: see `Registry::frozen`.
    pub fn frozen(&self) -> Option<FrozenAs> {
        self.frozen
    }

    /// Returns the float32 factors of the rows of an int8 weight.
    pub fn scale(&self) -> Option<&Tensor> {
        self.scale.as_ref()
    }

    /// Sets the values of a weight that is held in fewer bytes.
    pub(crate) fn set_frozen(&self, frozen: FrozenAs, values: &Tensor) -> Result<(), ModelError> {
        let (values, scale) = frozen.of(values)?;
        tch::no_grad(|| self.tensor.shallow_clone().f_copy_(&values))?;
        if let (Some(own), Some(scale)) = (&self.scale, scale) {
            own.shallow_clone().f_copy_(&scale)?;
        }
        Ok(())
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.tensor.numel()
    }
}
