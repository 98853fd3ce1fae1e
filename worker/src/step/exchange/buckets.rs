//! The hooks of the exchange: they find complete buckets and start their reductions.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dtrain_common::trace::{self, Kind as Traced};
use dtrain_recipe::{Compress, Reduce};
use dtrain_torch_shim::fused;
use dtrain_torch_shim::hooks::{GradientHook, begin_gradient};
use dtrain_torch_shim::tensor::{is_same_memory, set_grad};
use tch::{Kind, Tensor};

use crate::OutOfMemory;
use crate::collectives::{Collective, Ranks, ReduceOp, Work};
use crate::state::{Table, narrow};
use crate::step::error::{Result, StepError};
use crate::tensors::bytes;

/// Bytes of gradients that wait to be copied into the table together. More would be memory beside the table's.
const WAITING_BYTES: u64 = 1 << 20;

pub(super) struct Shared {
    pub(super) ranks: Ranks,
    pub(super) options: Reduce,
    pub(super) names: Vec<String>,
    /// By parameter.
    pub(super) bucket_of: Vec<usize>,
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// By parameter.
    pub(super) gradients: Vec<Gradient>,
    pub(super) buckets: Vec<Bucket>,
    pub(super) armed: bool,
    /// Whether [`super::Exchange::start_remaining`] has run in this step.
    pub(super) ended: bool,
    /// Whether an allocation for a reduction failed on this rank in this step.
    pub(super) ran_out: bool,
    /// By parameter: whether its gradient changed in this step (`used`), and since arming (`fired`).
    pub(super) used: Vec<bool>,
    pub(super) fired: Vec<bool>,
    /// Parameters in the order in which they last fired.
    pub(super) order: Vec<usize>,
    /// By parameter: whether backward adds to its gradient several times; complete if `knows_repeated`.
    pub(super) repeated: Vec<bool>,
    pub(super) knows_repeated: bool,
    /// The number of recomputed segments, once known.
    pub(super) recomputed: Option<usize>,
    pub(super) next_bucket: usize,
    pub(super) pending: Vec<PendingReduction>,
    pub(super) failed: Option<StepError>,
    /// Parameters whose first gradient is not in the table yet, and the bytes of these gradients: small ones are copied
    /// together, since a copy is a kernel.
    waiting: Vec<usize>,
    waiting_bytes: u64,
}

/// A parameter and the view of its gradient in the table.
///
/// A step begins without gradients, so that backward hands over its tensor and adds to no zeros. Backward writes the
/// gradient of a shadow there itself; other tensors are copied into the table. Later gradients of the step are added
/// there.
pub(super) struct Gradient {
    pub(super) leaf: Tensor,
    pub(super) view: Tensor,
}

impl Gradient {
    /// Begins a step without a gradient. Backward `may_place` its tensor there.
    pub(super) fn begin(&self, may_place: bool) -> Result<()> {
        Ok(begin_gradient(&self.leaf, may_place)?)
    }

    /// Forgets the gradient amid a step.
    pub(super) fn forget(&self) -> Result<()> {
        self.begin(false)
    }

    /// Makes the table's view the parameter's gradient, so that later gradients are added to it.
    pub(super) fn use_view(&self) -> Result<()> {
        Ok(set_grad(&self.leaf, &self.view)?)
    }

    pub(super) fn zero(&mut self) -> Result<()> {
        Ok(tch::no_grad(|| self.view.f_zero_().map(drop))?)
    }
}

pub(super) struct Bucket {
    pub(super) grad: Tensor,
    /// The part that this rank updates, if updates are sharded.
    pub(super) own: Option<Tensor>,
    pub(super) members: usize,
    pub(super) missing: usize,
}

pub(super) struct PendingReduction {
    work: Box<dyn Work>,
    /// The copy after a reduction in a shorter dtype: (from, to).
    expand: Option<(Tensor, Tensor)>,
}

impl PendingReduction {
    /// Waits until the result is in the table, and frees its shorter copy.
    pub(super) fn finish(self) -> Result<()> {
        let _wait = trace::span(Traced::Communication, "wait for a bucket");
        self.work.wait()?;
        if let Some((from, mut to)) = self.expand {
            tch::no_grad(|| to.f_copy_(&from))?;
        }
        Ok(())
    }
}

