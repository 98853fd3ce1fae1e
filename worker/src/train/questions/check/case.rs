//! Runs one case by the engine, as a training does.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use dtrain_common::env::WorkerEnv;
use dtrain_recipe::{BatchNorm, Recipe, Recompute};
use dtrain_torch_shim::memory;
use tch::{Device, Tensor};

use super::{Case, Check};
use crate::collectives::Ranks;
use crate::course::{PhaseId, RunPlan};
use crate::data::SampleHashes;
use crate::memory::MemoryStats;
use crate::models::{Exported, ModelError, Registry, TensorFile};
use crate::optim::Model;
use crate::planning::rehearsal::{Stage, plan_step};
use crate::run::TrainError;
use crate::setup::error::{Result, WorkerError};
use crate::setup::needs::needs;
use crate::setup::task::registry;
use crate::setup::trained;
use crate::step::{DeviceBatch, Feed, Precision, Replica, StepError, StepPlan};
use crate::tasks::{Given, Mode, Passes, Replay, TaskError};
use crate::tensors::is_floating;

/// What the recipe of a check states besides the case.
const RECIPE: &str = r#"
task = "program"
[data]
kind = "generated"
[model]
file = "model.pt2"
[train]
effective_batch = 1
steps = 1
[optim]
name = "sgd"
lr = 1.0
"#;

/// The values after a step, or an evaluation, by kind and name.
pub(super) struct Found {
    pub(super) outputs: Vec<(String, Tensor)>,
    pub(super) gradients: Vec<(String, Tensor)>,
    pub(super) buffers: Vec<(String, Tensor)>,
}

/// A program that has run.
pub(super) struct Ran {
    /// The number of recomputed segments.
    pub(super) recomputed: usize,
    /// The operations whose random numbers depend on the micro-batch.
    pub(super) by_micro_batch: Vec<String>,
}

/// Runs a case of the check in `folder`, and passes the values of each step to `see`.
pub(super) fn run(
    folder: &Path,
    check: &Check,
    case: &Case,
    mut see: impl FnMut(usize, Found) -> Result<()>,
) -> Result<Ran> {
    let mut recipe = Recipe::parse("check", RECIPE, &case.set)?;
    recipe.model.file = Some(folder.join(&check.file));
    recipe.model.libraries = check.libraries.iter().map(|library| folder.join(library)).collect();
    let mut registry = registry(&recipe, Device::Cpu)?;
    registry.is_batch_grouped = recipe.model.batchnorm.group().is_some();
    registry.is_batch_frozen = recipe.model.batchnorm == BatchNorm::Frozen;
    let inputs = folder.join(case.inputs.as_ref().unwrap_or(&check.inputs));
    let task = Replay::load(&recipe, &mut registry, |program| given(&inputs, program))?;
    if let Some(values) = &check.values {
        set_values(&registry, &folder.join(values))?;
    }
    let passes = task.passes();
    let by_micro_batch = task.exported().draws_by_micro_batch().to_vec();
    let names = [Mode::Train, Mode::Evaluate].map(|mode| output_names(task.exported(), mode));
    let mut replica = replica(&recipe, task, registry)?;
    for (step, sizes) in case.steps.iter().enumerate() {
        train(&mut replica, &recipe, step, sizes, case.lr)?;
        see(step, found(&replica, &names[0], sizes, &passes)?)?;
    }
    if !case.evaluate.is_empty() {
        evaluate(&replica, &case.evaluate)?;
        let found = found(&replica, &names[1], &case.evaluate, &passes)?;
        see(case.steps.len(), Found { gradients: Vec::new(), ..found })?;
    }
    Ok(Ran { recomputed: replica.model.recompute.count(), by_micro_batch })
}

/// Gives parameters the values of a file.
fn set_values(registry: &Registry, path: &Path) -> Result<()> {
    let file = TensorFile::open(path).map_err(ModelError::from)?;
    for name in file.names() {
        let unknown =
            || WorkerError::Check { path: path.to_owned(), reason: format!("no parameter `{name}`") };
        let entry = registry.get(&name).ok_or_else(unknown)?;
        let values = file.read(&name)?;
        tch::no_grad(|| entry.tensor().shallow_clone().f_copy_(&values)).map_err(TrainError::from)?;
    }
    Ok(())
}

fn output_names(program: &Exported, mode: Mode) -> Vec<String> {
    let ports = match mode {
        Mode::Train => program.outputs(),
        Mode::Evaluate => program.evaluation_outputs(),
    };
    ports.iter().map(|port| port.name.clone()).collect()
}

