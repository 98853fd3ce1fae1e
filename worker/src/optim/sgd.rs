//! SGD with momentum and Nesterov's look-ahead, as torch.optim.SGD.

use dtrain_torch_shim::fused;
use tch::{TchError, Tensor};

use super::{BufferState, OptimError, Optimizer, zeros_like};
use crate::engine::Arena;

/// What stays the same over a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdOptions {
    /// Momentum; with 0 there is no state.
    pub momentum: f64,
    /// Nesterov's look-ahead; needs a momentum.
    pub nesterov: bool,
    /// Weight decay, added to the gradient.
    pub weight_decay: f64,
}

/// The optimizer and, with momentum, one buffer per parameter.
#[derive(Debug)]
pub struct Sgd {
    options: SgdOptions,
    momentum: Vec<Tensor>,
    steps: u64,
}

impl Sgd {
    /// Makes the momentum buffers, where there is a momentum.
    ///
    /// # Errors
    /// Where memory runs out.
    pub fn new(arena: &Arena, options: SgdOptions) -> Result<Self, TchError> {
        let momentum = if options.momentum == 0.0 {
            Vec::new()
        } else {
            zeros_like(arena)?
        };
        Ok(Self {
            options,
            momentum,
            steps: 0,
        })
    }
}

impl Optimizer for Sgd {
    fn step(&mut self, arena: &Arena, lr: f64) -> Result<(), OptimError> {
        let SgdOptions {
            momentum,
            nesterov,
            weight_decay,
        } = self.options;
        let figures = fused::Sgd {
            lr,
            momentum,
            weight_decay,
            nesterov,
            first_step: self.steps == 0,
        };
        for (index, buffer) in arena.buffers().iter().enumerate() {
            fused::sgd(&buffer.data, &buffer.grad, self.momentum.get(index), figures)?;
        }
        self.steps += 1;
        Ok(())
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn state(&self, index: usize) -> BufferState<'_> {
        self.momentum
            .get(index)
            .map(|buffer| ("momentum", buffer))
            .into_iter()
            .collect()
    }

    fn resume(&mut self, steps: u64) {
        self.steps = steps;
    }

    fn moments(&self) -> u64 {
        u64::from(self.options.momentum != 0.0)
    }
}
