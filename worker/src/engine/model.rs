//! What is trained, with everything that lies beside its parameters.

use super::arena::Arena;
use super::buffers::Buffers;
use super::ema::{Ema, EmaError};
use super::error::TrainError;
use super::reducer::{ReduceError, gather};
use super::replay::patiently;
use super::stages::Resting;
use crate::collectives::Ranks;
use crate::models::{Recompute, Registry};
use crate::optim::Optimizer;
use crate::tasks::Task;
use tch::Tensor;

/// A model under training.
pub struct Model {
    /// Data, forward pass and loss.
    pub task: Box<dyn Task>,
    /// The model's tensors by name.
    pub registry: Registry,
    /// Which of the model's segments are computed again in backward.
    pub recompute: Recompute,
    /// Trainable parameters and gradients in flat buffers.
    pub arena: Arena,
    /// Running statistics in flat tensors.
    pub buffers: Buffers,
    /// The optimizer over the arena.
    pub optimizer: Box<dyn Optimizer>,
    /// The moving average of parameters and buffers, where the recipe asks for one.
    pub ema: Option<Ema>,
    /// What is frozen now and the average is of all the same.
    pub resting: Vec<Resting>,
}

impl Model {
    /// Moves what the ranks exchange into memory where they do so fastest. Every rank calls it once, before the reducer is
    /// made.
    ///
    /// # Errors
    /// Where a peer is lost or memory runs out.
    pub(crate) fn share(&mut self, ranks: &Ranks) -> Result<(), TrainError> {
        let allocate = |elements, kind| ranks.allocate(elements, kind);
        self.arena.share(allocate)?;
        Ok(self.buffers.share(allocate)?)
    }

    /// The optimizer's state in flat tensors laid out like the arena's buffers, by name. Every rank calls it, as the ranks
    /// hold parts of it where updates are sharded; nothing is copied where they are not.
    ///
    /// # Errors
    /// Where a peer is lost or memory runs out.
    pub fn optimizer_state(&self, ranks: &Ranks) -> Result<Vec<(&'static str, Vec<Tensor>)>, ReduceError> {
        self.optimizer
            .moments()
            .into_iter()
            .map(|(name, parts)| Ok((name, self.whole(ranks, parts)?)))
            .collect()
    }

    /// Moves the average towards the parameters, after an update.
    ///
    /// # Errors
    /// None known.
    pub(super) fn update_average(&mut self) -> Result<(), EmaError> {
        match &mut self.ema {
            Some(ema) => ema.update(live(&self.arena, &self.buffers, &self.resting)),
            None => Ok(()),
        }
    }

    /// Exchanges the parameters with their average, where there is one: before an evaluation, and again after it.
    ///
    /// # Errors
    /// Where memory runs out.
    pub(super) fn swap_average(&mut self) -> Result<(), EmaError> {
        match &mut self.ema {
            Some(ema) => ema.swap(live(&self.arena, &self.buffers, &self.resting)),
            None => Ok(()),
        }
    }

    /// Parts, one for each of the arena's, put together.
    fn whole(&self, ranks: &Ranks, parts: &[Tensor]) -> Result<Vec<Tensor>, ReduceError> {
        if self.arena.shards() == 1 {
            return Ok(parts.iter().map(Tensor::shallow_clone).collect());
        }
        let flats = self
            .arena
            .buffers()
            .iter()
            .map(|buffer| patiently(buffer.data.device(), || buffer.data.f_zeros_like()))
            .collect::<Result<Vec<_>, _>>()?;
        for (part, held) in self.arena.parts().iter().zip(parts) {
            tch::no_grad(|| part.of(&flats[part.buffer])?.f_copy_(held))?;
        }
        gather(ranks, &self.arena, &flats.iter().collect::<Vec<_>>())?;
        Ok(flats)
    }

    /// Lays the parameters out in the order in which their gradients become ready, with all that follows them. Every rank
    /// calls it with the same order, between two steps.
    ///
    /// # Errors
    /// Where a peer is lost or memory runs out.
    pub fn rearrange(&mut self, ranks: &Ranks, order: &[usize]) -> Result<bool, TrainError> {
        let state = self.optimizer_state(ranks)?;
        let device = self.arena.device();
        let Some(rearrangement) = patiently(device, || self.arena.rearrange(order))? else {
            return Ok(false);
        };
        for (moment, (_, old)) in state.into_iter().enumerate() {
            let new = patiently(device, || self.arena.cut(rearrangement.apply(&old)?))?;
            self.optimizer.replace(moment, new);
        }
        if let Some(ema) = &mut self.ema {
            // The buffers' averages come behind those of the parameters, and stay.
            let parameters = &ema.flats()[..self.arena.buffers().len()];
            ema.replace(patiently(device, || rearrangement.apply(parameters))?);
        }
        Ok(true)
    }
}

/// What training moves: the parameters' flat buffers, then those of the running statistics, then what it moved earlier. The
/// ranks begin with the same of it, and the moving average is of it.
pub fn live<'a>(
    arena: &'a Arena,
    buffers: &'a Buffers,
    resting: &'a [Resting],
) -> impl Iterator<Item = &'a Tensor> {
    arena
        .buffers()
        .iter()
        .map(|buffer| &buffer.data)
        .chain(buffers.flats())
        .chain(resting.iter().map(|resting| &resting.flat))
}
