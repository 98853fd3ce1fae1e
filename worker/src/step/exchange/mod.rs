//! All that the ranks of a run say to each other: gradients, summed bucket by bucket while backward goes on, then the updates of the
//! model's buffers, the figures of the step and the status vector; between steps what they have to agree on.
//!
//! A hook on every parameter counts its bucket down. Buckets start in one fixed order, so that all ranks start the same
//! operations in the same order whatever each of them computes; what has not started when backward ends (parameters that had
//! no gradient here) starts then. This is the scheme of PyTorch's reducer (Li et al. 2020, arXiv 2006.15704) on ranges of a
//! table: nothing is copied into buckets or out of them.

mod buckets;
mod joint_sums;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use dtrain_common::recipe::Reduce;
use dtrain_torch_shim::hooks::GradientHook;
use dtrain_torch_shim::tensor;
use tch::{Device, Kind, TchError, Tensor};

use self::buckets::{Flight, Gradient, Shared, State};
pub(crate) use self::joint_sums::{JointSum, RankSync};
use super::recover::patiently;
use super::status::Status;
use crate::OutOfMemory;
use crate::collectives::{Collective, CollectiveError, Ranks, ReduceOp};
use crate::state::{Buffers, Table};
use crate::train_error::Result;

/// The hooks of a table's parameters and the reductions they start, and everything else between the ranks.
///
/// Every rank, in every step: [`Exchange::begin`], the micro-steps, [`Exchange::arm`] before the last of them,
/// [`Exchange::start_rest`], [`Exchange::agree`]. A rank that has no memory for its micro-steps calls
/// [`Exchange::abandon`] and [`Exchange::take_part`] in place of what is left of them.
pub(crate) struct Exchange {
    shared: Arc<Shared>,
    hooks: Vec<GradientHook>,
    /// In which the status vector of every step travels: taken once, so that a rank that has run out of memory can still say so.
    wire: Option<Tensor>,
    /// What the model's normalisations sum over the ranks by, where they do.
    sync: Option<Arc<RankSync>>,
}

impl Exchange {
    /// Sets a hook on every parameter of `table`, which has one exchange at a time.
    pub(crate) fn new(
        ranks: Ranks,
        sync: Option<Arc<RankSync>>,
        table: &Table,
        options: Reduce,
    ) -> Result<Self> {
        let shared = Arc::new(Shared::new(ranks, table, options)?);
        Ok(Self { hooks: Shared::hooks(&shared, table)?, shared, wire: None, sync })
    }

    /// Follows a table that was laid out anew. Called between two steps.
    pub(crate) fn follow(&mut self, table: &Table) -> Result<()> {
        // A parameter has one hook: the old ones must go before the new ones come.
        self.hooks.clear();
        let (ranks, options) = (self.shared.ranks.clone(), self.shared.options.clone());
        self.shared = Arc::new(Shared::new(ranks, table, options)?);
        self.hooks = Shared::hooks(&self.shared, table)?;
        Ok(())
    }

    /// Lets go of the table, so that its gradients can be freed. Nothing is reduced until [`Exchange::follow`].
    pub(crate) fn release(&mut self) {
        self.hooks.clear();
        // A status has an element for every parameter: the next one has another length.
        self.wire = None;
        let mut state = self.shared.state();
        state.gradients.clear();
        state.buckets.clear();
        drop(state);
        // What is trained decides which sums backward takes.
        self.forget_sums();
    }

    /// The model computes in another way from now on: its micro-steps may take other sums over the ranks.
    pub(crate) fn forget_sums(&self) {
        if let Some(sync) = &self.sync {
            sync.forget();
        }
    }

    /// The ranks, for what they do between two steps: an evaluation adds up its figures, and a table that is laid out anew its parts.
    pub(crate) fn ranks(&self) -> &Ranks {
        &self.shared.ranks
    }

    pub(crate) fn rank(&self) -> usize {
        self.ranks().rank()
    }

    /// Whether the model's normalisations exchange sums within a micro-step, or may: none has been taken yet.
    pub(crate) fn sums_jointly(&self) -> bool {
        self.sync.as_ref().is_some_and(|sync| sync.known().is_none_or(|sums| !sums.is_empty()))
    }

