//! Adam (Kingma and Ba 2015, arXiv 1412.6980) and AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101), as torch.optim.Adam
//! and torch.optim.AdamW. They differ only in how weight decay enters.

use dtrain_torch_shim::fused::{self, WeightDecay};
use tch::{TchError, Tensor};

use super::{BufferState, OptimError, Optimizer, zeros_like};
use crate::engine::Arena;

/// What stays the same over a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamOptions {
    /// Decay of the mean and of the mean square of the gradient.
    pub betas: (f64, f64),
    /// Added to the root of the mean square.
    pub eps: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// How it enters: [`WeightDecay::Decoupled`] makes this AdamW, [`WeightDecay::L2`] Adam.
    pub decay: WeightDecay,
}

/// The optimizer and its two moments per parameter.
#[derive(Debug)]
pub struct Adam {
    options: AdamOptions,
    exp_avg: Vec<Tensor>,
    exp_avg_sq: Vec<Tensor>,
    steps: u64,
}

impl Adam {
    /// Makes the moments, zero, for every buffer of the arena.
    ///
    /// # Errors
    /// Where memory runs out.
    pub fn new(arena: &Arena, options: AdamOptions) -> Result<Self, TchError> {
        Ok(Self {
            options,
            exp_avg: zeros_like(arena)?,
            exp_avg_sq: zeros_like(arena)?,
            steps: 0,
        })
    }
}

impl Optimizer for Adam {
    fn step(&mut self, arena: &Arena, lr: f64) -> Result<(), OptimError> {
        let AdamOptions {
            betas,
            eps,
            weight_decay,
            decay,
        } = self.options;
        let figures = fused::Adam {
            lr,
            betas,
            weight_decay,
            decay,
            eps,
        };
        let count = self.steps + 1;
        for (index, buffer) in arena.buffers().iter().enumerate() {
            let step = Tensor::f_from_slice(&[count as f32])?
                .f_to_device(buffer.data.device())?
                .f_squeeze()?;
            let (first, second) = (&self.exp_avg[index], &self.exp_avg_sq[index]);
            fused::adam(&buffer.data, &buffer.grad, first, second, &step, figures)?;
        }
        self.steps = count;
        Ok(())
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn state(&self, index: usize) -> BufferState<'_> {
        vec![
            ("exp_avg", &self.exp_avg[index]),
            ("exp_avg_sq", &self.exp_avg_sq[index]),
        ]
    }

    fn resume(&mut self, steps: u64) {
        self.steps = steps;
    }

    fn moments(&self) -> u64 {
        2
    }
}
