//! What is trained, with everything that lies beside its parameters.

use crate::memory_report::Owners;
use tch::{Device, Tensor};

use super::average::{Average, AverageError};
use super::buffers::Buffers;
use super::layout::Group;
use super::moves::Keep;
use super::stages::Stages;
use super::table::{AVERAGE, Role, Table};
use crate::collectives::Ranks;
use crate::engine::{Place, TrainError};
use crate::models::{Recompute, Registry};
use crate::optim::{self, Optimizer};
use crate::tasks::Task;

/// A model under training.
pub struct Model {
    /// Data, forward pass and loss.
    pub task: Box<dyn Task>,
    /// The model's tensors by name.
    pub registry: Registry,
    /// Which of the model's segments are computed again in backward.
    pub recompute: Recompute,
    /// Parameters, gradients, the optimizer's state and the moving average.
    pub table: Table,
    /// How running statistics move in a step.
    pub buffers: Buffers,
    /// The optimizer of the phase.
    pub optimizer: Optimizer,
    /// The moving average, where the recipe asks for one.
    pub average: Option<Average>,
}

impl Model {
    /// A model laid out for a phase: what is trained in it, and nothing else, asks for gradients from now on.
    ///
    /// # Errors
    /// Where memory runs out.
    pub(crate) fn new(
        task: Box<dyn Task>,
        registry: Registry,
        recompute: Recompute,
        stages: &Stages,
        place: Place,
    ) -> Result<Self, TrainError> {
        let mut table = Table::new(&stages.parameters(place, &registry)?, stages.layout, stages.shard)?;
        let optimizer = optimizer(stages, place, &mut table)?;
        let average = match stages.ema {
            Some(settings) => {
                table.add(AVERAGE)?;
                Some(Average::new(settings.decay, settings.warmup)?)
            }
            None => None,
        };
        Ok(Self {
            buffers: Buffers::new(&table)?,
            task,
            registry,
            recompute,
            table,
            optimizer,
            average,
        })
    }

    /// Moves what the ranks exchange into memory where they do so fastest: on a CPU. Every rank calls it once, before the reducer is
    /// made.
    ///
    /// # Errors
    /// Where a peer is lost or memory runs out.
    pub(crate) fn share(&mut self, ranks: &Ranks) -> Result<(), TrainError> {
        self.share_table(ranks)?;
        if self.table.device() == Device::Cpu {
            self.buffers
                .share(|elements, kind| ranks.allocate(elements, kind))?;
        }
        Ok(())
    }

    fn share_table(&mut self, ranks: &Ranks) -> Result<(), TrainError> {
        if self.table.device() == Device::Cpu {
            self.table
                .share(|elements, kind| ranks.allocate(elements, kind))?;
        }
        Ok(())
    }

    /// Ends a phase: gradients are freed, and the state that is not kept. Every rank calls it, after its reducer has let go of the
    /// table, and then [`Model::enter`].
    ///
    /// # Errors
    /// As tensor operations.
    pub(crate) fn leave(&mut self, keep: Keep) -> Result<(), TrainError> {
        Ok(self.table.leave(keep)?)
    }

    /// Begins the phase `place` with what was kept of the one before.
    ///
    /// # Errors
    /// Where a peer is lost or memory runs out.
    pub(crate) fn enter(&mut self, stages: &Stages, place: Place, ranks: &Ranks) -> Result<(), TrainError> {
        self.table
            .enter(&stages.parameters(place, &self.registry)?, ranks)?;
        self.optimizer = optimizer(stages, place, &mut self.table)?;
        if let (Some(settings), None) = (stages.ema, self.table.column(AVERAGE.name)) {
            self.table.add(AVERAGE)?;
            self.average = Some(Average::new(settings.decay, settings.warmup)?);
        }
        self.share_table(ranks)
    }

    /// Moves the average towards the parameters, after an update.
    ///
    /// # Errors
    /// Where memory runs out.
    pub(crate) fn update_average(&mut self) -> Result<(), AverageError> {
        self.average
            .as_mut()
            .map_or(Ok(()), |average| average.update(&self.table))
    }

    /// Exchanges the parameters with their average, where there is one: before an evaluation, and again after it.
    ///
    /// # Errors
    /// Where memory runs out.
    pub(crate) fn swap_average(&mut self) -> Result<(), AverageError> {
        self.average
            .as_mut()
            .map_or(Ok(()), |average| average.swap(&self.table))
    }

    /// What the model takes whether or not a step is under way.
    pub fn owners(&self) -> Owners {
        let parameters = self.registry.parameters().map(|entry| entry.tensor());
        // Those that are frozen have storage of their own, without gaps.
        let all: u64 = parameters.map(bytes).sum();
        let parameters_in_table = |group| group != Group::Statistics;
        let column = |role: Role| -> u64 {
            let of_role = self.table.columns().filter(|(spec, _)| spec.role == role);
            of_role.flat_map(|(_, held)| held.iter().map(bytes)).sum()
        };
        Owners {
            parameters: self.table.bytes(parameters_in_table) + all
                - self.table.elements_bytes(parameters_in_table),
            gradients: self.table.bytes(Group::is_trained),
            optimizer: column(Role::Moment),
            ema: column(Role::Average),
            buffers: self.buffers.bytes(),
            ..Owners::default()
        }
    }
}

fn optimizer(stages: &Stages, place: Place, table: &mut Table) -> Result<Optimizer, TrainError> {
    let rule = optim::of_recipe(&stages.stage(place).recipe);
    Ok(Optimizer::new(rule, stages.trained(place).groups.clone(), table)?)
}

/// Bytes of a tensor's elements.
fn bytes(tensor: &Tensor) -> u64 {
    tensor.numel() as u64 * tensor.kind().elt_size_in_bytes() as u64
}
