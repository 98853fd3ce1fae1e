//! The hooks' side of the reducer: which buckets are complete, and the reductions that are under way.

use std::sync::{Mutex, MutexGuard, PoisonError};

use dtrain_torch_shim::tensor::{clear_grad, set_grad};
use tch::Tensor;

use super::{ReduceError, ReduceOptions};
use crate::OutOfMemory;
use crate::collectives::{Ranks, ReduceOp, Work};

pub(super) struct Shared {
    pub(super) ranks: Ranks,
    pub(super) options: ReduceOptions,
    pub(super) names: Vec<String>,
    /// By parameter.
    pub(super) bucket_of: Vec<usize>,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    /// By parameter.
    pub(super) gradients: Vec<Gradient>,
    pub(super) buckets: Vec<Bucket>,
    pub(super) armed: bool,
    /// Every bucket of the step has left, or none that has not can leave any more.
    pub(super) ended: bool,
    /// Memory for a reduction was refused on this rank in this step.
    pub(super) ran_out: bool,
    /// Whether a parameter's gradient was added to in this step, and since the reducer was armed.
    pub(super) used: Vec<bool>,
    pub(super) fired: Vec<bool>,
    /// Parameters in the order in which they fired last.
    pub(super) order: Vec<usize>,
    /// The bucket that starts next.
    pub(super) next: usize,
    pub(super) in_flight: Vec<Flight>,
    pub(super) failed: Option<ReduceError>,
}

/// A parameter and the place of its gradient in the arena.
///
/// A step begins without gradients, so that backward hands over the tensor it has computed instead of adding it to zeros;
/// that one is copied into the arena, and what follows in the same step is added to it there. This saves setting the arena
/// to zero, and reading it.
pub(super) struct Gradient {
    pub(super) leaf: Tensor,
    pub(super) place: Tensor,
}

impl Gradient {
    pub(super) fn begin(&self) -> Result<(), ReduceError> {
        Ok(clear_grad(&self.leaf)?)
    }

    /// Moves the step's first gradient into its place.
    fn settle(&mut self) -> Result<(), ReduceError> {
        let first = self.leaf.f_grad()?;
        tch::no_grad(|| self.place.f_copy_(&first))?;
        self.settled()
    }

    /// The step's first gradient is in its place: what follows is added to it.
    pub(super) fn settled(&self) -> Result<(), ReduceError> {
        Ok(set_grad(&self.leaf, &self.place)?)
    }

    /// There is none in this step.
    pub(super) fn absent(&mut self) -> Result<(), ReduceError> {
        Ok(tch::no_grad(|| self.place.f_zero_().map(drop))?)
    }
}

pub(super) struct Bucket {
    pub(super) grad: Tensor,
    /// The part that is updated here, where updates are sharded.
    pub(super) own: Option<Tensor>,
    pub(super) members: usize,
    /// Members that have not fired.
    pub(super) pending: usize,
}

pub(super) struct Flight {
    work: Box<dyn Work>,
    /// Where a result that travelled in a shorter dtype goes: (from, to).
    expand: Option<(Tensor, Tensor)>,
}

impl Flight {
    /// Waits until the result is in its place, and frees what it travelled in.
    pub(super) fn land(self) -> Result<(), ReduceError> {
        self.work.wait()?;
        if let Some((from, mut to)) = self.expand {
            tch::no_grad(|| to.f_copy_(&from))?;
        }
        Ok(())
    }
}

impl State {
    /// Keeps what went wrong in a hook, which can tell nobody. A want of memory ends the step, not the run.
    fn note(&mut self, error: ReduceError) {
        if error.is_out_of_memory() {
            self.ran_out = true;
        } else {
            self.failed.get_or_insert(error);
        }
    }

    /// Lands all that is under way, which frees the memory it travels in. The other ranks start the same operations without
    /// waiting for this rank's next ones.
    pub(super) fn land_all(&mut self) -> Result<(), ReduceError> {
        self.in_flight.drain(..).try_for_each(Flight::land)
    }
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // Nothing below leaves the state half changed; a panic is reported by whoever panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hook: backward has added to the gradient of `parameter`.
    pub(super) fn ready(&self, parameter: usize) {
        let mut state = self.state();
        if !std::mem::replace(&mut state.used[parameter], true)
            && let Err(error) = state.gradients[parameter].settle()
        {
            state.note(error);
        }
        if !state.armed {
            return;
        }
        if state.fired[parameter] {
            // Backward ran twice. That is fine as long as the bucket waits for it.
            if self.options.overlap && self.bucket_of[parameter] < state.next {
                let name = self.names[parameter].clone();
                state.failed.get_or_insert(ReduceError::Late { name });
            }
            return;
        }
        state.fired[parameter] = true;
        state.order.push(parameter);
        state.buckets[self.bucket_of[parameter]].pending -= 1;
        // Where memory lacks, the other buckets leave when backward has freed its own.
        if !self.options.overlap || state.failed.is_some() || state.ran_out {
            return;
        }
        let complete = state.buckets[state.next..]
            .iter()
            .take_while(|bucket| bucket.pending == 0);
        let end = state.next + complete.count();
        if let Err(error) = self.start_until(&mut state, end) {
            state.note(error);
        }
    }

    /// Starts the buckets from the next one to before `end`, each as an operation of its own. Where that fails, the next one is the first
    /// that has not been sent. How many are complete at once differs from rank to rank, and NCCL plans a group of operations as a whole:
    /// all ranks would have to form the same groups.
    pub(super) fn start_until(&self, state: &mut State, end: usize) -> Result<(), ReduceError> {
        while state.next < end {
            let flight = self.start(&state.buckets[state.next])?;
            state.in_flight.push(flight);
            state.next += 1;
        }
        Ok(())
    }

    fn start(&self, bucket: &Bucket) -> Result<Flight, ReduceError> {
        let op = ReduceOp::Sum;
        let short = match self.options.compress {
            Some(kind) if kind != bucket.grad.kind() && self.ranks.size() > 1 => {
                Some(bucket.grad.f_to_kind(kind)?)
            }
            _ => None,
        };
        let (work, expand) = match (&bucket.own, short) {
            (None, None) => (self.ranks.all_reduce(&bucket.grad, op)?, None),
            (None, Some(short)) => (
                self.ranks.all_reduce(&short, op)?,
                Some((short, bucket.grad.shallow_clone())),
            ),
            (Some(own), None) => (self.ranks.reduce_scatter(own, &bucket.grad, op)?, None),
            (Some(own), Some(short)) => {
                let part = Tensor::f_empty(own.size(), (short.kind(), own.device()))?;
                let work = self.ranks.reduce_scatter(&part, &short, op)?;
                (work, Some((part, own.shallow_clone())))
            }
        };
        Ok(Flight { work, expand })
    }
}