/// Reads the inputs of a program, and the cotangents of its results.
fn given(path: &Path, program: &Exported) -> Result<Given> {
    let file = TensorFile::open(path).map_err(ModelError::from)?;
    let read = |name: &str| Ok::<_, WorkerError>(file.read(name)?);
    let inputs: Vec<Tensor> = program.inputs().iter().map(|port| read(&port.name)).collect::<Result<_>>()?;
    let cotangents = program.outputs().iter().map(|port| {
        let name = format!("cotangent.train.{}", port.name);
        // Whole numbers, and outputs without a batch, have none.
        (is_floating(port.kind) && file.info(&name).is_some()).then(|| read(&name)).transpose()
    });
    let cotangents = cotangents.collect::<Result<_>>()?;
    let samples = inputs.first().and_then(|input| input.size().first().copied()).unwrap_or_default();
    Ok(Given { inputs, cotangents, samples: samples as usize })
}

/// Builds the model with its training state, as a run of one process does.
fn replica(recipe: &Recipe, task: Replay, registry: Registry) -> Result<Replica> {
    let recompute = registry.recompute().clone();
    // The task names no program, so that the case states its micro-batches.
    let plan = RunPlan::new(recipe, 1, 1, &needs(&task, &registry, recipe))?;
    let stages = trained::stages(recipe, &registry, &plan, &WorkerEnv::single())?;
    if recipe.memory.recompute == Recompute::On {
        recompute.set_all();
    }
    let first = plan.existing_phase(PhaseId { stage: 0, phase: 0 });
    let model = Model::new(Box::new(task), registry, recompute, &stages, first)?;
    // The memory in which the weights were read, and that of the case before.
    memory::empty_cache(Device::Cpu).map_err(TrainError::from)?;
    Ok(Replica::new(model, Precision::new(&recipe.precision, Device::Cpu)?)?)
}

/// Takes one step of micro-batches of these sizes.
fn train(replica: &mut Replica, recipe: &Recipe, step: usize, sizes: &[usize], lr: f64) -> Result<()> {
    let (ranks, stats) = (Ranks::single(), MemoryStats::Device(Device::Cpu));
    let mut stage = Stage::begin(replica, ranks, None, recipe, stats, Parts::of(sizes), Device::Cpu)?;
    stage.step(&StepPlan {
        step: step as u64 + 1,
        lr,
        clip: None,
        expected_weight: sizes.iter().sum::<usize>() as f64,
        group: recipe.model.batchnorm.group(),
        is_rehearsed: false,
        ..plan_step(sizes)
    })?;
    Ok(())
}

fn evaluate(replica: &Replica, sizes: &[usize]) -> Result<()> {
    let mut feed = Parts::of(sizes);
    for _ in sizes {
        let DeviceBatch { batch, .. } = feed.next()?;
        let loss = || tch::no_grad(|| replica.model.task.loss(&batch, Mode::Evaluate));
        replica.precision.run(loss).map_err(TrainError::from)??;
    }
    Ok(())
}

/// Returns the state after a step, and the outputs of its passes.
fn found(replica: &Replica, names: &[String], sizes: &[usize], passes: &Passes) -> Result<Found> {
    let all = passes.take();
    // A recomputed program runs its segments again, not the whole pass.
    debug_assert_eq!(all.len(), sizes.len());
    let joined = |at: usize| {
        let parts: Vec<&Tensor> = all.iter().map(|outputs| &outputs[at]).collect();
        match parts.first().is_some_and(|part| part.dim() == 0) {
            true => Tensor::f_stack(&parts, 0),
            false => Tensor::f_cat(&parts, 0),
        }
    };
    let outputs = names.iter().enumerate().map(|(at, name)| Ok::<_, TaskError>((name.clone(), joined(at)?)));
    let registry = &replica.model.registry;
    let gradients = registry.parameters().filter(|entry| entry.tensor().requires_grad());
    let gradients = gradients.map(|entry| (entry.name().to_owned(), entry.tensor().grad()));
    let buffers = registry.buffers().map(|entry| (entry.name().to_owned(), entry.tensor().shallow_clone()));
    Ok(Found {
        outputs: outputs.collect::<Result<_, _>>()?,
        gradients: gradients.filter(|(_, gradient)| gradient.defined()).collect(),
        buffers: buffers.collect(),
    })
}

/// The given samples in parts.
struct Parts(std::vec::IntoIter<Range<usize>>);

impl Parts {
    fn of(sizes: &[usize]) -> Self {
        Self(plan_step(sizes).micro_batches.into_iter())
    }
}

impl Feed for Parts {
    fn next(&mut self) -> Result<DeviceBatch, StepError> {
        let rows = self.0.next().ok_or(StepError::LoaderEnded)?;
        Ok(DeviceBatch {
            batch: Replay::batch_of(&rows)?,
            unreadable: Vec::new(),
            data_wait: Duration::ZERO,
            hashes: SampleHashes::default(),
        })
    }
}
