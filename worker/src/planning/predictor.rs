//! Predicts the memory of cuts by a step on symbolic tensors: milliseconds for any model, and no memory.

use crate::OutOfMemory;
use crate::memory::{MemoryStats, Owners, SEGMENT, StepMemory};
use crate::planning::{Cut, GpuProperties, Mode, PlannedDevice, Prediction, Predictor, Subject};
use crate::state::StateError;
use crate::step::{BlankFeed, StepError, StepPlan};
use dtrain_recipe::{Amp, Compile, MicroBatch, Recipe, Recompute, Switch};
use dtrain_torch_shim::cuda;
use dtrain_torch_shim::symbolic::{SimulatedGpu, Symbolic};
use serde_json::Value;
use tch::Device;

use super::rehearsal::{Rehearsal, plan_step};
use crate::course::{BatchNorms, RunPlan};
use crate::models::ModelError;
use crate::request::Request;
use crate::run::TrainError;
use crate::setup::error::WorkerError;
use crate::setup::needs::batch_norms;
use crate::step::exchange::JointSum;
use crate::tasks::{Batch, BuildTask, Facts, TaskError};

/// The device of symbolic tensors: their operations are those of the CPU.
const DEVICE: Device = Device::Cpu;

/// More micro-steps take no more memory: the second already adds to the gradients of the first.
const MICRO_STEPS: usize = 2;

/// The device that a step is predicted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// A CPU with its kernels.
    Cpu,
    /// A GPU: its allocator's blocks, workspaces of libraries, and a micro-batch fetched ahead.
    Gpu {
        /// Bytes of cuBLAS's workspace, for each thread.
        blas: u64,
        /// What the memory of its kernels depends on.
        gpu: SimulatedGpu,
    },
}

impl Target {
    /// cuBLAS's workspace in libtorch on compute capability 9.0.
    const MOST_BLAS: u64 = 32 << 20;
    /// On others: two of 4 MiB and eight of 16 KiB.
    const LEAST_BLAS: u64 = (8 << 20) + (128 << 10);

    /// Any GPU: assumes the kernels that take most memory, and a large one of 2026.
    pub(crate) const GPU: Self = Self::Gpu { blas: Self::MOST_BLAS, gpu: SimulatedGpu::LARGE };

    /// Returns the target for a GPU that this process may not have.
    fn named(gpu: Option<GpuProperties>) -> Self {
        gpu.map_or(Self::GPU, |GpuProperties { multiprocessors, capability }| {
            let major = capability / 10;
            let prefers_flash =
                std::env::var_os("TORCH_CUDNN_SDPA_DEPRIORITIZED").is_some_and(|value| value == "1");
            Self::Gpu {
                // As getChosenWorkspaceSize of libtorch (ATen/cuda/CUDABlas.cpp).
                blas: if major == 9 { Self::MOST_BLAS } else { Self::LEAST_BLAS },
                gpu: SimulatedGpu {
                    // As `cuda::simulated`, with the cuDNN of libtorch 2.11.
                    cudnn_attention_width: match prefers_flash {
                        true => 0,
                        false => SimulatedGpu::cudnn_attention_width_of(major as i32),
                    },
                    multiprocessors: i32::try_from(multiprocessors)
                        .unwrap_or(SimulatedGpu::LARGE.multiprocessors),
                    // The table of technical specifications in the CUDA C++ programming guide.
                    threads_per_multiprocessor: match capability {
                        75 => 1024,
                        86..90 | 110.. => 1536,
                        _ => 2048,
                    },
                    has_bf16_attention: major >= 8,
                },
            }
        })
    }

    /// Returns the target for a device of this process.
    pub(crate) fn of(device: Device) -> Self {
        let Device::Cuda(index) = device else { return Self::Cpu };
        Self::Gpu {
            blas: cuda::blas_workspace().unwrap_or(Self::MOST_BLAS),
            gpu: cuda::simulated(index).unwrap_or(SimulatedGpu::LARGE),
        }
    }

    fn enter(self) -> Result<Symbolic, TrainError> {
        let gpu = match self {
            Self::Cpu => None,
            Self::Gpu { gpu, .. } => Some(gpu),
        };
        Ok(Symbolic::enter(gpu)?)
    }

