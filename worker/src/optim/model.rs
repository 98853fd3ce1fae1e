//! The model of a rank with its parameters, buffers, optimizer and moving average.

use crate::memory::Owners;
use tch::{Device, Kind, TchError};

use super::{Optimizer, muon_of_recipe, rule_of_recipe};
use crate::collectives::Ranks;
use crate::course::PhaseId;
use crate::models::{Recompute, Registry};
use crate::state::{AVERAGE, Average, Buffers, Group, Role, Stages, StateError, Table};
use crate::tasks::Task;
use crate::tensors::bytes;

pub(crate) struct Model {
    pub(crate) task: Box<dyn Task>,
    pub(crate) registry: Registry,
    /// Segments of the model that backward recomputes.
    pub(crate) recompute: Recompute,
    /// Parameters, gradients, the optimizer's state and the moving average.
    pub(crate) table: Table,
    /// Updates of the running statistics in a step.
    pub(crate) buffers: Buffers,
    pub(crate) optimizer: Optimizer,
    /// The moving average, if the recipe has `[ema]`.
    pub(crate) average: Option<Average>,
}

impl Model {
    /// Lays out a model for a phase. From now on only parameters trained in this phase require gradients.
    pub(crate) fn new(
        task: Box<dyn Task>,
        registry: Registry,
        recompute: Recompute,
        stages: &Stages,
        id: PhaseId,
    ) -> Result<Self, StateError> {
        let mut table = Table::new(&stages.parameters(id, &registry)?, stages.layout, stages.shard)?;
        let optimizer = optimizer(stages, id, &mut table)?;
        let buffers = Buffers::new(&table, &stages.joins)?;
        let mut model = Self { task, registry, recompute, table, buffers, optimizer, average: None };
        model.add_average(stages)?;
        Ok(model)
    }

    /// On a CPU, moves the tensors that ranks exchange into memory where the exchange is fastest. Every rank
    /// calls it once, before it creates the exchange; [`Model::enter_phase`] does it for later phases.
    pub(crate) fn share(&mut self, ranks: &Ranks) -> Result<(), StateError> {
        self.share_table(ranks)?;
        if self.table.device() == Device::Cpu {
            self.buffers.share(|elements, kind| ranks.allocate(elements, kind))?;
        }
        Ok(())
    }

    fn share_table(&mut self, ranks: &Ranks) -> Result<(), StateError> {
        match self.table.device() {
            Device::Cpu => self.table.share(|elements, kind| ranks.allocate(elements, kind)),
            _ => Ok(()),
        }
    }

    /// Enters the phase `id` with the columns that [`Table::leave_phase`] has kept.
    pub(crate) fn enter_phase(
        &mut self,
        stages: &Stages,
        id: PhaseId,
        ranks: &Ranks,
    ) -> Result<(), StateError> {
        self.table.enter_phase(&stages.parameters(id, &self.registry)?, ranks)?;
        self.optimizer = optimizer(stages, id, &mut self.table)?;
        self.add_average(stages)?;
        self.share_table(ranks)
    }

    fn add_average(&mut self, stages: &Stages) -> Result<(), StateError> {
        if let (Some(settings), None) = (stages.ema, self.table.column(AVERAGE.name)) {
            self.table.add_column(AVERAGE)?;
            self.average = Some(Average::new(settings.decay, settings.warmup));
        }
        Ok(())
    }

    /// Makes products in autocast use copies of their weights in this dtype; with None they cast them.
    pub(crate) fn set_shadow(&mut self, kind: Option<Kind>) -> Result<(), TchError> {
        let parameters = self.registry.parameters();
        let slots = parameters.filter_map(|entry| Some((entry.name(), entry.shadow()?)));
        self.table.set_shadow(kind, slots)
    }

    /// Exchanges the parameters with their average, if any. Call it before and after an evaluation.
    pub(crate) fn swap_average(&self) -> Result<(), TchError> {
        self.average.as_ref().map_or(Ok(()), |average| average.swap(&self.table))
    }

    /// Returns the memory that the model takes between steps and in steps.
    pub(crate) fn owners(&self) -> Owners {
        let parameters = self.registry.parameters().map(|entry| bytes(entry.tensor()));
        let shadow = self.table.column_bytes(|role| matches!(role, Role::Shadow(_)));
        let gaps = self.table.gaps(|group| group != Group::Statistics);
        Owners {
            parameters: parameters.sum::<u64>() + gaps + shadow,
            gradients: self.table.bytes(Group::is_trained),
            optimizer: self.table.column_bytes(Role::is_moment),
            ema: self.table.column_bytes(|role| role == Role::Average),
            buffers: self.buffers.bytes(),
            ..Owners::default()
        }
    }
}

fn optimizer(stages: &Stages, id: PhaseId, table: &mut Table) -> Result<Optimizer, StateError> {
    let recipe = &stages.stage(id).recipe;
    let optimizer = Optimizer::new(rule_of_recipe(recipe), stages.trained(id).groups.clone(), table)?;
    let optimizer = optimizer.with_muon(muon_of_recipe(recipe), table)?;
    Ok(optimizer.with_clip_value(recipe.optim.clip_value).with_clip_adaptive(recipe.optim.clip_adaptive))
}
