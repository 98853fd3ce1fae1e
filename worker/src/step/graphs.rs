//! Micro-steps as CUDA graphs: forward and backward are captured once for each size of a micro-batch and then
//! replayed with one call, in place of one call per kernel. Buckets are reduced after the last replay; then a second
//! graph has the decision's arithmetic.
//!
//! A graph has fixed addresses. So a batch and its factor are copied to their captured addresses, and graphs
//! are dropped when a tensor that they use moves: see [`Graphs::drop_graphs`]. If a capture fails or is not
//! allowed, training continues without graphs and reports the reason.

use dtrain_recipe::Compile;
use dtrain_torch_shim::ShimError;
use dtrain_torch_shim::graph::{Graph, Pool};
use dtrain_torch_shim::memory;
use dtrain_torch_shim::stream::Stream;
use tch::{Device, Kind, Tensor};

use super::micro::{DecisionKey, Eager, Executor, Hooks, MicroStep, Passes};
use super::recover::catch_torch_panic;
use super::status::{Tally, figures};
use crate::memory::MicroStepMemory;
use crate::optim::Model;
use crate::step::error::{Result, StepError};
use crate::tasks::Batch;

/// Micro-steps of a kind before its capture, in which libraries choose algorithms and allocate workspace.
const WARM_UP: usize = 3;

/// The graphs of a run.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    /// The GPU; None on a CPU.
    gpu: Option<usize>,
    enabled: bool,
    /// The reason against graphs, until it is reported.
    disabled_reason: Option<String>,
    /// Whether a capture has failed; then no other capture is tried.
    failed: bool,
    /// Whether all addresses are final.
    addresses_final: bool,
    /// Memory that all graphs share: they run in turn, and results are read before the next replay.
    pool: Option<Pool>,
    /// Kinds of micro-steps, and their counts.
    seen: Vec<(GraphKey, usize)>,
    captured: Vec<(GraphKey, Captured)>,
    decisions: Vec<CapturedDecision>,
    captures_decisions: bool,
    /// Whether the last micro-step was a replay.
    has_replayed: bool,
    replays: u64,
}

/// A kind of micro-steps, which share one graph.
#[derive(Debug, Clone, Copy, PartialEq)]
struct GraphKey {
    samples: usize,
    /// The sum of the sample weights, 0 for unreadable samples; the host may use it.
    weight: f64,
    /// Whether it is the first of its step: its gradients are copied into the table, later ones added.
    first: bool,
}

/// A graph with its inputs and results.
#[derive(Debug)]
struct Captured {
    graph: Graph,
    batch: Batch,
    /// The factor of the loss before backward: a float32 scalar.
    factor: Tensor,
    /// The figures of the loss after a replay.
    figures: Tensor,
    memory: MicroStepMemory,
    /// By parameter: whether a replay leaves a gradient.
    used: Vec<bool>,
}

/// Results of a capture, as [`Captured`] has them.
struct CaptureResult {
    figures: Tensor,
    memory: MicroStepMemory,
    used: Vec<bool>,
}

/// A graph of decisions.
#[derive(Debug)]
struct CapturedDecision {
    key: DecisionKey,
    graph: Graph,
    results: [Tensor; 3],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExecutionMode {
    Eager,
    /// Captures the micro-step and then replays it.
    Capture,
    Replay,
}

/// If graphs are enabled, gives the calling thread a new stream: the default stream cannot be captured. Call
/// it on the main thread, after [`crate::device::choose`] and before the first tensor, as a capture would
/// wait for earlier tensors.
pub(crate) fn use_capturable_stream(compile: Compile, device: Device) -> Result<(), ShimError> {
    match (compile, device) {
        (Compile::Graph, Device::Cuda(gpu)) => Stream::from_pool(gpu, false)?.make_current(),
        _ => Ok(()),
    }
}

impl Graphs {
    pub(super) fn new(device: Device) -> Self {
        let mut graphs = Self::default();
        match device {
            Device::Cuda(gpu) => graphs.gpu = Some(gpu),
            _ => graphs.disabled_reason = Some("the training is on the CPU".to_owned()),
        }
        graphs.begin_phase();
        graphs
    }

