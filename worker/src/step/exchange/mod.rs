//! All communication between ranks. In a step: gradients, summed bucket by bucket during backward, then
//! changes of the model's buffers, the figures and the status vector. Between steps: common decisions.
//!
//! A hook on every parameter counts its bucket down. Buckets start in one fixed order, so that all ranks
//! start the same operations in the same order. The other buckets, with parameters that had no gradient here,
//! start after backward. PyTorch's reducer works in this way (Li et al. 2020, arXiv 2006.15704); here buckets
//! are ranges of a table, without copies.
//!
//! A recomputed segment has its own backward pass. So backward adds several times to the gradient of a parameter that
//! segments share, and its bucket starts after backward. The first step with a number of recomputed segments finds these
//! parameters; all its buckets start after backward. A rank that waits longer than others changes no order.

mod buckets;
mod joint_sums;
mod numbers;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use dtrain_common::trace::{self, Kind as Traced};
use dtrain_recipe::Reduce;
use dtrain_torch_shim::hooks::GradientHook;
use dtrain_torch_shim::tensor;
use tch::{Device, Kind, TchError, Tensor};

use self::buckets::{PendingReduction, Shared, State};
pub(crate) use self::joint_sums::{JointSum, Pass, RankSync};
pub(crate) use self::numbers::gather_numbers;
use super::recover::retry_on_oom;
use super::status::Status;
use crate::OutOfMemory;
use crate::collectives::{Collective, CollectiveError, Ranks, ReduceOp};
use crate::data::{Dataset, SampleHashes};
use crate::state::{Buffers, Table};
use crate::step::error::Result;

/// The hooks of a table's parameters, the reductions that they start, and all other communication.
///
/// Every rank calls in every step: [`Exchange::begin`], the micro-steps, [`Exchange::arm`] before the last of
/// them, [`Exchange::start_remaining`], [`Exchange::agree`]. If a rank has no memory for its micro-steps, it calls
/// [`Exchange::abandon`] and [`Exchange::join_remaining_sums`] instead of the remaining ones.
pub(crate) struct Exchange {
    shared: Arc<Shared>,
    hooks: Vec<GradientHook>,
    /// Memory of the status vector, allocated once, so that a rank without memory can still report.
    status_buffer: Option<Tensor>,
    /// The sums of the model's normalisations over ranks, if it has any.
    sync: Option<Arc<RankSync>>,
}

impl Exchange {
    /// Sets a hook on every parameter of `table`. A table has one exchange at a time.
    pub(crate) fn new(
        ranks: Ranks,
        sync: Option<Arc<RankSync>>,
        table: &Table,
        options: Reduce,
    ) -> Result<Self> {
        let shared = Arc::new(Shared::new(ranks, table, options)?);
        Ok(Self { hooks: Shared::set_hooks(&shared)?, shared, status_buffer: None, sync })
    }

    /// Adapts to a new layout of the table. Call it between two steps.
    pub(crate) fn adapt_to(&mut self, table: &Table) -> Result<()> {
        // A parameter has one hook, so the old hooks are removed first.
        self.hooks.clear();
        let (ranks, options) = (self.shared.ranks.clone(), self.shared.options.clone());
        self.shared = Arc::new(Shared::new(ranks, table, options)?);
        self.hooks = Shared::set_hooks(&self.shared)?;
        Ok(())
    }

    /// Releases the table, so that its gradients can be freed. Call [`Exchange::adapt_to`] next.
    pub(crate) fn release(&mut self) {
        self.hooks.clear();
        // A status has an element for every parameter, so its length changes.
        self.status_buffer = None;
        let mut state = self.shared.state();
        state.gradients.clear();
        state.buckets.clear();
        drop(state);
        // The trained parameters determine the sums in backward.
        self.forget_sums();
    }

    /// Forgets the sums within micro-steps. Call it when the model changes its computation.
    pub(crate) fn forget_sums(&self) {
        if let Some(sync) = &self.sync {
            sync.forget();
        }
    }

    /// Returns the ranks, for operations between steps.
    pub(crate) fn ranks(&self) -> &Ranks {
        &self.shared.ranks
    }

    pub(crate) fn rank(&self) -> usize {
        self.ranks().rank()
    }

    /// Returns whether normalisations sum over ranks in a micro-step; also true before the first micro-step.
    pub(crate) fn has_joint_sums(&self) -> bool {
        self.sync.as_ref().is_some_and(|sync| sync.sums().is_none_or(|[_, whole]| !whole.is_empty()))
    }

