//! Optimizers: one fused update per flat buffer of the arena.

mod adam;
mod groups;
mod sgd;

use dtrain_torch_shim::ShimError;
use tch::{TchError, Tensor};
use thiserror::Error;

pub use adam::{Adam, AdamOptions};
pub use dtrain_torch_shim::fused::WeightDecay;
pub use groups::{DecayOn, Group, GroupError, GroupRule, ParameterInfo, assign, matching};
pub use sgd::{Sgd, SgdOptions};

use crate::engine::Arena;

/// The state tensors of an optimizer for one flat buffer: a name such as `exp_avg`, and a tensor laid out like the buffer.
pub type BufferState<'a> = Vec<(&'static str, &'a Tensor)>;

/// An optimizer over an arena.
pub trait Optimizer {
    /// Updates all parameters from their gradients with this step's learning rate.
    ///
    /// # Errors
    /// Where memory runs out.
    fn step(&mut self, arena: &Arena, lr: f64) -> Result<(), OptimError>;

    /// How many steps it has taken.
    fn steps(&self) -> u64;

    /// Its state for buffer number `index` of the arena; the tensors may be copied from and into.
    fn state(&self, index: usize) -> BufferState<'_>;

    /// Continues after `steps` steps whose state has been copied into [`Optimizer::state`].
    fn resume(&mut self, steps: u64);

    /// State tensors per parameter, for memory arithmetic.
    fn moments(&self) -> u64;
}

/// An update that failed.
#[derive(Debug, Error)]
pub enum OptimError {
    /// In the fused kernel.
    #[error(transparent)]
    Kernel(#[from] ShimError),
    /// In a tensor operation.
    #[error(transparent)]
    Torch(#[from] TchError),
}

/// A zeroed tensor like the data of every buffer of the arena.
fn zeros_like(arena: &Arena) -> Result<Vec<Tensor>, TchError> {
    arena
        .buffers()
        .iter()
        .map(|buffer| buffer.data.f_zeros_like())
        .collect()
}