impl State {
    /// Forgets the last step.
    pub(super) fn clear(&mut self) -> Result<()> {
        (self.waiting_bytes, self.next_bucket) = (0, 0);
        (self.armed, self.ended, self.ran_out) = (false, false, false);
        self.waiting.clear();
        self.used.fill(false);
        self.fired.fill(false);
        self.order.clear();
        for bucket in &mut self.buckets {
            bucket.missing = bucket.members;
        }
        let may_place = self.recomputed == Some(0);
        self.gradients.iter().try_for_each(|gradient| gradient.begin(may_place))
    }

    /// Stores the step's first gradient of a parameter in the table, at once or with others.
    fn store_first(&mut self, parameter: usize) -> Result<()> {
        let Gradient { leaf, view } = &self.gradients[parameter];
        let first = leaf.f_grad()?;
        if is_same_memory(&first, view)? {
            return Ok(());
        }
        self.waiting.push(parameter);
        self.waiting_bytes += bytes(view);
        if self.waiting_bytes > WAITING_BYTES { self.store_waiting() } else { Ok(()) }
    }

    /// Stores the gradients that wait. Call it before the table's gradients are used, and after each micro-step.
    pub(super) fn store_waiting(&mut self) -> Result<()> {
        self.waiting_bytes = 0;
        let waiting: Vec<&Gradient> =
            self.waiting.drain(..).map(|parameter| &self.gradients[parameter]).collect();
        let firsts = waiting.iter().map(|gradient| gradient.leaf.f_grad()).collect::<Result<Vec<_>, _>>()?;
        let views: Vec<&Tensor> = waiting.iter().map(|gradient| &gradient.view).collect();
        fused::copy_all(&views, &firsts.iter().collect::<Vec<_>>())?;
        waiting.into_iter().try_for_each(Gradient::use_view)
    }

    /// Forgets the gradients that parameters got since `used` was true for others only.
    pub(super) fn forget_since(&mut self, used: &[bool]) -> Result<()> {
        self.waiting.clear();
        self.waiting_bytes = 0;
        for ((gradient, now), before) in self.gradients.iter().zip(&mut self.used).zip(used) {
            if std::mem::replace(now, *before) != *before {
                gradient.forget()?;
            }
        }
        Ok(())
    }

    /// Stores an error of a hook, which cannot return it. A failed allocation ends the step, not the run.
    fn record_error(&mut self, error: StepError) {
        if error.is_out_of_memory() {
            self.ran_out = true;
        } else {
            self.failed.get_or_insert(error);
        }
    }
}

impl Shared {
    pub(super) fn new(ranks: Ranks, table: &Table, options: Reduce) -> Result<Self> {
        let shards = table.shards();
        let mut bucket_of = vec![0; table.leaves().len()];
        let mut buckets = Vec::new();
        for (number, bucket) in table.buckets().iter().enumerate() {
            let flat = table.grad(bucket.block);
            let own = || narrow(flat, &bucket.part(table.shard(), shards));
            // Whole rows have no equal parts, which a reduction into parts needs.
            let own = (shards > 1 && bucket.owned.is_empty()).then(own).transpose()?;
            buckets.push(Bucket {
                grad: narrow(flat, &bucket.range)?,
                own,
                members: bucket.rows.len(),
                missing: 0,
            });
            for &parameter in &bucket.rows {
                bucket_of[parameter] = number;
            }
        }
        let count = bucket_of.len();
        let gradient = |(leaf, view): (&Tensor, Tensor)| Gradient { leaf: leaf.shallow_clone(), view };
        let gradients = table.leaves().iter().zip(table.grads()?).map(gradient).collect();
        Ok(Self {
            ranks,
            options,
            names: table.names().map(str::to_owned).collect(),
            bucket_of,
            state: Mutex::new(State {
                gradients,
                buckets,
                used: vec![false; count],
                fired: vec![false; count],
                repeated: vec![false; count],
                order: Vec::with_capacity(count),
                ..State::default()
            }),
        })
    }

