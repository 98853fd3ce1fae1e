//! The reduction: gradients are summed over all ranks bucket by bucket while backward goes on, then the updates of the
//! model's buffers and the status vector.
//!
//! A hook on every parameter counts its bucket down. Buckets start in one fixed order, so that all ranks start the same
//! operations in the same order whatever each of them computes; what has not started when backward ends (parameters that had
//! no gradient here) starts then. This is the scheme of PyTorch's reducer (Li et al. 2020, arXiv 2006.15704) on ranges of an
//! arena: nothing is copied into buckets or out of them.

mod launch;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::{Arc, Mutex};

use dtrain_common::recipe::{self, Compress};
use dtrain_torch_shim::ShimError;
use dtrain_torch_shim::hooks::GradientHook;
use tch::{Device, Kind, TchError, Tensor};
use thiserror::Error;

use self::launch::{Bucket, Flight, Gradient, Shared, State};
use self::wire::Wire;
use super::reading::Reading;
use super::replay::patiently;
use super::status::Status;
use crate::OutOfMemory;
use crate::collectives::{CollectiveError, Ranks, ReduceOp};
use crate::state::{Buffers, Table, narrow};

/// A reduction that failed.
#[derive(Debug, Error)]
pub enum ReduceError {
    /// Between the ranks.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// On this rank.
    #[error(transparent)]
    Torch(#[from] TchError),
    /// A hook could not be set.
    #[error(transparent)]
    Hook(#[from] ShimError),
    /// A gradient changed after its bucket had left.
    #[error(
        "the gradient of {name} was added to after its reduction had begun: the model runs backward more than once per \
         micro-batch; set reduce.overlap = false"
    )]
    Late {
        /// The parameter.
        name: String,
    },
}

/// How gradients are reduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReduceOptions {
    /// Buckets start while backward goes on; otherwise all of them after it.
    pub overlap: bool,
    /// The dtype in which gradients travel and are added, where it is not their own: `BFloat16` or `Half`.
    pub compress: Option<Kind>,
}

impl From<&recipe::Reduce> for ReduceOptions {
    fn from(settings: &recipe::Reduce) -> Self {
        Self {
            overlap: settings.overlap,
            compress: match settings.compress {
                Compress::None => None,
                Compress::Bf16 => Some(Kind::BFloat16),
                Compress::Fp16 => Some(Kind::Half),
            },
        }
    }
}

impl Default for ReduceOptions {
    fn default() -> Self {
        Self {
            overlap: true,
            compress: None,
        }
    }
}

/// What the ranks know of a step's gradient, the same on all of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Found {
    /// The norm of the mean gradient.
    pub(super) norm: f64,
    /// Whether nothing was found in it that is not finite.
    pub(super) finite: bool,
}

/// The hooks of an arena's parameters and the reductions they start.
///
/// Every rank, in every step: [`Reducer::begin`], the micro-steps, [`Reducer::arm`] before the last of them,
/// `Reducer::start_rest`, [`Reducer::finish`]; with sharded updates [`Reducer::gather`] after the update. A rank that cannot
/// take its micro-steps for want of memory calls `Reducer::abandon` in place of what is left of them.
pub struct Reducer {
    shared: Arc<Shared>,
    hooks: Vec<GradientHook>,
    wire: Wire,
}

impl std::fmt::Debug for Reducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reducer")
            .field("ranks", &self.shared.ranks)
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

impl Reducer {
    /// Sets a hook on every parameter of `arena`. An arena has one reducer at a time.
    ///
    /// # Errors
    /// None known.
    pub fn new(ranks: Ranks, table: &Table, options: ReduceOptions) -> Result<Self, ReduceError> {
        let shards = table.shards();
        let mut bucket_of = vec![0; table.leaves().len()];
        let mut buckets = Vec::new();
        for (number, bucket) in table.buckets().iter().enumerate() {
            let flat = table.grad(bucket.block);
            let own = (shards > 1)
                .then(|| narrow(flat, &bucket.part(table.shard(), shards)))
                .transpose()?;
            buckets.push(Bucket {
                grad: narrow(flat, &bucket.range)?,
                own,
                members: bucket.rows.len(),
                pending: 0,
            });
            for &parameter in &bucket.rows {
                bucket_of[parameter] = number;
            }
        }
        let count = bucket_of.len();
        let gradients = table
            .leaves()
            .iter()
            .zip(table.grads()?)
            .map(|(leaf, place)| Gradient {
                leaf: leaf.shallow_clone(),
                place,
            })
            .collect();
        let shared = Arc::new(Shared {
            ranks,
            options,
            names: table.names().map(str::to_owned).collect(),
            bucket_of,
            state: Mutex::new(State {
                gradients,
                buckets,
                armed: false,
                ended: false,
                ran_out: false,
                used: vec![false; count],
                fired: vec![false; count],
                order: Vec::with_capacity(count),
                next: 0,
                in_flight: Vec::new(),
                failed: None,
            }),
        });
        let hooks = table
            .leaves()
            .iter()
            .enumerate()
            .map(|(parameter, leaf)| {
                let shared = Arc::clone(&shared);
                GradientHook::set(leaf, move || shared.ready(parameter))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            shared,
            hooks,
            wire: Wire::default(),
        })
    }