    fn choose_mode(&mut self, key: GraphKey) -> ExecutionMode {
        if !self.enabled {
            return ExecutionMode::Eager;
        }
        if self.captured.iter().any(|(of, _)| *of == key) {
            return ExecutionMode::Replay;
        }
        let known = self.seen.iter().position(|(of, _)| *of == key);
        let at = known.unwrap_or_else(|| {
            self.seen.push((key, 0));
            self.seen.len() - 1
        });
        let seen = &mut self.seen[at].1;
        // The first micro-step of a step is warm last. No other is captured before it: while kernels run one by one, they take the
        // memory of a micro-step beside that of the graphs.
        let first_is_captured = key.first || self.captured.iter().any(|(of, _)| of.first);
        if *seen >= WARM_UP && self.addresses_final && first_is_captured {
            return ExecutionMode::Capture;
        }
        *seen += 1;
        ExecutionMode::Eager
    }

    /// Captures a micro-step without computing: `work` gets a copy of `batch` and the factor. Returns false
    /// on failure: then graphs are disabled, and the caller must undo the records of the hooks.
    fn capture(
        &mut self,
        key: GraphKey,
        batch: &Batch,
        work: impl FnOnce(&Batch, &Tensor) -> Result<CaptureResult>,
    ) -> bool {
        match self.try_capture(batch, work) {
            Ok(captured) => self.captured.push((key, captured)),
            Err(error) => {
                self.disable(format!("the capture of a step failed: {error}"));
                self.failed = true;
            }
        }
        self.enabled
    }

    fn try_capture(
        &mut self,
        batch: &Batch,
        work: impl FnOnce(&Batch, &Tensor) -> Result<CaptureResult>,
    ) -> Result<Captured> {
        // Graphs and other tensors cannot use each other's cached memory.
        memory::empty_cache(Device::Cuda(self.gpu.unwrap_or_default()))?;
        let batch = batch.duplicate()?;
        let factor = Tensor::f_zeros([], (Kind::Float, batch.weights.device()))?;
        let (graph, CaptureResult { figures, memory, used }) =
            Graph::capture(self.pool()?, || work(&batch, &factor))?;
        Ok(Captured { graph, batch, factor, figures, memory, used })
    }

    fn pool(&mut self) -> Result<Pool, ShimError> {
        match self.pool {
            Some(pool) => Ok(pool),
            None => Ok(*self.pool.insert(Pool::new(self.gpu.unwrap_or_default())?)),
        }
    }

    /// Replays the graph of this kind on `batch`, with the loss multiplied by `factor`; None without a graph.
    fn replay(&mut self, key: GraphKey, batch: &Batch, factor: f64) -> Result<Option<&Captured>> {
        let Some((_, captured)) = self.captured.iter_mut().find(|(of, _)| *of == key) else {
            return Ok(None);
        };
        captured.batch.fill(batch)?;
        let _ = captured.factor.f_fill_(factor)?;
        captured.graph.replay()?;
        self.replays += 1;
        Ok(Some(captured))
    }

    /// Disables graphs until the next [`Executor::begin_phase`], for this reason.
    fn disable(&mut self, reason: impl Into<String>) {
        self.drop_graphs();
        self.enabled = false;
        self.disabled_reason = Some(reason.into());
    }

    fn capture_passes(&mut self, key: GraphKey, passes: &Passes<'_, '_>, batch: &Batch) -> Result<bool> {
        let used = passes.exchange.used();
        let captured = match find_obstacle(&passes.replica.model, passes.exchange.has_joint_sums()) {
            Some(reason) => {
                self.disable(reason);
                false
            }
            None => self.capture(key, batch, |batch, factor| {
                catch_torch_panic(|| run_capture(passes, batch, factor))?
            }),
        };
        if !captured {
            // Undoes the hooks' records of gradients that were not computed.
            passes.exchange.undo_capture(&used)?;
        }
        Ok(captured)
    }
}

impl Executor for Graphs {
    /// Replays the micro-step's graph, captures one first if it is time, or runs kernel by kernel.
    fn run(&mut self, passes: &mut Passes<'_, '_>, micro: &MicroStep<'_>) -> Result<()> {
        let key =
            GraphKey { samples: micro.batch.samples(), weight: micro.batch.weight, first: micro.is_first };
        let has_graph = match self.choose_mode(key) {
            ExecutionMode::Eager => false,
            ExecutionMode::Capture => self.capture_passes(key, passes, micro.batch)?,
            ExecutionMode::Replay => true,
        };
        self.has_replayed = has_graph;
        if has_graph && let Some(replayed) = self.replay(key, micro.batch, micro.factor)? {
            passes.exchange.record_replay(&replayed.used)?;
            passes.tally.add_figures(&replayed.figures)?;
            return Ok(passes.phases.account.replayed(replayed.memory)?);
        }
        Eager.run(passes, micro)
    }

