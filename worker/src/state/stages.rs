//! Stages and their phases: the parameters that each trains, and the state that each creates anew.
//!
//! Learning rates are a function of the step's number. The rest of a phase (table, hooks, optimizer) is built
//! from the recipe and the registry, in the same way at the start of a run, at a boundary and on resume.
//! Across a boundary only three things continue: the rows' values, the moving average, and, if the boundary
//! only unfreezes parameters, the optimizer's state of the parameters trained before.

use std::collections::BTreeMap;

use dtrain_recipe::{AtStageStart, Ema as EmaSettings, Join, Recipe};
use tch::TchError;

use super::group_options::GroupOptions;
use super::layout::{Group, LayoutOptions};
use super::table::Parameter;
use crate::course::PhaseId;
use crate::models::{Entry, Registry};

/// The parameters that a phase trains, with their settings.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Trained {
    /// For every parameter of the model, in the order of construction: its group's number; None if frozen.
    pub(crate) group_of: Vec<Option<usize>>,
    pub(crate) groups: Vec<GroupOptions>,
}

#[derive(Debug, Clone)]
pub(crate) struct Stage {
    pub(crate) recipe: Recipe,
    /// Whether the moving average continues from the previous stage.
    pub(crate) ema: AtStageStart,
    /// Whether checkpoints are compared with those of the previous stage.
    pub(crate) best: AtStageStart,
    /// Phases of the stage, as in the plan; at least one.
    pub(crate) phases: Vec<Trained>,
}

/// All stages of a run, and their common settings.
#[derive(Debug, Clone)]
pub(crate) struct Stages {
    /// Stages in order, as in the plan; at least one.
    pub(crate) stages: Vec<Stage>,
    pub(crate) layout: LayoutOptions,
    /// The shard that this rank updates.
    pub(crate) shard: usize,
    /// The moving average, if the recipe has `[ema]`.
    pub(crate) ema: Option<EmaSettings>,
    /// How buffers are joined, if not as usual: `model.state`.
    pub(crate) joins: BTreeMap<String, Join>,
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
    pub(crate) fn stage(&self, id: PhaseId) -> &Stage {
        &self.stages[id.stage]
    }

    pub(crate) fn trained(&self, id: PhaseId) -> &Trained {
        &self.stage(id).phases[id.phase]
    }

    /// Returns the rows of a phase: trained parameters, resting parameters, buffers. From now on only trained
    /// parameters require gradients.
    pub(crate) fn parameters<'a>(
        &self,
        id: PhaseId,
        registry: &'a Registry,
    ) -> Result<Vec<Parameter<'a>>, TchError> {
        let Trained { group_of, groups } = self.trained(id);
        for (entry, group) in registry.parameters().zip(group_of) {
            let _ = entry.tensor().f_set_requires_grad(group.is_some())?;
        }
        let parameter = |(entry, group): (&'a Entry, Group)| Parameter {
            name: entry.name(),
            tensor: entry.tensor(),
            group,
        };
        let trained = registry.parameters().zip(group_of);
        let of = |number: usize| Group::trained(number, groups[number].is_matrix);
        let trained = trained.filter_map(|(entry, group)| Some((entry, of((*group)?))));
        let resting = registry.parameters().zip(self.resting(id));
        let resting = resting.filter_map(|(entry, rests)| rests.then_some((entry, Group::Resting)));
        let statistics = registry.buffers().map(|entry| (entry, Group::Statistics));
        Ok(trained.chain(resting).chain(statistics).map(parameter).collect())
    }

    /// Returns for every parameter whether it rests in a phase: it was trained since the moving average
    /// began, and is frozen now. All are false without an average.
    fn resting(&self, id: PhaseId) -> Vec<bool> {
        let now = &self.trained(id).group_of;
        if self.ema.is_none() {
            return vec![false; now.len()];
        }
        let restarts = |stage: &Stage| stage.ema == AtStageStart::Restart;
        let so_far = &self.stages[..=id.stage];
        let began = so_far.iter().rposition(restarts).unwrap_or(0);
        let was_trained = |number: usize| {
            (began..=id.stage).any(|stage| {
                let phases = &self.stages[stage].phases;
                let earlier = if stage == id.stage { id.phase } else { phases.len() };
                phases[..earlier].iter().any(|phase| phase.group_of[number].is_some())
            })
        };
        let rests = |number: usize| now[number].is_none() && was_trained(number);
        (0..now.len()).map(rests).collect()
    }
}
