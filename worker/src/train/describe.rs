//! Describes a run before its first step: plan.json, and messages for people.

use std::iter::zip;

use dtrain_common::files::write_atomic;
use dtrain_common::run_dir::RunDir;
use dtrain_common::text::counted;
use dtrain_common::units::ByteSize;
use dtrain_recipe::Recipe;
use serde_json::{Value, json};
use tch::Device;

use crate::course::StagePlan;
use crate::device;
use crate::memory;
use crate::models::Registry;
use crate::optim::describe as describe_rules;
use crate::planning::Prediction;
use crate::planning::start::{ChosenCut, ChosenCuts, Fits};
use crate::run::{Followers, TrainError};
use crate::setup::Setup;
use crate::setup::error::WorkerError;
use crate::setup::host::Host;
use crate::state::Trained;
use crate::train::environment::Environment;

/// Parameters are float32.
const BYTES_PER_PARAMETER: u64 = 4;

pub(crate) fn describe_run(
    recipe: &Recipe,
    setup: &Setup,
    environment: &Environment,
    host: &Host,
    choices: &ChosenCuts,
    run_dir: &RunDir,
    followers: &mut Followers<'_>,
) -> Result<(), WorkerError> {
    let (plan, model, device) = (&setup.course.plan, &setup.replica.model, host.device);
    let ChosenCuts { chosen, limit } = choices;
    write_plan(recipe, setup, environment, run_dir, device, choices)?;
    let facts = model.task.facts();
    let rules = describe_rules(&model.table);
    let val = facts.val.as_ref().map(|val| format!("{} validation", val.len()));
    let more = facts.more_tests.iter().map(|(name, samples)| format!("{} {name:?}", samples.len()));
    let tests = val.into_iter().chain([format!("{} test", facts.test.len())]).chain(more);
    // With stages, the total is shown: trained parameters differ by stage.
    let parameters = match recipe.stage.is_empty() {
        true => model.table.trained_elements(),
        false => model.registry.parameter_count() as u64,
    };
    followers.note(format!(
        "{} on {} x {} in {}: {parameters} parameters, {} training and {} samples, {}",
        recipe.model_name(),
        environment.ranks,
        device::kind(device),
        setup.replica.precision.describe(),
        plan.train_samples,
        tests.collect::<Vec<_>>().join(" and "),
        facts.description,
    ));
    if let Some(samples) = recipe.train.overfit {
        followers.note(format!(
            "overfit check (train.overfit): trains on {} of all, without random changes, and evaluates the same; its figures say \
             nothing about other samples",
            counted(samples, "training sample")
        ));
    }
    rules.iter().for_each(|rules| followers.note(rules));
    let decide = [
        recipe.checkpoint.best.as_ref().map(|_| "checkpoint.best"),
        recipe.train.stop_early.as_ref().map(|_| "train.stop_early"),
    ];
    let decide: Vec<&str> = decide.into_iter().flatten().collect();
    if facts.val.is_none() && !decide.is_empty() {
        let verb = if decide.len() == 1 { "chooses" } else { "choose" };
        followers.note(format!(
            "{} {verb} by the test set: its figures are then too good; set data.val to choose by other samples",
            decide.join(" and ")
        ));
    }
    followers.note(plan);
    plan.warnings.iter().for_each(|warning| followers.note(format_args!("warning: {warning}")));
    setup.notes.iter().for_each(|note| followers.note(note));
    if recipe.checkpoint.in_memory && host.copies.is_none() {
        followers.note("warning: checkpoint.in_memory has no effect: it needs `dtrain launch`");
    }
    if setup.course.done >= plan.total_steps {
        let has_stages = !recipe.stage.is_empty();
        let longer =
            if has_stages { "make the last stage longer" } else { "raise train.epochs or train.steps" };
        followers.note(format!("all {} steps are done; to train longer, {longer}", plan.total_steps));
    }
    for (stage, chosen) in plan.stages.iter().zip(chosen) {
        if let Some(chosen) = chosen {
            let (name, segments) = (stage.name.as_deref(), model.recompute.segments());
            followers.note(describe_prediction(name, chosen, segments, *limit));
        }
    }
    let memory = memory::report(device).map_err(TrainError::from)?;
    followers.note(memory.line(device));
    Ok(())
}

