//! SGD with momentum and Nesterov's look-ahead, as torch.optim.SGD.

use dtrain_torch_shim::fused::{self, Found};
use tch::{TchError, Tensor};

use super::adam::{count, discount};
use super::runs::runs;
use super::{GroupOptions, Moment, OptimError, Optimizer, zeros_like};
use crate::engine::{Arena, patiently};

/// What stays the same over a run.
#[derive(Debug, Clone, PartialEq)]
pub struct SgdOptions {
    /// Momentum; with 0 there is no state.
    pub momentum: f64,
    /// Nesterov's look-ahead; needs a momentum.
    pub nesterov: bool,
    /// Factor and decay (added to the gradient) of every optimizer group of the arena.
    pub groups: Vec<GroupOptions>,
}

/// The optimizer and, with momentum, one buffer per parameter.
#[derive(Debug)]
pub struct Sgd {
    options: SgdOptions,
    momentum: Vec<Tensor>,
    steps: Vec<u64>,
}

impl Sgd {
    /// Makes the momentum buffers, where there is a momentum, for every part of the arena that is updated here.
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
            steps: vec![0; arena.leaves().len()],
        })
    }
}

impl Optimizer for Sgd {
    fn step_unless(
        &mut self,
        arena: &Arena,
        lr: f64,
        used: &[bool],
        found: Option<Found<'_>>,
    ) -> Result<(), OptimError> {
        let device = arena.device();
        for (index, part) in arena.parts().iter().enumerate() {
            let buffer = &arena.buffers()[part.buffer];
            let group = self.options.groups[buffer.group];
            for run in runs(part, &buffer.slots, &self.steps, used) {
                let (start, len) = (run.range.start, run.range.end - run.range.start);
                let figures = fused::Sgd {
                    lr: lr * group.lr_factor,
                    momentum: self.options.momentum,
                    nesterov: self.options.nesterov,
                    weight_decay: group.weight_decay,
                    first_step: run.steps == 0,
                };
                let momentum = self
                    .momentum
                    .get(index)
                    .map(|whole| whole.f_narrow(0, start - part.range.start, len))
                    .transpose()?;
                let data = buffer.data.f_narrow(0, start, len)?;
                let grad = buffer.grad.f_narrow(0, start, len)?;
                patiently(device, || {
                    fused::sgd(&data, &grad, momentum.as_ref(), found, figures)
                })?;
            }
        }
        count(&mut self.steps, used);
        Ok(())
    }

    fn take_back(&mut self, used: &[bool]) {
        discount(&mut self.steps, used);
    }

    fn steps(&self) -> &[u64] {
        &self.steps
    }

    fn moments(&self) -> Vec<Moment<'_>> {
        match self.momentum.as_slice() {
            [] => Vec::new(),
            momentum => vec![("momentum_buffer", momentum)],
        }
    }

    fn replace(&mut self, _moment: usize, parts: Vec<Tensor>) {
        self.momentum = parts;
    }

    fn resume(&mut self, steps: Vec<u64>) {
        self.steps = steps;
    }
}
