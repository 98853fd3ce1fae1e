//! Adam (Kingma and Ba 2015, arXiv 1412.6980) and AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101), as torch.optim.Adam
//! and torch.optim.AdamW. They differ only in how weight decay enters.

use dtrain_torch_shim::fused::{self, Found, WeightDecay};
use tch::{Kind, TchError, Tensor};

use super::runs::runs;
use super::{GroupOptions, Moment, OptimError, Optimizer, zeros_like};
use crate::engine::{Arena, patiently};

/// What stays the same over a run.
#[derive(Debug, Clone, PartialEq)]
pub struct AdamOptions {
    /// Decay of the mean and of the mean square of the gradient.
    pub betas: (f64, f64),
    /// Added to the root of the mean square.
    pub eps: f64,
    /// How weight decay enters: [`WeightDecay::Decoupled`] makes this AdamW, [`WeightDecay::L2`] Adam.
    pub decay: WeightDecay,
    /// Factor and decay of every optimizer group of the arena.
    pub groups: Vec<GroupOptions>,
}

/// The optimizer and its two moments per parameter.
#[derive(Debug)]
pub struct Adam {
    options: AdamOptions,
    exp_avg: Vec<Tensor>,
    exp_avg_sq: Vec<Tensor>,
    steps: Vec<u64>,
    /// The number of the update as the kernel takes it: on the device, and there before any update, which takes no memory so.
    step: Tensor,
}

impl Adam {
    /// Makes the moments, zero, for every part of the arena that is updated here.
    ///
    /// # Errors
    /// Where memory runs out.
    pub fn new(arena: &Arena, options: AdamOptions) -> Result<Self, TchError> {
        Ok(Self {
            options,
            exp_avg: zeros_like(arena)?,
            exp_avg_sq: zeros_like(arena)?,
            steps: vec![0; arena.leaves().len()],
            step: Tensor::f_scalar_tensor(0.0, (Kind::Float, arena.device()))?,
        })
    }
}

impl Optimizer for Adam {
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
            let figures = fused::Adam {
                lr: lr * group.lr_factor,
                betas: self.options.betas,
                weight_decay: group.weight_decay,
                decay: self.options.decay,
                eps: self.options.eps,
            };
            for run in runs(part, &buffer.slots, &self.steps, used) {
                let (start, len) = (run.range.start, run.range.end - run.range.start);
                let here = start - part.range.start;
                let _ = tch::no_grad(|| self.step.f_fill_((run.steps + 1) as f64))?;
                let data = buffer.data.f_narrow(0, start, len)?;
                let grad = buffer.grad.f_narrow(0, start, len)?;
                let exp_avg = self.exp_avg[index].f_narrow(0, here, len)?;
                let exp_avg_sq = self.exp_avg_sq[index].f_narrow(0, here, len)?;
                patiently(device, || {
                    fused::adam(&data, &grad, &exp_avg, &exp_avg_sq, &self.step, found, figures)
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
        vec![("exp_avg", &self.exp_avg), ("exp_avg_sq", &self.exp_avg_sq)]
    }

    fn replace(&mut self, moment: usize, parts: Vec<Tensor>) {
        match moment {
            0 => self.exp_avg = parts,
            _ => self.exp_avg_sq = parts,
        }
    }

    fn resume(&mut self, steps: Vec<u64>) {
        self.steps = steps;
    }
}

/// Counts an update of the parameters that had one.
pub(super) fn count(steps: &mut [u64], used: &[bool]) {
    for (steps, used) in steps.iter_mut().zip(used) {
        *steps += u64::from(*used);
    }
}

/// Counts it no more.
pub(super) fn discount(steps: &mut [u64], used: &[bool]) {
    for (steps, used) in steps.iter_mut().zip(used) {
        *steps -= u64::from(*used);
    }
}