    /// Returns an empty status of a step, which needs no figures of the task.
    pub(crate) fn empty_status(&self) -> Status {
        Status::empty(0, self.ranks().size())
    }

    /// Allocates the memory of statuses for a task that trains on samples of `train`, so that steps do not. Every rank calls it before
    /// the first step of a phase.
    pub(crate) fn prepare_statuses(&mut self, train: &dyn Dataset) -> Result<()> {
        let mut status = self.empty_status();
        status.samples = SampleHashes::none_of(train).to_figures();
        status.uses = vec![0.0; self.shared.names.len()];
        self.write_status(&status.values()).map(drop)
    }

    /// Writes a status into a float64 tensor on the CPU, in memory of the process group if it has any. All
    /// statuses of a phase have one length, so only the first one allocates.
    fn write_status(&mut self, status: &[f64]) -> Result<Tensor> {
        let buffer = match self.status_buffer.take().filter(|buffer| buffer.numel() == status.len()) {
            Some(buffer) => buffer,
            None => match self.shared.ranks.allocate(status.len(), Kind::Double)? {
                Some(memory) => memory,
                None => Tensor::f_zeros([status.len() as i64], (Kind::Double, Device::Cpu))?,
            },
        };
        tensor::write(&buffer, status)?;
        Ok(self.status_buffer.insert(buffer).shallow_clone())
    }

    /// Begins a step, in which backward recomputes this number of segments: clears all gradients.
    pub(crate) fn begin(&self, recomputed: usize) -> Result<()> {
        let mut state = self.shared.state();
        if state.recomputed.replace(recomputed) != Some(recomputed) {
            // Without recomputation, backward adds to a gradient once.
            state.knows_repeated = recomputed == 0;
            state.repeated.fill(false);
        }
        state.clear()
    }

    pub(crate) fn begin_micro_step(&self, pass: Pass) {
        if let Some(sync) = &self.sync {
            sync.begin(pass);
        }
    }

    /// Announces the step's last backward pass, in which buckets start as they become complete.
    pub(crate) fn arm(&self) {
        self.shared.state().armed = true;
    }

    pub(crate) fn end_micro_step(&self) -> Result<()> {
        self.shared.state().store_waiting()?;
        self.sync.as_ref().map_or(Ok(()), |sync| sync.end())
    }

    /// Ends the capture of a backward pass. Returns which parameters have a gradient in this step so far.
    pub(crate) fn finish_capture(&self) -> Result<Vec<bool>> {
        let mut state = self.shared.state();
        if let Some(error) = state.failed.take() {
            return Err(error);
        }
        if std::mem::take(&mut state.ran_out) {
            let words = "out of memory while storing gradients";
            return Err(TchError::Torch(words.to_owned()).into());
        }
        state.store_waiting()?;
        Ok(state.used.clone())
    }

    /// Returns which parameters have a gradient in this step so far, for [`Exchange::undo_capture`].
    pub(crate) fn used(&self) -> Vec<bool> {
        self.shared.state().used.clone()
    }

    /// Undoes a failed capture of a backward pass, before which these parameters had a gradient.
    pub(crate) fn undo_capture(&self, used: &[bool]) -> Result<()> {
        let mut state = self.shared.state();
        (state.failed, state.ran_out) = (None, false);
        state.forget_since(used)
    }

    /// Records a replayed backward pass, which left gradients of these parameters in the table without hooks.
    /// Its buckets start in [`Exchange::start_remaining`].
    pub(crate) fn record_replay(&self, used: &[bool]) -> Result<()> {
        let mut state = self.shared.state();
        let State { gradients, used: known, .. } = &mut *state;
        for ((gradient, known), _) in gradients.iter().zip(known).zip(used).filter(|(_, used)| **used) {
            if !std::mem::replace(known, true) {
                gradient.use_view()?;
            }
        }
        Ok(())
    }

    /// Ends the micro-steps of this rank and frees gradients outside the table. The step must be dropped; its
    /// buckets still start, with any values, because the other ranks wait for them.
    pub(crate) fn abandon(&self) -> Result<()> {
        let mut state = self.shared.state();
        state.armed = false;
        let none = vec![false; state.used.len()];
        state.forget_since(&none)
    }

    /// Takes part in the sums that other ranks wait for in `micro_steps` of a pass; the first may have failed midway.
    pub(crate) fn join_remaining_sums(&self, pass: Pass, micro_steps: usize) -> Result<()> {
        self.sync.as_ref().map_or(Ok(()), |sync| sync.join_remaining_sums(pass, micro_steps))
    }

