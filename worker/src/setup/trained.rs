//! Determines the trained parameters and their optimizer groups for every phase of a run. All phases are
//! checked before the first step, so that a mistake in a late stage ends the run before it begins.

use std::iter::zip;

use dtrain_common::env::WorkerEnv;
use dtrain_recipe::{self as recipe, AtStageStart, ModelName, OptimGroup, OptimName, Recipe};

use crate::course::{PhasePlan, RunPlan};
use crate::models::{Entry, Registry};
use crate::optim::{
    BesideMuon, GroupError, Inherited, ParameterInfo, assign_groups, layer_factors, match_names, match_rules,
    matrices,
};
use crate::setup::error::{Result, WorkerError};
use crate::state::{LayoutOptions, Stage, Stages, Trained};

/// Returns the trained parameters of every phase, and the settings that all phases share.
pub(crate) fn stages(
    recipe: &Recipe,
    registry: &Registry,
    plan: &RunPlan,
    env: &WorkerEnv,
) -> Result<Stages> {
    let layout = LayoutOptions {
        first_bucket_bytes: recipe.reduce.first_bucket.0 as usize,
        bucket_bytes: recipe.reduce.bucket.0 as usize,
        shards: if recipe.memory.shard_optimizer { env.world_size } else { 1 },
        whole_rows: recipe.optim.clip_adaptive.is_some(),
    };
    let at_start = |number: usize, of: fn(&recipe::Stage) -> AtStageStart| {
        recipe.stage.get(number).map_or(AtStageStart::Continue, of)
    };
    let stage = |(number, phases): (usize, Vec<Trained>)| Stage {
        recipe: recipe.of_stage(number),
        ema: at_start(number, |stage| stage.ema),
        best: at_start(number, |stage| stage.best),
        phases,
    };
    let phases = phases(recipe, registry, plan)?;
    Ok(Stages {
        stages: phases.into_iter().enumerate().map(stage).collect(),
        layout,
        shard: if layout.shards > 1 { env.rank } else { 0 },
        ema: recipe.ema,
        joins: recipe.model.state.clone(),
    })
}

/// Returns the trained parameters of every phase of every stage of `plan`, from the recipe's globs.
fn phases(recipe: &Recipe, registry: &Registry, plan: &RunPlan) -> Result<Vec<Vec<Trained>>> {
    let globs = Globs::new(registry);
    let common_rules = &recipe.optim.group;
    let common = match_rules(&globs.infos, common_rules).map_err(at("optim.group"))?;
    if recipe.optim.layer_decay.is_some() && recipe.model.name == Some(ModelName::Unet) {
        let reason =
            "a U-Net has no layers one after the other; remove it, and set the factors by [[optim.group]]";
        return Err(WorkerError::NoEffect { key: "optim.layer_decay".to_owned(), reason });
    }
    let layer_factors = layer_factors(&globs.names, recipe.optim.layer_decay)
        .map_err(|reason| WorkerError::NoEffect { key: "optim.layer_decay".to_owned(), reason })?;
    let by_recipe = globs.matching("model.freeze", &recipe.model.freeze)?;
    let base: Vec<bool> =
        zip(by_recipe, registry.parameters()).map(|(frozen, entry)| frozen || entry.is_frozen()).collect();
    if base.iter().all(|&frozen| frozen) && recipe.stage.is_empty() {
        return Err(WorkerError::AllFrozen);
    }
    let optim = &recipe.optim;
    let mut trains_matrix = false;
    let mut ever = vec![false; base.len()];
    let mut end = base.clone();
    let mut stages = Vec::new();
    for (number, of) in plan.stages.iter().enumerate() {
        let stage = recipe.stage.get(number);
        let frozen = globs.frozen(number, stage, &base, &end)?;
        let rules: &[OptimGroup] = stage.map_or(&[], |stage| &stage.group);
        let own = match_rules(&globs.infos, rules).map_err(at(format!("stage[{number}].group")))?;
        let rule = |(own, common): (&Option<usize>, &Option<usize>)| {
            own.map(|own| &rules[own]).or(common.map(|common| &common_rules[common]))
        };
        let rule_of: Vec<Option<&OptimGroup>> = zip(&own, &common).map(rule).collect();
        // Phases of a stage only unfreeze, so the last phase trains most.
        end = frozen.last().cloned().unwrap_or_default();
        for (ever, frozen) in ever.iter_mut().zip(&end) {
            *ever |= !frozen;
        }
        let trains = |rule: usize| zip(&own, &end).any(|(own, frozen)| *own == Some(rule) && !frozen);
        if let Some(rule) = (0..rules.len()).find(|&rule| !trains(rule)) {
            let reason = "every parameter that it matches is frozen in this stage; remove the group, or unfreeze these parameters";
            return Err(WorkerError::NoEffect { key: format!("stage[{number}].group[{rule}]"), reason });
        }
        let is_matrix = match optim.name {
            OptimName::Muon => {
                let key = if rules.is_empty() {
                    "optim.group".to_owned()
                } else {
                    format!("stage[{number}].group")
                };
                Some(matrices(&globs.infos, &rule_of, optim.convolutions).map_err(at(key))?)
            }
            _ => None,
        };
        trains_matrix |= is_matrix.iter().any(|all| zip(all, &end).any(|(is, frozen)| *is && !frozen));
        let trained = |of: &PhasePlan| {
            let inherited = Inherited {
                weight_decay: optim.weight_decay.unwrap_or(0.0),
                decay_on: optim.decay,
                layer_factors: &layer_factors,
                muon: is_matrix.as_ref().map(|is_matrix| BesideMuon {
                    is_matrix,
                    lr_factor: optim.adamw_lr.unwrap_or(optim.lr) / optim.lr,
                    weight_decay: optim.adamw_weight_decay.unwrap_or(0.0),
                }),
            };
            let (group_of, groups) = assign_groups(&globs.infos, &rule_of, &frozen[of.unfrozen], &inherited);
            Trained { group_of, groups }
        };
        stages.push(of.phases.iter().map(trained).collect());
    }
    let is_trained = |(entry, ever): &(&Entry, &bool)| **ever && entry.is_base();
    if let Some((entry, _)) = zip(registry.parameters(), &ever).find(is_trained) {
        let name = entry.name().to_owned();
        return Err(match entry.frozen() {
            Some(_) => WorkerError::TrainedFrozen { key: "a stage".to_owned(), name },
            None => WorkerError::TrainedBase { name },
        });
    }
    if optim.name == OptimName::Muon && !trains_matrix {
        return Err(WorkerError::NoMatrices);
    }
    let trains = |rule: usize| zip(&common, &ever).any(|(own, ever)| *own == Some(rule) && *ever);
    match (0..common_rules.len()).find(|&rule| !trains(rule)) {
        Some(rule) if !recipe.stage.is_empty() => Err(WorkerError::NoEffect {
            key: format!("optim.group[{rule}]"),
            reason: "every parameter that it matches is frozen in every stage; remove the group, or unfreeze these parameters",
        }),
        _ => Ok(stages),
    }
}