    /// Sets a hook on every parameter, until its handle is dropped.
    pub(super) fn set_hooks(shared: &Arc<Self>) -> Result<Vec<GradientHook>> {
        let state = shared.state();
        let hook = |(parameter, Gradient { leaf, view }): (usize, &Gradient)| {
            let shared = Arc::clone(shared);
            Ok(GradientHook::set(leaf, view, move || shared.on_gradient(parameter))?)
        };
        state.gradients.iter().enumerate().map(hook).collect()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // Ignores poisoning: no change is left half done, and the thread that panicked reports it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs as the hook, after backward has added to the gradient of `parameter`.
    pub(super) fn on_gradient(&self, parameter: usize) {
        let mut state = self.state();
        if !std::mem::replace(&mut state.used[parameter], true)
            && let Err(error) = state.store_first(parameter)
        {
            state.record_error(error);
        }
        if !state.armed {
            return;
        }
        let bucket = self.bucket_of[parameter];
        if std::mem::replace(&mut state.fired[parameter], true) {
            state.repeated[parameter] = true;
            state.order.retain(|&earlier| earlier != parameter);
            state.order.push(parameter);
            // That is an error only if the bucket has already started.
            if self.options.overlap && bucket < state.next_bucket {
                let name = self.names[parameter].clone();
                state.failed.get_or_insert(StepError::LateGradient { name });
            }
            return;
        }
        state.order.push(parameter);
        if state.repeated[parameter] {
            return;
        }
        state.buckets[bucket].missing -= 1;
        // After a failed allocation the other buckets start when backward has freed its memory.
        if !self.options.overlap || !state.knows_repeated || state.failed.is_some() || state.ran_out {
            return;
        }
        let rest = state.buckets[state.next_bucket..].iter();
        let end = state.next_bucket + rest.take_while(|bucket| bucket.missing == 0).count();
        if let Err(error) = self.start_until(&mut state, end) {
            state.record_error(error);
        }
    }

    /// Starts the buckets from the next one to before `end`. On an error, `next_bucket` is the first one not
    /// started. Each is a separate operation: NCCL plans a group as a whole, so all ranks would need equal
    /// groups.
    pub(super) fn start_until(&self, state: &mut State, end: usize) -> Result<()> {
        if state.next_bucket < end {
            state.store_waiting()?;
        }
        while state.next_bucket < end {
            let (number, bucket) = (state.next_bucket, &state.buckets[state.next_bucket]);
            let name = || format!("bucket {}", number + 1);
            let started = trace::bytes_span(Traced::Bucket, name, || bytes(&bucket.grad));
            let reduction = self.start_bucket(bucket)?;
            drop(started);
            state.pending.push(reduction);
            state.next_bucket += 1;
        }
        Ok(())
    }

    fn start_bucket(&self, bucket: &Bucket) -> Result<PendingReduction> {
        let op = ReduceOp::Sum;
        let scatter = |output: &Tensor, input: &Tensor| {
            self.ranks.start(Collective::ReduceScatter { output, input, op })
        };
        // The dtype in which gradients are sent and added.
        let kind = match self.options.compress {
            Compress::None => bucket.grad.kind(),
            Compress::Bf16 => Kind::BFloat16,
            Compress::Fp16 => Kind::Half,
        };
        let is_short = kind != bucket.grad.kind() && self.ranks.size() > 1;
        let short = is_short.then(|| bucket.grad.f_to_kind(kind)).transpose()?;
        let (work, expand) = match (&bucket.own, short) {
            (None, None) => (self.ranks.all_reduce(&bucket.grad, op)?, None),
            (None, Some(short)) => {
                (self.ranks.all_reduce(&short, op)?, Some((short, bucket.grad.shallow_clone())))
            }
            (Some(own), None) => (scatter(own, &bucket.grad)?, None),
            (Some(own), Some(short)) => {
                let part = Tensor::f_empty(own.size(), (short.kind(), own.device()))?;
                (scatter(&part, &short)?, Some((part, own.shallow_clone())))
            }
        };
        Ok(PendingReduction { work, expand })
    }
}