    fn decide(&mut self, key: DecisionKey, work: &dyn Fn() -> Result<[Tensor; 3]>) -> Result<[Tensor; 3]> {
        // A step without a replay may be one whose tensors still move.
        if !self.enabled || !self.addresses_final || !self.has_replayed {
            return work();
        }
        if self.captures_decisions && !self.decisions.iter().any(|captured| captured.key == key) {
            match self.pool().map_err(StepError::from).and_then(|pool| Graph::capture(pool, work)) {
                Ok((graph, results)) => self.decisions.push(CapturedDecision { key, graph, results }),
                // The graphs of micro-steps continue.
                Err(error) => {
                    tracing::debug!("the decision is not captured: {error}");
                    self.captures_decisions = false;
                }
            }
        }
        let Some(captured) = self.decisions.iter_mut().find(|captured| captured.key == key) else {
            return work();
        };
        captured.graph.replay()?;
        Ok(captured.results.each_ref().map(Tensor::shallow_clone))
    }

    fn set_addresses_final(&mut self) {
        self.addresses_final = true;
    }

    /// Drops all graphs; they are captured again when needed.
    fn drop_graphs(&mut self) {
        self.captured.clear();
        self.decisions.clear();
        self.has_replayed = false;
        if let (Some(_), Some(gpu)) = (self.pool.take(), self.gpu) {
            // A failure here costs only speed.
            let _ = memory::empty_cache(Device::Cuda(gpu));
        }
    }

    /// Enables graphs again, since the reason against them may no longer apply.
    fn begin_phase(&mut self) {
        self.drop_graphs();
        self.seen.clear();
        self.addresses_final = false;
        self.captures_decisions = true;
        self.enabled = self.gpu.is_some() && !self.failed;
    }

    fn take_disabled_reason(&mut self) -> Option<String> {
        self.disabled_reason.take()
    }

    fn replays(&self) -> Option<u64> {
        Some(self.replays)
    }
}

/// Captures the passes of a micro-step.
fn run_capture(passes: &Passes<'_, '_>, batch: &Batch, factor: &Tensor) -> Result<CaptureResult> {
    let mut phases = passes.phases.capture()?;
    let mut nothing = Tally::of_step(Device::Cpu)?;
    let mut captured = Passes {
        replica: passes.replica,
        exchange: passes.exchange,
        phases: &mut phases,
        tally: &mut nothing,
    };
    // Buckets are reduced after the last replay.
    let loss = captured.forward_backward(batch, |sum| sum.f_mul(factor), Hooks::Idle)?;
    Ok(CaptureResult {
        figures: figures(&loss)?,
        memory: phases.account.micro_step()?,
        used: passes.exchange.finish_capture()?,
    })
}

/// Returns why a model cannot be captured. `joint_sums`: its normalisations sum over ranks.
fn find_obstacle(model: &Model, joint_sums: bool) -> Option<&'static str> {
    if !model.task.facts().is_capturable {
        return Some(
            "the task does not declare that its loss does the same work on every batch of a size (`Facts::is_capturable`)",
        );
    }
    if model.registry.has_dropout() {
        return Some("dropout draws anew in each step, and a graph repeats the draws of its capture");
    }
    if joint_sums {
        return Some("model.batchnorm sums over the ranks within a step");
    }
    (model.recompute.count() > 0).then_some("memory.recompute keeps random states on the host")
}

#[cfg(test)]
mod tests;