    /// Follows an arena that was laid out anew. Called between two steps.
    ///
    /// # Errors
    /// None known.
    pub fn follow(&mut self, table: &Table) -> Result<(), ReduceError> {
        // A parameter has one hook: the old ones must go before the new ones come.
        self.hooks.clear();
        let new = Self::new(self.shared.ranks.clone(), table, self.shared.options)?;
        (self.shared, self.hooks) = (new.shared, new.hooks);
        Ok(())
    }

    /// Lets go of the table, so that its gradients can be freed. Nothing is reduced until [`Reducer::follow`].
    pub fn release(&mut self) {
        self.hooks.clear();
        // A status has an element for every parameter: the next one has another length.
        self.wire = Wire::default();
        let mut state = self.shared.state();
        state.gradients.clear();
        state.buckets.clear();
    }

    /// A step begins: there are no gradients yet.
    ///
    /// # Errors
    /// None known.
    pub fn begin(&self) -> Result<(), ReduceError> {
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

    /// The next backward pass is the step's last: buckets start as they become complete.
    pub fn arm(&self) {
        self.shared.state().armed = true;
    }

    /// A backward pass was captured and has computed nothing yet: which parameters will have a gradient, in this step so far.
    ///
    /// # Errors
    /// What went wrong in a hook meanwhile, which could tell nobody.
    pub(super) fn captured(&self) -> Result<Vec<bool>, ReduceError> {
        let mut state = self.shared.state();
        if let Some(error) = state.failed.take() {
            return Err(error);
        }
        if std::mem::take(&mut state.ran_out) {
            return Err(
                TchError::Torch("out of memory where gradients are moved into place".to_owned()).into(),
            );
        }
        Ok(state.used.clone())
    }

    /// As if a backward pass whose capture has failed had never begun; `first` says that it would have been the step's first.
    ///
    /// # Errors
    /// None known.
    pub(super) fn forget_capture(&self, first: bool) -> Result<(), ReduceError> {
        {
            let mut state = self.shared.state();
            (state.failed, state.ran_out) = (None, false);
        }
        match first {
            true => self.begin(),
            false => Ok(()),
        }
    }

    /// A backward pass was replayed that leaves gradients of these parameters in their places; no hook has heard of it. Its buckets
    /// start with those of `start_rest`.
    ///
    /// # Errors
    /// None known.
    pub(super) fn replayed(&self, used: &[bool]) -> Result<(), ReduceError> {
        let mut state = self.shared.state();
        let State {
            gradients,
            used: known,
            ..
        } = &mut *state;
        for ((gradient, known), _) in gradients.iter().zip(known).zip(used).filter(|(_, used)| **used) {
            if !std::mem::replace(known, true) {
                gradient.settled()?;
            }
        }
        Ok(())
    }

    /// This rank takes no further micro-step: the memory of gradients that are not in the arena yet is freed. Its buckets leave
    /// all the same, with whatever is in them, as the other ranks wait for them; the step is one to be dropped.
    ///
    /// # Errors
    /// None known.
    pub(super) fn abandon(&self) -> Result<(), ReduceError> {
        let mut state = self.shared.state();
        state.armed = false;
        state.gradients.iter().try_for_each(Gradient::begin)
    }

    /// Starts what has not started when backward has ended, and says whether memory for a reduction was refused on this rank, in
    /// this call or during backward: the step is one to be dropped then, but every bucket has left, and the other ranks wait
    /// for none.
    ///
    /// # Errors
    /// Where a peer is lost; where there is no memory although nothing else of the reduction takes any.
    pub(super) fn start_rest(&self) -> Result<bool, ReduceError> {
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
            match self.shared.start_until(&mut state, end) {
                Ok(()) => {}
                Err(error) if error.is_out_of_memory() => {
                    state.ran_out = true;
                    state.land_all()?;
                    let (device, next) = (state.buckets[state.next].grad.device(), state.next + 1);
                    patiently(device, || self.shared.start_until(&mut state, next))?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(state.ran_out)
    }

    /// Ends the step's reduction: gradients (of the own parts, where updates are sharded) and the buffers' updates are summed
    /// over all ranks, in place, and the statuses merged. Gradients are those of the summed loss times a factor that all ranks
    /// share, so a plain sum is exact, whatever the partition.
    ///
    /// # Errors
    /// Where a peer is lost or memory runs out; the gradients are undefined then.
    pub fn finish(&mut self, buffers: &Buffers, status: Status) -> Result<Status, ReduceError> {
        self.finish_beside(buffers, status, None)
    }

    /// As [`Reducer::finish`], with `figures` on the device summed over all ranks, in place, behind the gradients.
    ///
    /// # Errors
    /// As [`Reducer::finish`].
    pub(super) fn finish_beside(
        &mut self,
        buffers: &Buffers,
        mut status: Status,
        figures: Option<&Tensor>,
    ) -> Result<Status, ReduceError> {
        self.start_rest()?;
        let shared = Arc::clone(&self.shared);
        let flights = {
            let mut state = shared.state();
            status.uses = state.used.iter().map(|&used| f64::from(u8::from(used))).collect();
            std::mem::take(&mut state.in_flight)
        };
        let updates = buffers.start(&shared.ranks)?;
        let totals = figures
            .map(|figures| shared.ranks.all_reduce(figures, ReduceOp::Sum))
            .transpose()?;
        let merged = self.wire.load(&shared.ranks, &status.values())?;
        let statuses = shared.ranks.all_reduce(&merged, ReduceOp::Sum)?;
        flights.into_iter().try_for_each(Flight::land)?;
        updates.wait()?;
        totals.map_or(Ok(()), |totals| totals.wait())?;
        statuses.wait()?;
        Ok(status.merge(&merged)?)
    }

    /// Takes the memory in which statuses like this one travel, so that none is taken for them in a step. Every rank calls it
    /// once, before its first step.
    ///
    /// # Errors
    /// Where a peer is lost or memory runs out.
    pub(super) fn expect(&mut self, mut status: Status) -> Result<(), ReduceError> {
        status.uses = vec![0.0; self.shared.names.len()];
        self.wire.load(&self.shared.ranks, &status.values()).map(drop)
    }

    /// What the ranks need to know of the mean gradient for the host to decide about the step. `found`, where there is one, is a scalar on the
    /// gradients' device, not 0 where an element of those that this rank updates was not finite. The host waits for the device once,
    /// here, for all of it.
    ///
    /// # Errors
    /// As [`Reducer::finish`].
    pub(super) fn judge(&self, table: &Table, found: Option<&Tensor>) -> Result<Found, ReduceError> {
        // What takes memory is apart from what the ranks do together: it can be tried again.
        let figures = patiently(table.device(), || {
            let mut scalars = table.own_norms()?;
            scalars.extend(found.map(Tensor::shallow_clone));
            let scalars: Vec<Tensor> = scalars
                .iter()
                .map(|scalar| scalar.f_to_kind(Kind::Double)?.f_view([1]))
                .collect::<Result<_, TchError>>()?;
            match scalars.as_slice() {
                [] => Ok::<_, ReduceError>(Vec::new()),
                scalars => Reading::begin(&Tensor::f_cat(scalars, 0)?)?.wait(),
            }
        })?;
        let norms = figures.len() - usize::from(found.is_some());
        let squares: f64 = figures[..norms].iter().map(|norm| norm * norm).sum();
        let mut agreed = [squares, figures[norms..].iter().sum()];
        // Where all ranks update everything, they agree already.
        if table.shards() > 1 {
            let own = patiently(Device::Cpu, || Tensor::f_from_slice(&agreed))?;
            self.shared.ranks.all_reduce(&own, ReduceOp::Sum)?.wait()?;
            agreed = [f64::try_from(own.f_get(0)?)?, f64::try_from(own.f_get(1)?)?];
        }
        let [squares, found] = agreed;
        Ok(Found {
            norm: squares.sqrt(),
            finite: found == 0.0,
        })
    }

    /// The ranks that it reduces over.
    pub(super) fn ranks(&self) -> &Ranks {
        &self.shared.ranks
    }

    /// Collects the updated parameters from the ranks that updated them; does nothing where updates are not sharded.
    ///
    /// # Errors
    /// As [`Reducer::finish`].
    pub fn gather(&self, table: &Table) -> Result<(), ReduceError> {
        Ok(table.gather_data(&self.shared.ranks)?)
    }

    /// The order in which gradients became ready in the last backward pass on rank 0, the same on every rank; parameters that
    /// had none come last. Every rank calls it between two steps.
    ///
    /// # Errors
    /// As [`Reducer::finish`].
    pub fn ready_order(&self) -> Result<Vec<usize>, ReduceError> {
        let (mut order, fired) = {
            let state = self.shared.state();
            (state.order.clone(), state.fired.clone())
        };
        order.extend((0..fired.len()).rev().filter(|&parameter| !fired[parameter]));
        let wire: Vec<i64> = order.iter().map(|&parameter| parameter as i64).collect();
        let wire = patiently(Device::Cpu, || Tensor::f_from_slice(&wire))?;
        self.shared.ranks.broadcast(&wire, 0)?.wait()?;
        let order = Vec::<i64>::try_from(&wire)?;
        Ok(order.into_iter().map(|parameter| parameter as usize).collect())
    }
}
