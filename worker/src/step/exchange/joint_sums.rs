//! Batch normalisation over all ranks: sums of statistics inside the autograd graph.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use dtrain_torch_shim::hooks::apply_self_adjoint;
use tch::{Device, Kind, Tensor};

use super::super::recover::retry_on_oom;
use crate::collectives::{CollectiveError, Ranks, ReduceOp};
use crate::models::{BatchSync, ModelError};
use crate::step::error::{Result, StepError};

/// Sums over ranks for the layers of a model, which is built before the ranks connect. They use a separate
/// process group, because the reduction of gradients runs at the same time.
///
/// A rank that runs out of memory within a micro-step must not leave the others waiting in these sums. Every
/// micro-step has the same sums, so the first one records them. The trainer calls `RankSync::begin` before a
/// micro-step, `RankSync::end` after it, and `RankSync::join_remaining_sums` after a failure.
#[derive(Debug)]
pub(crate) struct RankSync {
    size: usize,
    ranks: Arc<OnceLock<Mutex<Ranks>>>,
    sums: Arc<Mutex<Sums>>,
}

/// A sum in a micro-step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JointSum {
    pub(crate) elements: usize,
    pub(crate) kind: Kind,
    pub(crate) device: Device,
}

/// A pass of all micro-steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Forward alone, for a loss over the whole step.
    Outputs,
    /// Forward and backward.
    #[default]
    Whole,
}

#[derive(Debug, Default)]
struct Sums {
    /// By pass: the sums of every micro-step, in order, once known.
    recorded: [Option<Vec<JointSum>>; 2],
    /// The pass of the current micro-step.
    pass: Pass,
    /// The sums of the current micro-step so far.
    current: Vec<JointSum>,
    /// Memory for `join_remaining_sums`, one tensor per dtype and device, allocated in advance.
    buffers: Vec<Tensor>,
}

impl RankSync {
    pub(crate) fn new(size: usize) -> Self {
        Self { size, ranks: Arc::default(), sums: Arc::default() }
    }

    /// Connects the ranks. Call it once, before the first forward pass.
    pub(crate) fn connect(&self, ranks: Ranks) {
        // A second call has no effect.
        let _ = self.ranks.set(Mutex::new(ranks));
    }

    /// Sets the sums of a micro-step in each pass, in order, before the first one. Without it, a failure in the first
    /// micro-step ends the run.
    pub(crate) fn set_sums(&self, [outputs, whole]: [Vec<JointSum>; 2]) -> Result<()> {
        self.record(Pass::Outputs, outputs)?;
        self.record(Pass::Whole, whole)
    }

    fn record(&self, pass: Pass, sums: Vec<JointSum>) -> Result<()> {
        let mut state = lock(&self.sums);
        state.recorded[pass as usize] = Some(sums);
        let all: Vec<_> = state.recorded.iter().flatten().flatten().copied().collect();
        state.buffers = allocate_buffers(&all)?;
        Ok(())
    }

    /// Checks the health of the group, once the ranks are connected.
    pub(super) fn check_health(&self) -> Result<(), CollectiveError> {
        self.ranks.get().map(lock).map_or(Ok(()), |ranks| ranks.health())
    }

    /// Returns the sums of a micro-step in each pass, in order, once a micro-step has run.
    pub(crate) fn sums(&self) -> Option<[Vec<JointSum>; 2]> {
        let [outputs, whole] = lock(&self.sums).recorded.clone();
        Some([outputs.unwrap_or_default(), whole?])
    }

    /// Forgets the sums. Call it when the model changes its computation.
    pub(super) fn forget(&self) {
        *lock(&self.sums) = Sums::default();
    }

    pub(super) fn begin(&self, pass: Pass) {
        let mut state = lock(&self.sums);
        state.current.clear();
        state.pass = pass;
    }

    pub(super) fn end(&self) -> Result<()> {
        let (current, pass, is_recorded) = {
            let mut state = lock(&self.sums);
            let (current, pass) = (std::mem::take(&mut state.current), state.pass);
            (current, pass, state.recorded[pass as usize].is_some())
        };
        if is_recorded { Ok(()) } else { self.record(pass, current) }
    }

    /// Takes part, with zeros, in the sums that the other ranks still wait for in `micro_steps` of a pass; the first of
    /// these may have failed midway.
    pub(super) fn join_remaining_sums(&self, pass: Pass, micro_steps: usize) -> Result<()> {
        let mut state = lock(&self.sums);
        let done = std::mem::take(&mut state.current).len();
        if micro_steps == 0 || self.size == 1 {
            return Ok(());
        }
        let [_, whole] = &state.recorded;
        // Without sums in the whole pass, its parts have no sums.
        let none = whole.as_ref().filter(|whole| whole.is_empty());
        let recorded = state.recorded[pass as usize].as_ref().or(none).ok_or(StepError::UnknownSums)?;
        let every = std::iter::repeat_n(recorded, micro_steps).flatten();
        let Some(ranks) = self.ranks.get().map(lock) else { return Ok(()) };
        for sum in every.skip(done) {
            let Some(buffer) = state.buffers.iter().find(|buffer| fits(buffer, sum)) else { continue };
            let mut zeros = buffer.f_narrow(0, 0, sum.elements as i64)?;
            let _ = tch::no_grad(|| zeros.f_zero_())?;
            ranks.all_reduce(&zeros, ReduceOp::Sum)?.wait()?;
        }
        Ok(())
    }
}