    /// A status of a task that counts `sums` figures, in which a rank has nothing to say.
    pub(crate) fn blank(&self, sums: usize) -> Status {
        Status::blank(sums, self.ranks().size())
    }

    /// Takes the memory in which the statuses of a task that counts `sums` figures travel, so that none is taken for them in a step.
    /// Every rank calls it once, before its first step.
    pub(crate) fn expect(&mut self, sums: usize) -> Result<()> {
        let mut status = self.blank(sums);
        status.uses = vec![0.0; self.shared.names.len()];
        self.load(&status.values()).map(drop)
    }

    /// A status in float64 on the CPU, in memory of the group's where it has such memory. All statuses of a phase are of one
    /// length; only the first one takes memory.
    fn load(&mut self, status: &[f64]) -> Result<Tensor> {
        let wire = match self.wire.take().filter(|wire| wire.numel() == status.len()) {
            Some(wire) => wire,
            None => match self.shared.ranks.allocate(status.len(), Kind::Double)? {
                Some(memory) => memory,
                None => Tensor::f_zeros([status.len() as i64], (Kind::Double, Device::Cpu))?,
            },
        };
        tensor::write(&wire, status)?;
        Ok(self.wire.insert(wire).shallow_clone())
    }

    /// A step begins: there are no gradients yet.
    pub(crate) fn begin(&self) -> Result<()> {
        let mut state = self.shared.state();
        state.used.fill(false);
        (state.armed, state.ended, state.ran_out) = (false, false, false);
        state.fired.fill(false);
        state.order.clear();
        state.next = 0;
        for bucket in &mut state.buckets {
            bucket.pending = bucket.members;
        }
        state.gradients.iter().try_for_each(Gradient::begin)
    }

    pub(crate) fn begin_micro_step(&self) {
        if let Some(sync) = &self.sync {
            sync.begin();
        }
    }

    /// The next backward pass is the step's last: buckets start as they become complete.
    pub(crate) fn arm(&self) {
        self.shared.state().armed = true;
    }

    pub(crate) fn end_micro_step(&self) -> Result<()> {
        self.sync.as_ref().map_or(Ok(()), |sync| sync.end())
    }

    /// A backward pass was captured and has computed nothing yet: which parameters will have a gradient, in this step so far.
    pub(crate) fn captured(&self) -> Result<Vec<bool>> {
        let mut state = self.shared.state();
        if let Some(error) = state.failed.take() {
            return Err(error);
        }
        if std::mem::take(&mut state.ran_out) {
            let words = "out of memory where gradients are moved into place";
            return Err(TchError::Torch(words.to_owned()).into());
        }
        Ok(state.used.clone())
    }

    /// As if a backward pass whose capture has failed had never begun; `first` says that it would have been the step's first.
    pub(crate) fn forget_capture(&self, first: bool) -> Result<()> {
        let mut state = self.shared.state();
        (state.failed, state.ran_out) = (None, false);
        drop(state);
        if first { self.begin() } else { Ok(()) }
    }

    /// A backward pass was replayed that leaves gradients of these parameters in their places; no hook has heard of it. Its buckets
    /// start with those of [`Exchange::start_rest`].
    pub(crate) fn replayed(&self, used: &[bool]) -> Result<()> {
        let mut state = self.shared.state();
        let State { gradients, used: known, .. } = &mut *state;
        for ((gradient, known), _) in gradients.iter().zip(known).zip(used).filter(|(_, used)| **used) {
            if !std::mem::replace(known, true) {
                gradient.settled()?;
            }
        }
        Ok(())
    }

    /// This rank takes no further micro-step: the memory of gradients that are not in the table yet is freed. Its buckets leave
    /// all the same, with whatever is in them, as the other ranks wait for them; the step is one to be dropped.
    pub(crate) fn abandon(&self) -> Result<()> {
        let mut state = self.shared.state();
        state.armed = false;
        state.gradients.iter().try_for_each(Gradient::begin)
    }

    /// Takes part in the sums that the others still wait for in `micro_steps`, of which the first may be one that failed in the middle.
    pub(crate) fn take_part(&self, micro_steps: usize) -> Result<()> {
        self.sync.as_ref().map_or(Ok(()), |sync| sync.take_part(micro_steps))
    }