    /// Returns the bytes that libraries keep after the operations in `region` since the last call.
    fn take_library_bytes(self, region: &Symbolic) -> u64 {
        match self {
            Self::Gpu { blas, .. } => region.take_library_bytes(blas),
            Self::Cpu => 0,
        }
    }
}

/// The key of a rehearsal.
#[derive(Clone, PartialEq)]
struct RehearsalKey {
    /// Settings that override the recipe's.
    overrides: Vec<String>,
    ranks: usize,
    shard_optimizer: bool,
}

/// Predicts by rehearsing steps of the task `T` on symbolic tensors.
pub(crate) struct SymbolicPredictor<'a, T> {
    request: &'a Request,
    survey: &'a Value,
    stage: usize,
    target: Target,
    /// The latest rehearsal; two at once would be counted together.
    built: Option<(RehearsalKey, Rehearsal)>,
    task: std::marker::PhantomData<T>,
}

impl<'a, T: BuildTask + 'static> SymbolicPredictor<'a, T> {
    /// Makes a predictor for one stage, counted from 0, of the recipe of `request`, in the phase that trains
    /// most. `survey` is that of the recipe's data. Steps are predicted for `target`.
    pub(crate) fn new(request: &'a Request, survey: &'a Value, stage: usize, target: Target) -> Self {
        Self { request, survey, stage, target, built: None, task: std::marker::PhantomData }
    }

    fn rehearsal_for(&mut self, build: RehearsalKey) -> Result<&mut Rehearsal, WorkerError> {
        let built = match self.built.take() {
            Some((of, built)) if of == build => built,
            other => {
                drop(other);
                self.build(&build)?
            }
        };
        Ok(&mut self.built.insert((build, built)).1)
    }

    fn build(&self, key: &RehearsalKey) -> Result<Rehearsal, WorkerError> {
        let _region = self.target.enter()?;
        let all: Vec<String> = self.request.overrides.iter().chain(&key.overrides).cloned().collect();
        let mut recipe = Recipe::load(&self.request.recipe, &all)?;
        recipe.memory.shard_optimizer = key.shard_optimizer;
        recipe.memory.micro_batch = MicroBatch::Auto;
        recipe.memory.recompute = Recompute::Auto;
        recipe.precision.amp = Amp::Off;
        // These move no tensors, and cannot be set for symbolic tensors.
        recipe.precision.tf32 = Switch::Auto;
        recipe.model.cudnn_benchmark = Switch::Auto;
        // The values of weights do not matter.
        recipe.model.weights = None;
        let survey = self.survey.clone();
        Rehearsal::build::<T>(&recipe, survey, self.stage, key.ranks, DEVICE)
    }

    /// Returns the subject of the plan, with `overrides` on top of the recipe.
    pub(crate) fn subject(&mut self, overrides: &[String]) -> Result<Subject, WorkerError> {
        // Any existing rehearsal with the same overrides is suitable.
        let built = self.built.as_ref().map(|(build, _)| build);
        let build = built.filter(|of| of.overrides == overrides).cloned();
        let any = || RehearsalKey { overrides: overrides.to_vec(), ranks: 1, shard_optimizer: false };
        let built = self.rehearsal_for(build.unwrap_or_else(any))?;
        Ok(built.subject())
    }

    /// Returns what the engine knows of the task, and the steps of the run on one rank.
    pub(crate) fn facts_and_plan(&mut self) -> Result<(Facts, RunPlan), WorkerError> {
        let key = RehearsalKey { overrides: Vec::new(), ranks: 1, shard_optimizer: false };
        let setup = &self.rehearsal_for(key)?.setup;
        Ok((setup.replica.model.task.facts().clone(), setup.course.plan.clone()))
    }

    /// Returns the sums over ranks of each micro-step of `cut`, in order; may be empty.
    pub(crate) fn joint_sums(&mut self, cut: Cut) -> Result<[Vec<JointSum>; 2], WorkerError> {
        self.predict(&[], cut)?;
        let built = self.built.as_ref();
        let sync = built.and_then(|(_, built)| built.setup.batch_sync.as_ref());
        Ok(sync.and_then(|sync| sync.sums()).unwrap_or_default())
    }
}

impl<T: BuildTask + 'static> Predictor for SymbolicPredictor<'_, T> {
    type Error = WorkerError;