impl BatchSync for RankSync {
    fn all_reduce(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        let (shared, sums) = (Arc::clone(&self.ranks), Arc::clone(&self.sums));
        apply_self_adjoint(x, move |tensor| {
            let ranks = lock(shared.get().ok_or("the ranks are not connected yet")?);
            ranks.all_reduce(tensor, ReduceOp::Sum)?.wait()?;
            lock(&sums).current.push(JointSum {
                elements: tensor.numel(),
                kind: tensor.kind(),
                device: tensor.device(),
            });
            Ok(())
        })
        .map_err(|error| ModelError::Sync(error.into()))
    }

    fn participants(&self) -> usize {
        self.size
    }
}

/// Allocates one tensor for every dtype and device of `sums`, as long as the longest sum.
fn allocate_buffers(sums: &[JointSum]) -> Result<Vec<Tensor>> {
    let mut longest_first = sums.to_vec();
    longest_first.sort_by_key(|sum| std::cmp::Reverse(sum.elements));
    let mut buffers: Vec<Tensor> = Vec::new();
    for sum in longest_first {
        if !buffers.iter().any(|buffer| fits(buffer, &sum)) {
            let zeros = || Tensor::f_zeros([sum.elements as i64], (sum.kind, sum.device));
            buffers.push(retry_on_oom(sum.device, zeros)?);
        }
    }
    Ok(buffers)
}

fn fits(buffer: &Tensor, sum: &JointSum) -> bool {
    buffer.kind() == sum.kind && buffer.device() == sum.device && buffer.numel() >= sum.elements
}

/// Locks and ignores poisoning: the thread that panicked reports it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Duration;

    use super::super::Exchange;
    use crate::collectives::{Collective, Operation, ProcessGroup, Work};
    use crate::state::Table;

    /// One of two ranks, which records its sums and sends nothing; the flag makes `health` fail.
    struct Counting(Arc<Mutex<Vec<usize>>>, bool);

    impl ProcessGroup for Counting {
        fn rank_and_size(&self) -> (usize, usize) {
            (0, 2)
        }
        fn set_timeout(&mut self, _: Duration) {}
        fn start(&self, one: Collective<'_>) -> Result<Box<dyn Work>, CollectiveError> {
            if let Collective::AllReduce(tensor, _) = one {
                self.0.lock().unwrap().push(tensor.numel());
            }
            self.barrier()
        }
        fn barrier(&self) -> Result<Box<dyn Work>, CollectiveError> {
            Ok(Box::new(crate::collectives::CompletedWork))
        }
        fn health(&self) -> Result<(), CollectiveError> {
            let lost = CollectiveError::PeerLost(Operation::new("all_reduce", 0), "made to fail".to_owned());
            if self.1 { Err(lost) } else { Ok(()) }
        }
        fn shutdown(self: Box<Self>) -> Result<(), CollectiveError> {
            Ok(())
        }
    }

    #[test]
    fn a_broken_normalisation_group_fails_the_health_check() {
        let group = |broken| Ranks::new(Box::new(Counting(Arc::default(), broken)));
        let nothing = Table::of(std::iter::empty::<(&str, &Tensor)>()).unwrap();
        let health = |ranks: Ranks, sync: Option<&Arc<RankSync>>| {
            let options = dtrain_recipe::Reduce::default();
            Exchange::new(ranks, sync.cloned(), &nothing, options).unwrap().check_health()
        };
        let sync = Arc::new(RankSync::new(2));
        assert!(health(group(false), None).is_ok());
        assert!(health(group(true), None).is_err());
        // Before the ranks connect, the check passes.
        assert!(health(group(false), Some(&sync)).is_ok());
        sync.connect(group(true));
        let error = health(group(false), Some(&sync)).unwrap_err();
        assert!(error.to_string().contains("made to fail"), "{error}");
    }

    #[test]
    fn a_failed_rank_joins_the_remaining_sums() {
        let (sync, seen) = (RankSync::new(2), Arc::default());
        sync.connect(Ranks::new(Box::new(Counting(Arc::clone(&seen), false))));
        let call = |elements: i64| {
            let ones = Tensor::ones([elements], (Kind::Float, Device::Cpu));
            sync.all_reduce(&ones).map(drop)
        };
        sync.begin(Pass::Whole);
        assert!(matches!(sync.join_remaining_sums(Pass::Whole, 2), Err(StepError::UnknownSums)));
        for elements in [3, 5, 5, 3] {
            call(elements).unwrap();
        }
        sync.end().unwrap();
        seen.lock().unwrap().clear();
        // The second of four micro-steps fails after its first sum.
        sync.begin(Pass::Whole);
        call(3).unwrap();
        sync.join_remaining_sums(Pass::Whole, 3).unwrap();
        assert_eq!(*seen.lock().unwrap(), [3, 5, 5, 3, 3, 5, 5, 3, 3, 5, 5, 3]);
        // A failure between micro-steps, and a failure after the last one.
        seen.lock().unwrap().clear();
        sync.join_remaining_sums(Pass::Whole, 1).unwrap();
        sync.join_remaining_sums(Pass::Whole, 0).unwrap();
        assert_eq!(*seen.lock().unwrap(), [3, 5, 5, 3]);
        sync.forget();
        assert!(matches!(sync.join_remaining_sums(Pass::Whole, 1), Err(StepError::UnknownSums)));
        let sum = |elements| JointSum { elements, kind: Kind::Float, device: Device::Cpu };
        sync.set_sums([Vec::new(), vec![sum(2), sum(7)]]).unwrap();
        seen.lock().unwrap().clear();
        sync.join_remaining_sums(Pass::Whole, 1).unwrap();
        assert_eq!(*seen.lock().unwrap(), [2, 7]);
    }
}