    /// Starts what has not started when backward has ended, and says whether memory for a reduction was refused on
    /// this rank: the step is to be dropped then, but every bucket has left, and the other ranks wait for none.
    pub(crate) fn start_rest(&self) -> Result<bool> {
        let mut state = self.shared.state();
        if state.ended {
            return Ok(state.ran_out);
        }
        (state.armed, state.ended) = (false, true);
        if let Some(error) = state.failed.take() {
            return Err(error);
        }
        let State { gradients, used, .. } = &mut *state;
        for (gradient, _) in gradients.iter_mut().zip(used).filter(|(_, used)| !**used) {
            gradient.absent()?;
        }
        let end = state.buckets.len();
        while state.next < end {
            let Err(error) = self.shared.start_until(&mut state, end) else { break };
            if !error.is_out_of_memory() {
                return Err(error);
            }
            state.ran_out = true;
            // The memory that all else travels in is free then: the other ranks wait for none of this rank's next ones.
            state.in_flight.drain(..).try_for_each(Flight::land)?;
            let (device, next) = (state.buckets[state.next].grad.device(), state.next + 1);
            patiently(device, || self.shared.start_until(&mut state, next))?;
        }
        Ok(state.ran_out)
    }

    /// Ends the step's reduction: gradients (of the own parts, where updates are sharded), the buffers' updates and behind them
    /// `figures` on the device are summed over all ranks, in place, and the statuses merged.
    pub(crate) fn agree(
        &mut self,
        buffers: &Buffers,
        mut status: Status,
        figures: Option<&Tensor>,
    ) -> Result<Status> {
        self.start_rest()?;
        let shared = Arc::clone(&self.shared);
        let flights = {
            let mut state = shared.state();
            status.uses = state.used.iter().map(|&used| f64::from(u8::from(used))).collect();
            std::mem::take(&mut state.in_flight)
        };
        let updates = buffers.start(&shared.ranks)?;
        let sum = |tensor: &Tensor| shared.ranks.all_reduce(tensor, ReduceOp::Sum);
        let totals = figures.map(sum).transpose()?;
        let merged = self.load(&status.values())?;
        let statuses = sum(&merged)?;
        flights.into_iter().try_for_each(Flight::land)?;
        updates.wait()?;
        totals.map_or(Ok(()), |totals| totals.wait())?;
        statuses.wait()?;
        Ok(status.merge(&merged)?)
    }

    /// Sums `figures` over all ranks, in place.
    pub(crate) fn sum(&self, figures: &Tensor) -> Result<(), CollectiveError> {
        self.ranks().all_reduce(figures, ReduceOp::Sum)?.wait()
    }

    /// Whether it is so on any rank. Returns when every rank has come here: on a GPU only the stream would wait, so the hosts meet.
    pub(crate) fn any(&self, here: bool) -> Result<bool> {
        let any = patiently(Device::Cpu, || Tensor::f_from_slice(&[i64::from(here)]))?;
        self.ranks().all_reduce(&any, ReduceOp::Sum)?.wait()?;
        Ok(any.f_int64_value(&[0])? > 0)
    }

    /// Whether what came of the ranks' operations in a step can be believed: asked before a step commits, when the host has waited for
    /// the device. The sums of normalisations have a group of their own, which breaks on its own.
    pub(crate) fn health(&self) -> Result<(), CollectiveError> {
        self.ranks().health()?;
        self.sync.as_ref().map_or(Ok(()), |sync| sync.health())
    }

    /// The order in which gradients became ready in the last backward pass on rank 0, the same on every rank; parameters that
    /// had none come last. Every rank calls it between two steps.
    pub(crate) fn ready_order(&self) -> Result<Vec<usize>> {
        let (mut order, fired) = {
            let state = self.shared.state();
            (state.order.clone(), state.fired.clone())
        };
        order.extend((0..fired.len()).rev().filter(|&parameter| !fired[parameter]));
        let wire: Vec<i64> = order.iter().map(|&parameter| parameter as i64).collect();
        let wire = patiently(Device::Cpu, || Tensor::f_from_slice(&wire))?;
        self.ranks().start(Collective::Broadcast(&wire, 0))?.wait()?;
        let order = Vec::<i64>::try_from(&wire)?;
        Ok(order.into_iter().map(|parameter| parameter as usize).collect())
    }
}
