//! Micro-steps as graphs of a GPU: forward and backward are captured once for each size of a micro-batch and then replayed, which
//! takes the host one call in place of one for every kernel. The buckets are reduced behind the last replay.
//!
//! A graph is of addresses, so its batch and its factor are copied to where they were at its capture, and it goes when anything that
//! it touches moves: see [`Graphs::forget`]. Where a capture fails, or cannot be right, the training goes on without graphs and
//! says why.

use dtrain_common::recipe::Compile;
use dtrain_torch_shim::ShimError;
use dtrain_torch_shim::graph::{Graph, Pool};
use dtrain_torch_shim::memory;
use dtrain_torch_shim::stream::Stream;
use tch::{Device, Kind, TchError, Tensor};

use crate::memory::MicroStepMemory;
use crate::state::Model;
use crate::tasks::{Batch, Loss};

/// Micro-steps of a kind that come before its capture: libraries choose their algorithms and take their workspace in them.
const WARM_UP: usize = 3;

/// What a run does with graphs.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    /// The GPU of a run that asks for them.
    gpu: Option<usize>,
    /// None where steps run without.
    on: Option<On>,
    /// Why they do although graphs were asked for; told once.
    why_not: Option<String>,
    /// Whether a capture has failed.
    failed: bool,
    /// Replays so far, where graphs were asked for.
    replays: Option<u64>,
}

#[derive(Debug, Default)]
struct On {
    gpu: usize,
    /// Memory of all graphs: they are replayed one after the other, and what one leaves is read before the next.
    pool: Option<Pool>,
    /// Kinds of micro-steps that were met, and how often.
    met: Vec<(Sort, usize)>,
    captured: Vec<(Sort, Captured)>,
}

/// Micro-steps that one graph does for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sort {
    samples: usize,
    /// Unreadable samples, which the host may have counted.
    weight: f64,
    /// Whether it is the first of its step: its gradients are moved into their places, those of others are added.
    first: bool,
}

impl Sort {
    pub(super) fn of(batch: &Batch, first: bool) -> Self {
        Self {
            samples: batch.samples(),
            weight: batch.weight,
            first,
        }
    }

    /// Whether it is the first of its step.
    pub(super) fn is_first(&self) -> bool {
        self.first
    }
}

/// A graph, and where what it reads and writes lies.
#[derive(Debug)]
struct Captured {
    graph: Graph,
    batch: Batch,
    /// What the loss is multiplied by before backward: float32, a scalar.
    factor: Tensor,
    /// What it leaves of the loss, detached.
    loss: Loss,
    /// By parameter: whether it leaves a gradient.
    used: Vec<bool>,
    memory: MicroStepMemory,
}

/// How the next micro-step is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Kernel by kernel.
    Eager,
    /// It is captured, and then replayed.
    Capture,
    /// It was captured before.
    Replay,
}

/// What a replay leaves for the host.
#[derive(Debug)]
pub(super) struct Replayed<'a> {
    pub(super) loss: &'a Loss,
    pub(super) used: &'a [bool],
    pub(super) memory: MicroStepMemory,
}

/// Gives the calling thread a stream of its own where graphs are asked for: the default one cannot be captured, and what was made on
/// it would be waited for within a capture. Called on the main thread, after [`crate::device::choose`] and before the first tensor.
///
/// # Errors
/// What CUDA reports.
pub(crate) fn prepare(compile: Compile, device: Device) -> Result<(), ShimError> {
    match (compile, device) {
        (Compile::Graph, Device::Cuda(gpu)) => Stream::from_pool(gpu, false)?.make_current(),
        _ => Ok(()),
    }
}

impl Graphs {
    /// What the recipe asks for.
    pub(super) fn new(compile: Compile, device: Device) -> Self {
        let mut graphs = Self::default();
        if compile == Compile::Off {
            return graphs;
        }
        graphs.replays = Some(0);
        match device {
            Device::Cuda(gpu) => graphs.gpu = Some(gpu),
            _ => graphs.why_not = Some("the training is on the CPU".to_owned()),
        }
        graphs.restart();
        graphs
    }

    /// Why there are none although they were asked for; once.
    pub(super) fn take_reason(&mut self) -> Option<String> {
        self.why_not.take()
    }

    /// How many micro-steps were replayed, where graphs were asked for.
    pub(super) fn replays(&self) -> Option<u64> {
        self.replays
    }