    /// Starts the remaining buckets after backward. Returns whether an allocation for a reduction failed.
    /// Then the step must be dropped, but all buckets have started, and no rank waits.
    pub(crate) fn start_remaining(&self) -> Result<bool> {
        let mut state = self.shared.state();
        if state.ended {
            return Ok(state.ran_out);
        }
        // A pass that failed is not armed any more.
        state.knows_repeated |= state.armed;
        (state.armed, state.ended) = (false, true);
        if let Some(error) = state.failed.take() {
            return Err(error);
        }
        let State { gradients, used, .. } = &mut *state;
        for (gradient, _) in gradients.iter_mut().zip(used).filter(|(_, used)| !**used) {
            gradient.zero()?;
        }
        let end = state.buckets.len();
        while state.next_bucket < end {
            let Err(error) = self.shared.start_until(&mut state, end) else { break };
            if !error.is_out_of_memory() {
                return Err(error);
            }
            state.ran_out = true;
            // Frees the memory of started reductions, which complete on all ranks without later ones.
            state.pending.drain(..).try_for_each(PendingReduction::finish)?;
            let (device, next) = (state.buckets[state.next_bucket].grad.device(), state.next_bucket + 1);
            retry_on_oom(device, || self.shared.start_until(&mut state, next))?;
        }
        Ok(state.ran_out)
    }

    /// Ends the step's reduction: sums over all ranks, in place, the gradients (own parts, if sharded), the
    /// changes of buffers and `figures` on the device, and merges the statuses.
    pub(crate) fn agree(
        &mut self,
        buffers: &Buffers,
        mut status: Status,
        figures: Option<&Tensor>,
    ) -> Result<Status> {
        let _agree = trace::span(Traced::Communication, "agree");
        self.start_remaining()?;
        let shared = Arc::clone(&self.shared);
        let reductions = {
            let mut state = shared.state();
            status.uses = state.used.iter().map(|&used| f64::from(u8::from(used))).collect();
            std::mem::take(&mut state.pending)
        };
        let updates = buffers.start_reduce(&shared.ranks)?;
        let sum = |tensor: &Tensor| shared.ranks.all_reduce(tensor, ReduceOp::Sum);
        let totals = figures.map(sum).transpose()?;
        let merged = self.write_status(&status.values())?;
        let statuses = sum(&merged)?;
        reductions.into_iter().try_for_each(PendingReduction::finish)?;
        updates.wait()?;
        totals.map_or(Ok(()), |totals| totals.wait())?;
        statuses.wait()?;
        Ok(status.merge(&merged)?)
    }

    /// Sums `figures` over all ranks, in place.
    pub(crate) fn sum(&self, figures: &Tensor) -> Result<(), CollectiveError> {
        self.ranks().all_reduce(figures, ReduceOp::Sum)?.wait()
    }

    /// Returns whether `value` is true on any rank. Hosts wait for each other, as the tensor is on the CPU.
    pub(crate) fn any_rank(&self, value: bool) -> Result<bool> {
        let any = retry_on_oom(Device::Cpu, || Tensor::f_from_slice(&[i64::from(value)]))?;
        self.ranks().all_reduce(&any, ReduceOp::Sum)?.wait()?;
        Ok(any.f_int64_value(&[0])? > 0)
    }

    /// Checks the process groups before a step commits, after the host has waited for the device. The sums of
    /// normalisations use a separate group, which can break alone.
    pub(crate) fn check_health(&self) -> Result<(), CollectiveError> {
        self.ranks().health()?;
        self.sync.as_ref().map_or(Ok(()), |sync| sync.check_health())
    }

    /// Returns the order in which gradients became complete in the last backward pass on rank 0, then parameters
    /// without a gradient. All ranks get the same order. Every rank calls it between two steps.
    pub(crate) fn gradient_order(&self) -> Result<Vec<usize>> {
        let (mut order, fired) = {
            let state = self.shared.state();
            (state.order.clone(), state.fired.clone())
        };
        order.extend((0..fired.len()).rev().filter(|&parameter| !fired[parameter]));
        let numbers: Vec<i64> = order.iter().map(|&parameter| parameter as i64).collect();
        let numbers = retry_on_oom(Device::Cpu, || Tensor::f_from_slice(&numbers))?;
        self.ranks().start(Collective::Broadcast(&numbers, 0))?.wait()?;
        let order = Vec::<i64>::try_from(&numbers)?;
        Ok(order.into_iter().map(|parameter| parameter as usize).collect())
    }
}