    fn predict(&mut self, overrides: &[String], cut: Cut) -> Result<Prediction, WorkerError> {
        let (target, shard_optimizer) = (self.target, cut.shard_optimizer && cut.ranks > 1);
        let key = RehearsalKey { overrides: overrides.to_vec(), ranks: cut.ranks, shard_optimizer };
        let rehearsal = self.rehearsal_for(key)?;
        rehearsal.predict(cut, target).map_err(unpredicted)
    }

    fn set_device(&mut self, device: PlannedDevice) {
        self.target = match device {
            PlannedDevice::Cpu => Target::Cpu,
            PlannedDevice::Gpu(gpu) => Target::named(gpu),
        };
    }
}

/// Converts an error of libtorch in a symbolic step: the model is usable, but an operation has no prediction.
fn unpredicted(error: WorkerError) -> WorkerError {
    if error.is_out_of_memory() {
        return error;
    }
    let is_of_libtorch = match &error {
        WorkerError::Train(TrainError::Step(StepError::Task(task))) | WorkerError::Task(task) => {
            matches!(task, TaskError::Torch(_) | TaskError::Model(ModelError::Torch(_)))
        }
        WorkerError::Train(TrainError::Step(
            StepError::Torch(_)
            | StepError::Model(ModelError::Torch(_))
            | StepError::Kernel(_)
            | StepError::State(StateError::Torch(_) | StateError::Kernel(_)),
        ))
        | WorkerError::Model(ModelError::Torch(_))
        | WorkerError::Torch(_) => true,
        _ => false,
    };
    match is_of_libtorch {
        true => WorkerError::Unpredicted(first_line(&error.to_string())),
        false => error,
    }
}

/// Returns the first line, without the words with which libraries begin.
fn first_line(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    let line = line.strip_prefix("Internal torch error: ").unwrap_or(line);
    line.trim_end_matches('.').to_owned()
}

impl Rehearsal {
    fn subject(&self) -> Subject {
        let (model, plan) = (&self.setup.replica.model, &self.setup.course.plan);
        let norms = batch_norms(&model.registry);
        let is_local = norms == BatchNorms::Local;
        let batch_norm = is_local.then(|| "BatchNorm normalises over each micro-batch".to_owned());
        Subject {
            model: self.recipe.model_name(),
            parameters: model.registry.parameter_count() as u64,
            trained: model.table.trained_elements(),
            effective_batch: self.recipe.train.effective_batch,
            learning_rate: plan.stages[self.stage].rates.schedule.peak,
            min_micro_batch: plan.needs().least_micro_batch(self.recipe.train.effective_batch),
            max_micro_batch: plan.needs().max_micro_batch,
            group: self.recipe.model.batchnorm.group(),
            segments: model.recompute.segments(),
            depends: batch_norm.into_iter().chain(model.task.facts().micro_batch_warning.clone()).collect(),
            undivided: plan.needs().undivided_reason(),
        }
    }

    fn predict(&mut self, cut: Cut, target: Target) -> Result<Prediction, WorkerError> {
        let region = target.enter()?;
        let partition = self.recipe.partition(cut.ranks, Some(cut.micro_batch))?;
        self.setup.course.plan.needs().check_undivided(&partition)?;
        let ranges = partition.micro_ranges(0);
        let sizes: Vec<usize> = ranges.iter().map(|range| range.len()).collect();
        let taken = &sizes[..sizes.len().min(MICRO_STEPS)];
        self.compute_as(cut, DEVICE)?;
        let data = self.setup.replica.model.task.facts().train.clone();
        let _ = (region.take_flops(), target.take_library_bytes(&region));
        let stats = MemoryStats::Symbolic(&region);
        let feed = BlankFeed::new(data.fields(), taken);
        let mut stage = self.begin(stats, feed, DEVICE)?;
        let plan =
            StepPlan { samples: partition.effective_batch(), group: partition.group(), ..plan_step(taken) };
        let memory = stage.step(&plan)?.memory;
        drop(stage);
        let batch = match (target, sizes.first()) {
            (Target::Gpu { .. }, Some(&samples)) => Batch::bytes_of(data.fields(), samples),
            _ => 0,
        };
        let flops = region.take_flops();
        let graphs = self.recipe.model.compile == Compile::Graph && target != Target::Cpu;
        // Graphs keep a copy of their micro-batch, and a separate pool, whose last segment is not full.
        let graph_bytes = if graphs { batch + SEGMENT } else { 0 };
        let always = target.take_library_bytes(&region) + graph_bytes;
        let (peak, owners) = add_overhead(&memory, batch, always);
        let share = sizes.iter().sum::<usize>() as f64 / taken.iter().sum::<usize>() as f64;
        Ok(Prediction { cut, mode: Mode::Symbolic, peak, owners, flops: flops * share })
    }
}