    /// How the next micro-step is taken. `settled` says that everything lies where it will stay.
    pub(super) fn way(&mut self, sort: Sort, settled: bool) -> Way {
        let Some(on) = &mut self.on else { return Way::Eager };
        if on.captured.iter().any(|(of, _)| *of == sort) {
            return Way::Replay;
        }
        let known = on.met.iter().position(|(of, _)| *of == sort);
        let at = known.unwrap_or_else(|| {
            on.met.push((sort, 0));
            on.met.len() - 1
        });
        let met = &mut on.met[at].1;
        if *met >= WARM_UP && settled {
            return Way::Capture;
        }
        *met += 1;
        Way::Eager
    }

    /// Captures a micro-step on a copy of `batch`: `work` is given that and the factor, and returns the loss, what it takes, and which
    /// parameters then have a gradient. Nothing is computed yet. Where that fails there will be no graphs any more, whatever has
    /// happened to the gradients' places of this rank since is to be undone, and the answer is false.
    pub(super) fn capture<E: From<ShimError> + From<TchError> + std::fmt::Display>(
        &mut self,
        sort: Sort,
        batch: &Batch,
        work: impl FnOnce(&Batch, &Tensor) -> Result<(Loss, MicroStepMemory, Vec<bool>), E>,
    ) -> bool {
        let Some(on) = &mut self.on else { return false };
        match on.capture(batch, work) {
            Ok(captured) => {
                on.captured.push((sort, captured));
                true
            }
            Err(error) => {
                self.refuse(format!("the capture of a step failed: {error}"));
                self.failed = true;
                false
            }
        }
    }

    /// Gives the device the graph of this sort, for `batch` and a loss multiplied by `factor`.
    ///
    /// # Errors
    /// What CUDA reports.
    pub(super) fn replay<E: From<ShimError> + From<TchError>>(
        &mut self,
        sort: Sort,
        batch: &Batch,
        factor: f64,
    ) -> Result<Option<Replayed<'_>>, E> {
        let captured = self.on.as_mut().map(|on| on.captured.as_mut_slice());
        let Some((_, captured)) = captured.and_then(|all| all.iter_mut().find(|(of, _)| *of == sort)) else {
            return Ok(None);
        };
        captured.batch.fill(batch)?;
        let _ = captured.factor.f_fill_(factor)?;
        captured.graph.replay()?;
        if let Some(replays) = &mut self.replays {
            *replays += 1;
        }
        Ok(Some(Replayed {
            loss: &captured.loss,
            used: &captured.used,
            memory: captured.memory,
        }))
    }

    /// Something that the graphs touch moves, or their memory is wanted: they are captured anew when it is their turn.
    pub(super) fn forget(&mut self) {
        if let Some(on) = &mut self.on
            && on.pool.take().is_some()
        {
            on.captured.clear();
            // Only speed is lost where it is not given back.
            let _ = memory::empty_cache(Device::Cuda(on.gpu));
        }
    }

    /// Other kernels come, which libraries have to meet first; what spoke against graphs may be gone.
    pub(super) fn restart(&mut self) {
        self.forget();
        self.on = self
            .gpu
            .filter(|_| !self.failed)
            .map(|gpu| On { gpu, ..On::default() });
    }

    /// There are none before the next [`Graphs::restart`], for this reason.
    pub(super) fn refuse(&mut self, reason: impl Into<String>) {
        self.forget();
        self.on = None;
        self.why_not = Some(reason.into());
    }
}

impl On {
    fn capture<E: From<ShimError> + From<TchError>>(
        &mut self,
        batch: &Batch,
        work: impl FnOnce(&Batch, &Tensor) -> Result<(Loss, MicroStepMemory, Vec<bool>), E>,
    ) -> Result<Captured, E> {
        // Memory of the graphs' own is not given to others, nor theirs to it.
        memory::empty_cache(Device::Cuda(self.gpu))?;
        let batch = batch.duplicate()?;
        let factor = Tensor::f_zeros([], (Kind::Float, batch.weights.device()))?;
        let pool = match self.pool {
            Some(pool) => pool,
            None => *self.pool.insert(Pool::new(self.gpu)?),
        };
        let (graph, (loss, memory, used)) = Graph::capture(pool, || work(&batch, &factor))?;
        Ok(Captured {
            graph,
            batch,
            factor,
            loss,
            used,
            memory,
        })
    }
}

