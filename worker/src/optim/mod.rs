//! Optimizers: one fused update per range of the arena.

mod adam;
mod groups;
mod recipe;
mod runs;
mod sgd;

use dtrain_torch_shim::ShimError;
use tch::{TchError, Tensor};
use thiserror::Error;

pub use adam::{Adam, AdamOptions};
pub use dtrain_torch_shim::fused::{Found, WeightDecay};
pub use groups::{DecayOn, Group, GroupError, GroupRule, ParameterInfo, assign, group, matching, owners};
pub use recipe::of_recipe;
pub use sgd::{Sgd, SgdOptions};

use crate::engine::Arena;

/// What the parameters of one optimizer group have of their own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupOptions {
    /// Multiplies the learning rate.
    pub lr_factor: f64,
    /// Weight decay.
    pub weight_decay: f64,
}

impl GroupOptions {
    /// The recipe's learning rate as it is, and this weight decay.
    pub fn plain(weight_decay: f64) -> Self {
        Self {
            lr_factor: 1.0,
            weight_decay,
        }
    }
}

/// A state of every parameter that is updated here: a name such as `exp_avg`, and one tensor per part of the arena.
pub type Moment<'a> = (&'static str, &'a [Tensor]);

/// An optimizer over the parts of an arena that this rank updates.
pub trait Optimizer {
    /// Updates the parameters that `used` marks (by their number in the order of construction) from their gradients with this
    /// step's learning rate. The others, which no rank had a gradient for, stay as they are, as does their state: torch
    /// passes over a parameter without a gradient too.
    ///
    /// # Errors
    /// Where memory runs out.
    fn step(&mut self, arena: &Arena, lr: f64, used: &[bool]) -> Result<(), OptimError> {
        self.step_unless(arena, lr, used, None)
    }

    /// As [`Optimizer::step`], with the gradients divided by what the device has found, and nothing changed where it says so: the host
    /// does not know of it, counts the update, and calls [`Optimizer::take_back`] when it learns that there was none.
    ///
    /// # Errors
    /// As [`Optimizer::step`].
    fn step_unless(
        &mut self,
        arena: &Arena,
        lr: f64,
        used: &[bool],
        found: Option<Found<'_>>,
    ) -> Result<(), OptimError>;

    /// The last update of the parameters that `used` marks was none.
    fn take_back(&mut self, used: &[bool]);

    /// How many updates each parameter has had, in the order of construction.
    fn steps(&self) -> &[u64];

    /// Its state; the tensors may be copied from and into.
    fn moments(&self) -> Vec<Moment<'_>>;

    /// Puts the state of a moment, as [`Optimizer::moments`] lists them, in place of what it had: after the arena was laid out
    /// anew.
    fn replace(&mut self, moment: usize, parts: Vec<Tensor>);

    /// Continues after so many updates of each parameter, whose state has been copied into [`Optimizer::moments`].
    fn resume(&mut self, steps: Vec<u64>);
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

/// A zeroed tensor for every part that is updated here.
fn zeros_like(arena: &Arena) -> Result<Vec<Tensor>, TchError> {
    arena
        .parts()
        .iter()
        .map(|part| part.of(&arena.buffers()[part.buffer].data)?.f_zeros_like())
        .collect()
}