fn write_plan(
    recipe: &Recipe,
    setup: &Setup,
    environment: &Environment,
    run_dir: &RunDir,
    device: Device,
    choices: &ChosenCuts,
) -> Result<(), WorkerError> {
    let (course, model) = (&setup.course, &setup.replica.model);
    let (plan, ChosenCuts { chosen, limit }) = (&course.plan, choices);
    let parameters = model.table.trained_elements();
    let state = model.table.moment_elements() * BYTES_PER_PARAMETER;
    let first = plan.stage(0);
    let mut file = json!({
        "nproc": environment.ranks,
        "warnings": plan.warnings,
        "device": device::name(device),
        "warmup_steps": first.rates.schedule.warmup_steps,
        "total_steps": plan.total_steps,
        "epochs": plan.epochs(),
        "train_samples": plan.train_samples,
        "test_samples": model.task.facts().test.len(),
        "parameters": parameters,
        "predicted_bytes": {
            "parameters": model.registry.parameter_count() as u64 * BYTES_PER_PARAMETER,
            "gradients": parameters * BYTES_PER_PARAMETER,
            "optimizer": state / model.table.shards() as u64,
        },
    });
    if let Some(val) = &model.task.facts().val {
        file["val_samples"] = val.len().into();
    }
    if let Some(samples) = recipe.train.overfit {
        file["overfit"] = samples.into();
    }
    add_cut(first, &mut file);
    let stages: Vec<Value> = zip(&plan.stages, &course.stages.stages)
        .filter_map(|(of, stage)| stage_json(of, &stage.phases, &model.registry))
        .collect();
    if !stages.is_empty() {
        file["stages"] = stages.into();
    }
    if !plan.data_periods.is_empty() {
        file["stretches"] = json!(plan.stretches());
    }
    if *limit < u64::MAX {
        file["budget_bytes"] = (*limit).into();
    }
    let predictions: Vec<Prediction> = chosen.iter().flatten().map(|chosen| chosen.prediction).collect();
    if !predictions.is_empty() {
        file["predictions"] = json!(predictions);
    }
    let path = run_dir.plan();
    // A plan that cannot be read has no environments to keep.
    let earlier = std::fs::read(&path).ok().and_then(|plan| serde_json::from_slice(&plan).ok());
    environment.add_to(&mut file, earlier.as_ref());
    write_atomic(&path, &serde_json::to_vec_pretty(&file)?)
        .map_err(|source| WorkerError::Write { path, source })
}

/// Adds the cut to `file`: plan.json has the same keys for the run and for every stage.
fn add_cut(of: &StagePlan, file: &mut Value) {
    file["effective_batch"] = of.partition.effective_batch().into();
    file["micro_batch"] = of.partition.micro_batch().into();
    file["grad_accum_steps"] = of.partition.grad_accum_steps().into();
    file["partition"] = of.partition.to_string().into();
    file["learning_rate"] = of.rates.schedule.peak.into();
    file["steps_per_epoch"] = of.steps_per_epoch.into();
}

/// Returns a stage for plan.json; None for a run without stages.
fn stage_json(of: &StagePlan, phases: &[Trained], registry: &Registry) -> Option<Value> {
    let phases = zip(&of.phases, phases).map(
        |(of, trained)| json!({ "first_step": of.steps.start + 1, "parameters": trained.count(registry) }),
    );
    let mut stage = json!({
        "name": of.name.as_ref()?,
        "steps": [of.steps.start + 1, of.steps.end],
        "phases": phases.collect::<Vec<_>>(),
    });
    add_cut(of, &mut stage);
    Some(stage)
}

/// Describes the predicted memory of a stage, for people.
fn describe_prediction(stage: Option<&str>, chosen: &ChosenCut, segments: usize, limit: u64) -> String {
    let Prediction { cut, peak, owners, .. } = chosen.prediction;
    let of = stage.map(|name| format!(" of stage {name:?}")).unwrap_or_default();
    let again = match cut.recompute {
        0 => String::new(),
        count => format!(", {count} of {segments} segments recomputed"),
    };
    let within = match (chosen.fits, limit) {
        (_, u64::MAX) => String::new(),
        (Fits::Yes, _) => format!(", limit {}", ByteSize(limit)),
        (Fits::No | Fits::IfUnrestricted(_), _) => format!(", above the limit of {}", ByteSize(limit)),
    };
    let remedy = match chosen.fits {
        Fits::Yes => String::new(),
        Fits::No => "; no smaller cut exists".to_owned(),
        Fits::IfUnrestricted(other) => {
            let more = other.recompute > cut.recompute;
            let auto = if more { " with memory.recompute = \"auto\"" } else { "" };
            format!("; memory.micro_batch = {}{auto} fits", other.micro_batch)
        }
    };
    format!(
        "predicted memory{of}: {} per rank{within}; activations {} in micro-batches of {}{again}{remedy}",
        ByteSize(peak),
        ByteSize(owners.activations),
        cut.micro_batch,
    )
}

#[cfg(test)]
mod tests {
    use crate::memory::Owners;
    use crate::planning::{Cut, Mode};
    use dtrain_recipe::Amp;

    use super::*;

    #[test]
    fn the_hint_names_a_cut_that_fits_if_the_recipe_excludes_it() {
        let cut = |micro_batch, recompute| Cut {
            ranks: 1,
            micro_batch,
            amp: Amp::Off,
            recompute,
            shard_optimizer: false,
        };
        let text_of = |now, fits| {
            let prediction = Prediction {
                cut: now,
                mode: Mode::Symbolic,
                peak: 3 << 20,
                owners: Owners::default(),
                flops: 0.0,
            };
            describe_prediction(None, &ChosenCut { prediction, fits }, 4, 2 << 20)
        };
        let text = text_of(cut(1, 4), Fits::No);
        assert!(
            text.starts_with(
                "predicted memory: 3.00 MiB per rank, above the limit of 2.00 MiB; activations 0 B"
            ),
            "{text}"
        );
        assert!(text.ends_with("; no smaller cut exists"), "{text}");
        let text = text_of(cut(8, 4), Fits::IfUnrestricted(cut(2, 4)));
        assert!(text.ends_with("; memory.micro_batch = 2 fits"), "{text}");
        let text = text_of(cut(8, 0), Fits::IfUnrestricted(cut(4, 3)));
        assert!(text.ends_with("; memory.micro_batch = 4 with memory.recompute = \"auto\" fits"), "{text}");
        assert!(text_of(cut(8, 0), Fits::Yes).contains("3.00 MiB per rank, limit 2.00 MiB; "));
    }
}