/// What of a model cannot be captured; `joint_sums` says that its normalisations exchange sums within a micro-step.
pub(super) fn obstacle(model: &Model, joint_sums: bool) -> Option<&'static str> {
    if !model.task.repeats() {
        return Some(
            "the task does not say that the work of its loss is the same for every batch of a size (`Task::repeats`)",
        );
    }
    if joint_sums {
        return Some("model.batchnorm = \"synced\" exchanges sums between the ranks in the middle of a step");
    }
    if model.recompute.count() > 0 {
        return Some("segments are computed again in backward, for which the host keeps random states");
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::engine::error::TrainError;

    fn sort(samples: usize, first: bool) -> Sort {
        Sort {
            samples,
            weight: samples as f64,
            first,
        }
    }

    /// As on a GPU, on a machine that need not have one.
    fn on() -> Graphs {
        Graphs::new(Compile::Graph, Device::Cuda(0))
    }

    #[test]
    fn without_a_wish_there_is_nothing_and_on_a_cpu_there_is_a_reason() {
        let mut off = Graphs::new(Compile::Off, Device::Cuda(0));
        let mut on_cpu = Graphs::new(Compile::Graph, Device::Cpu);
        for _ in 0..2 * WARM_UP {
            assert_eq!(off.way(sort(4, true), true), Way::Eager);
            assert_eq!(on_cpu.way(sort(4, true), true), Way::Eager);
        }
        assert_eq!((off.take_reason(), off.replays()), (None, None));
        assert_eq!(on_cpu.take_reason().unwrap(), "the training is on the CPU");
        assert_eq!(on_cpu.replays(), Some(0));
    }

    #[test]
    fn what_speaks_against_them_in_one_stage_may_be_gone_in_the_next() {
        let mut graphs = on();
        graphs.refuse("recompute");
        assert_eq!(graphs.take_reason().unwrap(), "recompute");
        for _ in 0..2 * WARM_UP {
            assert_eq!(graphs.way(sort(4, true), true), Way::Eager);
        }
        graphs.restart();
        let ways: Vec<Way> = (0..=WARM_UP).map(|_| graphs.way(sort(4, true), true)).collect();
        assert_eq!(ways.last(), Some(&Way::Capture));
    }

    #[test]
    fn a_sort_of_micro_steps_is_met_some_times_before_its_capture() {
        let mut graphs = on();
        for _ in 0..WARM_UP {
            assert_eq!(graphs.way(sort(4, true), true), Way::Eager);
        }
        assert_eq!(
            graphs.way(sort(4, true), false),
            Way::Eager,
            "its places will move"
        );
        assert_eq!(graphs.way(sort(4, true), true), Way::Capture);
        // Others have their own graph.
        assert_eq!(graphs.way(sort(4, false), true), Way::Eager);
        assert_eq!(graphs.way(sort(3, true), true), Way::Eager);
        let fewer = Sort {
            weight: 3.0,
            ..sort(4, true)
        };
        assert_eq!(graphs.way(fewer, true), Way::Eager);
        // What was met is still met when the graphs go; in another stage it is not.
        graphs.forget();
        assert_eq!(graphs.way(sort(4, true), true), Way::Capture);
        graphs.restart();
        assert_eq!(graphs.way(sort(4, true), true), Way::Eager);
    }

    #[test]
    fn a_capture_that_fails_is_told_once_and_the_last() {
        let mut graphs = on();
        let batch = Batch::blank(&[], 2, Device::Cpu).unwrap();
        // There is no GPU, or the work fails: either way there is a reason.
        let captured = graphs.capture(Sort::of(&batch, true), &batch, |_, _| {
            Err::<(Loss, MicroStepMemory, Vec<bool>), _>(TrainError::LoaderEnded)
        });
        assert!(!captured);
        let reason = graphs.take_reason().unwrap();
        assert!(reason.starts_with("the capture of a step failed: "), "{reason}");
        assert_eq!(graphs.take_reason(), None);
        for _ in 0..2 * WARM_UP {
            assert_eq!(graphs.way(Sort::of(&batch, true), true), Way::Eager);
        }
        let replayed: Result<_, TrainError> = graphs.replay(Sort::of(&batch, true), &batch, 1.0);
        assert!(replayed.unwrap().is_none());
        assert_eq!(graphs.replays(), Some(0));
        // It would fail in the next stage too.
        graphs.restart();
        assert_eq!(graphs.way(Sort::of(&batch, true), true), Way::Eager);
    }
}
