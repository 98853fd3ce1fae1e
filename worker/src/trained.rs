//! Which of a model's parameters are trained, and in which optimizer group each of them is.

use dtrain_common::recipe::{Decay, Recipe};

use super::error::WorkerError;
use crate::engine::Parameter;
use crate::models::{Entry, Registry};
use crate::optim::{DecayOn, GroupOptions, GroupRule, ParameterInfo, assign, matching};

/// The trained parameters by their number in the order of construction, and their groups.
pub(crate) struct Trained {
    /// For every parameter of the model: the number of its group, or None where it is frozen.
    group_of: Vec<Option<usize>>,
    /// What each group has of its own.
    pub(crate) groups: Vec<GroupOptions>,
}

impl Trained {
    /// As the recipe's `model.freeze` and `optim.group` say. Frozen parameters no longer require a gradient.
    pub(crate) fn of(recipe: &Recipe, registry: &Registry) -> Result<Self, WorkerError> {
        let entries: Vec<&Entry> = registry.parameters().collect();
        let names: Vec<&str> = entries.iter().map(|entry| entry.name()).collect();
        let infos: Vec<ParameterInfo<'_>> = entries
            .iter()
            .map(|entry| ParameterInfo {
                name: entry.name(),
                dims: entry.tensor().dim(),
            })
            .collect();
        let rules: Vec<GroupRule> = recipe
            .optim
            .group
            .iter()
            .map(|group| GroupRule {
                patterns: group.patterns.clone(),
                lr_factor: group.lr_factor,
                weight_decay: group.weight_decay,
            })
            .collect();
        let decay_on = match recipe.optim.decay {
            Decay::All => DecayOn::All,
            Decay::Weights => DecayOn::Weights,
        };
        let weight_decay = recipe.optim.weight_decay.unwrap_or(0.0);
        let at = |key| move |source| WorkerError::Globs { key, source };
        let groups = assign(&infos, &rules, weight_decay, decay_on).map_err(at("optim.group"))?;
        let frozen = matching(&names, &recipe.model.freeze).map_err(at("model.freeze"))?;
        if frozen.iter().all(|&frozen| frozen) {
            return Err(WorkerError::AllFrozen);
        }

        let mut group_of = vec![None; names.len()];
        let mut options = Vec::new();
        for group in groups {
            let trained: Vec<usize> = group
                .members
                .iter()
                .copied()
                .filter(|&member| !frozen[member])
                .collect();
            if trained.is_empty() {
                continue;
            }
            for member in trained {
                group_of[member] = Some(options.len());
            }
            options.push(GroupOptions {
                lr_factor: group.lr_factor,
                weight_decay: group.weight_decay,
            });
        }
        for (entry, frozen) in entries.iter().zip(frozen) {
            if frozen {
                let _ = entry.tensor().f_set_requires_grad(false)?;
            }
        }
        Ok(Self {
            group_of,
            groups: options,
        })
    }

    /// What goes into the arena.
    pub(crate) fn parameters<'a>(&self, registry: &'a Registry) -> Vec<Parameter<'a>> {
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
}
