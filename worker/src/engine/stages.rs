//! Stages and their phases: what is trained in each, and what is made anew where another begins.
//!
//! Nothing is handed on that could be forgotten: learning rates are a function of the step's number, and the rest of a phase (the
//! arena, the hooks, the optimizer) is built from the recipe and the registry in the same way at the start of a run, at a boundary
//! within it, and when it is resumed. What goes on over a boundary is named: the parameters' values, the running statistics, the
//! moving average, and, where something is only unfrozen, the optimizer's state of what was trained before.

mod enter;
mod pass;

use dtrain_common::recipe::{Ema as EmaSettings, Passage, Recipe};
use tch::{TchError, Tensor};

use super::arena::{Arena, ArenaError, LayoutOptions, Parameter, Slot};
use super::plan::{PhaseFile, PhasePlan, Place, RunPlan, StageFile, StagePlan};
use crate::models::{Entry, Registry};
use crate::optim::{self, GroupOptions, Optimizer};

/// What is trained in a phase, and with which settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Trained {
    /// For every parameter of the model, in the order of construction: the number of its group, or None where it is frozen.
    pub group_of: Vec<Option<usize>>,
    /// What each group has of its own.
    pub groups: Vec<GroupOptions>,
}

/// A stage of the run.
#[derive(Debug, Clone)]
pub struct Stage {
    /// Its recipe, see [`Recipe::of_stage`].
    pub recipe: Recipe,
    /// Whether the moving average goes on from the stage before.
    pub ema: Passage,
    /// Whether checkpoints are compared with those of the stage before.
    pub best: Passage,
    /// Its phases, as the plan has them; at least one.
    pub phases: Vec<Trained>,
}

/// All stages of a run, and what is the same in all of them.
#[derive(Debug, Clone)]
pub struct Stages {
    /// In their order, as the plan has them; at least one.
    pub stages: Vec<Stage>,
    /// How the arena is laid out.
    pub layout: LayoutOptions,
    /// Which part of it is updated here.
    pub shard: usize,
    /// The moving average, where the recipe asks for one.
    pub ema: Option<EmaSettings>,
}

/// A parameter that is frozen now and was trained earlier: its moving average still moves towards it.
#[derive(Debug)]
pub struct Resting {
    /// Its name, shape and strides; it lies at the beginning of `flat`.
    pub slot: Slot,
    /// The storage of the leaf that the layers hold, as a flat tensor.
    pub flat: Tensor,
}

impl Trained {
    /// What goes into the arena.
    pub fn parameters<'a>(&self, registry: &'a Registry) -> Vec<Parameter<'a>> {
        std::iter::zip(registry.parameters(), &self.group_of)
            .filter_map(|(entry, group)| {
                group.map(|group| Parameter {
                    name: entry.name(),
                    tensor: entry.tensor(),
                    group,
                })
            })
            .collect()
    }

    /// How many parameters are trained, element by element.
    pub fn count(&self, registry: &Registry) -> u64 {
        self.parameters(registry)
            .iter()
            .map(|parameter| parameter.tensor.numel() as u64)
            .sum()
    }
}

impl Stages {
    /// A stage.
    pub fn stage(&self, place: Place) -> &Stage {
        &self.stages[place.stage]
    }

    /// What is trained in a phase.
    pub fn trained(&self, place: Place) -> &Trained {
        &self.stage(place).phases[place.phase]
    }

    /// The stages as plan.json has them; none in a run without.
    pub fn files(&self, plan: &RunPlan, registry: &Registry) -> Vec<StageFile> {
        let staged = plan.stages().iter().zip(&self.stages);
        let file = |(of, stage): (&StagePlan, &Stage)| {
            let phase = |(of, trained): (&PhasePlan, &Trained)| PhaseFile {
                first_step: of.steps.start + 1,
                parameters: trained.count(registry),
            };
            Some(StageFile {
                name: of.name.clone()?,
                steps: [of.steps.start + 1, of.steps.end],
                effective_batch: of.partition.effective_batch(),
                micro_batch: of.partition.micro_batch(),
                grad_accum_steps: of.partition.grad_accum_steps(),
                partition: of.partition.to_string(),
                learning_rate: of.schedule.peak,
                steps_per_epoch: of.steps_per_epoch,
                phases: of.phases.iter().zip(&stage.phases).map(phase).collect(),
            })
        };
        staged.filter_map(file).collect()
    }

    /// The arena of a phase: what is trained in it, and nothing else, asks for gradients from now on. The parameters lie in
    /// no other arena.
    ///
    /// # Errors
    /// As [`Arena::with_layout`].
    pub fn arena(&self, place: Place, registry: &Registry) -> Result<Arena, ArenaError> {
        let trained = self.trained(place);
        for (entry, group) in registry.parameters().zip(&trained.group_of) {
            let _ = entry.tensor().f_set_requires_grad(group.is_some())?;
        }
        Arena::with_layout(&trained.parameters(registry), self.layout, self.shard)
    }

    /// A new optimizer over the arena of a phase.
    ///
    /// # Errors
    /// Where memory runs out.
    pub fn optimizer(&self, place: Place, arena: &Arena) -> Result<Box<dyn Optimizer>, TchError> {
        let stage = self.stage(place);
        optim::of_recipe(&stage.recipe, arena, self.trained(place).groups.clone())
    }

    /// What rests in a phase: what was trained since the moving average began, and is frozen; nothing without an average.
    ///
    /// # Errors
    /// Where a parameter is not dense.
    pub fn resting(&self, place: Place, registry: &Registry) -> Result<Vec<Resting>, TchError> {
        if self.ema.is_none() {
            return Ok(Vec::new());
        }
        let began = self.stages[..=place.stage]
            .iter()
            .rposition(|stage| stage.ema == Passage::Restart)
            .unwrap_or(0);
        let earlier: Vec<&Trained> = self.stages[began..=place.stage]
            .iter()
            .enumerate()
            .flat_map(|(index, stage)| {
                let here = began + index == place.stage;
                let phases = if here { place.phase } else { stage.phases.len() };
                &stage.phases[..phases]
            })
            .collect();
        let now = &self.trained(place).group_of;
        let rests = |number: &usize| {
            now[*number].is_none() && earlier.iter().any(|phase| phase.group_of[*number].is_some())
        };
        let entries: Vec<&Entry> = registry.parameters().collect();
        let rest = |number: usize| {
            let (name, tensor) = (entries[number].name(), entries[number].tensor());
            let slot = Slot {
                parameter: number,
                name: name.to_owned(),
                offset: 0,
                shape: tensor.size(),
                strides: tensor.stride(),
            };
            let flat = tensor.f_detach()?.f_as_strided([slot.len()], [1i64], None)?;
            Ok(Resting { slot, flat })
        };
        (0..now.len()).filter(rests).map(rest).collect()
    }
}