fn at(key: impl Into<String>) -> impl FnOnce(GroupError) -> WorkerError {
    let key = key.into();
    move |source| WorkerError::Globs { key, source }
}

/// The model's parameters.
struct Globs<'a> {
    names: Vec<&'a str>,
    infos: Vec<ParameterInfo<'a>>,
}

impl<'a> Globs<'a> {
    fn new(registry: &'a Registry) -> Self {
        let entries: Vec<&Entry> = registry.parameters().collect();
        let info = |entry: &&'a Entry| ParameterInfo { name: entry.name(), dims: entry.tensor().dim() };
        Self {
            names: entries.iter().map(|entry| entry.name()).collect(),
            infos: entries.iter().map(info).collect(),
        }
    }

    fn matching(&self, key: impl Into<String>, patterns: &[String]) -> Result<Vec<bool>> {
        match_names(&self.names, patterns).map_err(at(key))
    }

    /// Returns the frozen parameters of stage `number`, indexed by the number of its `unfreeze` entries that
    /// apply. `base` is frozen by `model.freeze`; `before` was frozen at the end of the previous stage.
    fn frozen(
        &self,
        number: usize,
        stage: Option<&recipe::Stage>,
        base: &[bool],
        before: &[bool],
    ) -> Result<Vec<Vec<bool>>> {
        let Some(stage) = stage else { return Ok(vec![base.to_vec()]) };
        let freeze = |globs: &Vec<String>| self.matching(format!("stage[{number}].freeze"), globs);
        let own = stage.freeze.as_ref().map(freeze).transpose()?;
        let mut frozen = match &own {
            Some(own) => zip(base, own).map(|(base, own)| *base || *own).collect(),
            None if stage.unfreeze.is_empty() => base.to_vec(),
            None => before.to_vec(),
        };
        let mut all = vec![frozen.clone()];
        for (index, entry) in stage.unfreeze.iter().enumerate() {
            let key = format!("stage[{number}].unfreeze[{index}].match");
            let matched = self.matching(key.as_str(), &entry.patterns)?;
            if !zip(&matched, &frozen).any(|(matched, frozen)| *matched && *frozen) {
                let reason = "no parameter that it matches is frozen at that part of the stage; remove the entry, or freeze these \
                              parameters before";
                return Err(WorkerError::NoEffect { key, reason });
            }
            for (frozen, matched) in frozen.iter_mut().zip(matched) {
                *frozen &= !matched;
            }
            let undone = |own: &Vec<bool>| {
                own.contains(&true) && !zip(own, &frozen).any(|(own, frozen)| *own && *frozen)
            };
            if entry.at == 0.0 && own.as_ref().is_some_and(undone) {
                let reason = "it unfreezes every parameter of the stage's freeze at the start of the stage; remove one of the two, \
                              or unfreeze at a later part";
                return Err(WorkerError::NoEffect { key, reason });
            }
            all.push(frozen.clone());
        }
        let first = stage.unfreeze.iter().filter(|entry| entry.at == 0.0).count();
        if all[first].iter().all(|&frozen| frozen) {
            return Err(WorkerError::NothingTrained { stage: stage.name.clone() });
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests;