/// Returns peak and owners of a step if the next micro-batch, of `ahead` bytes, exists in its last two
/// phases, and `always` bytes in all phases.
fn add_overhead(step: &StepMemory, ahead: u64, always: u64) -> (u64, Owners) {
    let late = step.phases.reduce.max(step.phases.update) + ahead;
    let more = late.saturating_sub(step.report.peak) + always;
    let mut owners = step.owners;
    owners.workspace += more;
    (step.report.peak + more, owners)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tasks::Segment;

    #[test]
    fn local_batch_norm_depends_on_the_micro_batch_and_groups_do_not() {
        let depends = |batchnorm: &str| {
            let data =
                "kind = \"generated\"\nclasses = 2\nimage_size = 16\ntrain_samples = 8\ntest_samples = 2";
            let recipe = format!(
                "task = \"segment\"\n[data]\n{data}\n[model]\nwidth = 2\ndepth = 2\nbatchnorm = \"{batchnorm}\"\n\
                 [train]\nsteps = 1\neffective_batch = 4\n"
            );
            let recipe = Recipe::parse("test", &recipe, &[]).unwrap();
            let rehearsal =
                Rehearsal::build::<Segment>(&recipe, Value::from("Generated"), 0, 1, DEVICE).unwrap();
            rehearsal.subject().depends
        };
        assert_eq!(depends("local"), ["BatchNorm normalises over each micro-batch"]);
        assert!(depends("group:2").is_empty());
    }

    #[test]
    fn an_operation_without_prediction_is_named_with_a_remedy() {
        let message = "nonzero in `head` (net.py:3): no prediction of nonzero: the shape of its result depends on values";
        let error = tch::TchError::Torch(format!("{message}\nException raised from"));
        let of_program = TaskError::from(ModelError::from(tch::TchError::Torch(message.to_owned())));
        let of_program = unpredicted(TrainError::from(of_program).into());
        assert!(matches!(of_program, WorkerError::Unpredicted(_)), "{of_program}");
        let of_table = StateError::from(tch::TchError::Torch(message.to_owned()));
        assert!(matches!(unpredicted(of_table.into()), WorkerError::Unpredicted(_)));
        let error = unpredicted(TrainError::from(error).into());
        assert_eq!(
            error.to_string(),
            format!(
                "cannot predict the memory of a step: {message}; use `dtrain plan --measured`, which runs steps on this \
                 machine"
            )
        );
        assert_eq!(error.exit_status(), dtrain_common::exit::ExitStatus::Usage);
        let types = "scatter in `moe` (net.py:3): scatter(): Expected self.dtype to be equal to src.dtype";
        let of_types = unpredicted(TaskError::from(tch::TchError::Torch(types.to_owned())).into());
        assert!(of_types.to_string().contains("src.dtype; set precision.amp = \"off\""), "{of_types}");
        let other = unpredicted(TrainError::NothingTested { set: "test".to_owned() }.into());
        assert!(matches!(other, WorkerError::Train(TrainError::NothingTested { .. })));
    }

    #[test]
    fn the_next_micro_batch_counts_in_the_last_two_phases() {
        // Returns peak and workspace of a step with such peaks and such bytes ahead and always.
        let takes = |backward, update, ahead, always| {
            let mut step = StepMemory::default();
            step.report.peak = u64::max(backward, update);
            (step.phases.backward, step.phases.update) = (backward, update);
            let (peak, owners) = add_overhead(&step, ahead, always);
            (peak, owners.workspace)
        };
        assert_eq!(takes(100, 60, 30, 0), (100, 0));
        assert_eq!(takes(100, 80, 30, 0), (110, 10));
        assert_eq!(takes(100, 120, 30, 0), (150, 30));
        assert_eq!(takes(100, 120, 0, 7), (127, 7));
    }
}
