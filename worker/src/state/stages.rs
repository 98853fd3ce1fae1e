//! Stages and their phases: what is trained in each, and what is made anew where another begins.
//!
//! Nothing is handed on that could be forgotten: learning rates are a function of the step's number, and the rest of a phase (the
//! table, the hooks, the optimizer) is built from the recipe and the registry in the same way at the start of a run, at a boundary
//! within it, and when it is resumed. What goes on over a boundary is named: the rows' values, the moving average, and, where something
//! is only unfrozen, the optimizer's state of what was trained before.

use dtrain_common::recipe::{Ema as EmaSettings, Passage, Recipe};
use tch::TchError;

use super::layout::{Group, LayoutOptions};
use super::table::Parameter;
use crate::models::{Entry, Registry};
use crate::optim::GroupOptions;
use crate::run::plan::Place;

/// What is trained in a phase, and with which settings.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Trained {
    /// For every parameter of the model, in the order of construction: the number of its group, or None where it is frozen.
    pub(crate) group_of: Vec<Option<usize>>,
    pub(crate) groups: Vec<GroupOptions>,
}

#[derive(Debug, Clone)]
pub(crate) struct Stage {
    pub(crate) recipe: Recipe,
    /// Whether the moving average goes on from the stage before.
    pub(crate) ema: Passage,
    /// Whether checkpoints are compared with those of the stage before.
    pub(crate) best: Passage,
    /// Its phases, as the plan has them; at least one.
    pub(crate) phases: Vec<Trained>,
}

/// All stages of a run, and what is the same in all of them.
#[derive(Debug, Clone)]
pub(crate) struct Stages {
    /// In their order, as the plan has them; at least one.
    pub(crate) stages: Vec<Stage>,
    pub(crate) layout: LayoutOptions,
    /// Which part of it is updated here.
    pub(crate) shard: usize,
    /// The moving average, where the recipe asks for one.
    pub(crate) ema: Option<EmaSettings>,
}

impl Trained {
    pub(crate) fn count(&self, registry: &Registry) -> u64 {
        std::iter::zip(registry.parameters(), &self.group_of)
            .filter(|(_, group)| group.is_some())
            .map(|(entry, _)| entry.elements() as u64)
            .sum()
    }
}

impl Stages {
    pub(crate) fn stage(&self, place: Place) -> &Stage {
        &self.stages[place.stage]
    }

    pub(crate) fn trained(&self, place: Place) -> &Trained {
        &self.stage(place).phases[place.phase]
    }

    /// The rows of a phase: what is trained in it, what rests, and the model's buffers. What is trained, and nothing else, asks for
    /// gradients from now on.
    pub(crate) fn parameters<'a>(
        &self,
        place: Place,
        registry: &'a Registry,
    ) -> Result<Vec<Parameter<'a>>, TchError> {
        let group_of = &self.trained(place).group_of;
        for (entry, group) in registry.parameters().zip(group_of) {
            let _ = entry.tensor().f_set_requires_grad(group.is_some())?;
        }
        let parameter = |(entry, group): (&'a Entry, Group)| Parameter {
            name: entry.name(),
            tensor: entry.tensor(),
            group,
        };
        let trained = registry.parameters().zip(group_of);
        let trained = trained.filter_map(|(entry, group)| Some((entry, Group::Trained((*group)?))));
        let resting = registry.parameters().zip(self.resting(place));
        let resting = resting.filter_map(|(entry, rests)| rests.then_some((entry, Group::Resting)));
        let statistics = registry.buffers().map(|entry| (entry, Group::Statistics));
        Ok(trained.chain(resting).chain(statistics).map(parameter).collect())
    }

    /// For every parameter whether it rests in a phase: it was trained since the moving average began, and is frozen. None does without
    /// an average.
    fn resting(&self, place: Place) -> Vec<bool> {
        let now = &self.trained(place).group_of;
        if self.ema.is_none() {
            return vec![false; now.len()];
        }
        let restarts = |stage: &Stage| stage.ema == Passage::Restart;
        let so_far = &self.stages[..=place.stage];
        let began = so_far.iter().rposition(restarts).unwrap_or(0);
        let was_trained = |number: usize| {
            (began..=place.stage).any(|stage| {
                let phases = &self.stages[stage].phases;
                let earlier = if stage == place.stage { place.phase } else { phases.len() };
                phases[..earlier].iter().any(|phase| phase.group_of[number].is_some())
            })
        };
        let rests = |number: usize| now[number].is_none() && was_trained(number);
        (0..now.len()).map(rests).collect()
    }
}
