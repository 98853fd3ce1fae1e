//! Segments of a model that keep their inputs alone and are computed again in backward (Chen et al. 2016, arXiv 1604.06174),
//! and how many of them do.
//!
//! The first segments go first: what the last ones keep is there when backward begins, and computing it again at once would
//! not lower the peak.

mod print;

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dtrain_torch_shim::recompute::{Pass, grad_enabled, recompute};
use dtrain_torch_shim::{ErrorKind, ShimError, kind_of};
use tch::{TchError, Tensor};

use self::print::{Closeness, Print};
use super::error::ModelError;

/// How many segments of a model, counted from its beginning, are computed again in backward: none at first. Clones are handles
/// of the same; it may be changed between two steps, on all ranks alike.
#[derive(Clone, Debug, Default)]
pub struct Recompute {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    wanted: AtomicUsize,
    segments: AtomicUsize,
    /// How many times `wanted` was set to something else.
    changes: AtomicUsize,
    /// Why a segment could not be computed; libtorch hands on the words alone.
    failure: Mutex<Option<ModelError>>,
}

impl Recompute {
    /// The first `count` segments from now on, or all where there are fewer.
    pub fn set(&self, count: usize) {
        if self.shared.wanted.swap(count, Ordering::Relaxed) != count {
            self.shared.changes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All segments from now on.
    pub fn all(&self) {
        self.set(usize::MAX);
    }

    /// How many segments are computed again.
    pub fn count(&self) -> usize {
        self.shared.wanted.load(Ordering::Relaxed).min(self.segments())
    }

    /// How many segments the model has.
    pub fn segments(&self) -> usize {
        self.shared.segments.load(Ordering::Relaxed)
    }

    /// The backward pass of `loss`, with the cause itself as the error where a segment could not be computed again.
    pub fn backward(&self, loss: &Tensor) -> Result<(), ModelError> {
        loss.f_backward().map_err(|error| self.take_failure().unwrap_or(ModelError::Torch(error)))
    }

    /// The number of a segment that is being built.
    pub(super) fn take_number(&self) -> usize {
        self.shared.segments.fetch_add(1, Ordering::Relaxed)
    }

    fn take_failure(&self) -> Option<ModelError> {
        lock(&self.shared.failure).take()
    }

    /// Keeps the error, and gives libtorch its kind and its words.
    fn fail(&self, error: ModelError) -> ShimError {
        let kind = match &error {
            ModelError::Torch(error) => kind_of(error),
            ModelError::Sync { .. } => ErrorKind::Network,
            _ => ErrorKind::Other,
        };
        let message = error.to_string();
        *lock(&self.shared.failure) = Some(error);
        ShimError { op: "compute a segment", kind, message }
    }
}

/// Layers that are computed together, and perhaps again in backward: made by [`Scope::segment`](super::Scope::segment).
///
/// What [`Segment::run`] is given must depend on its arguments, the layers and torch's generators alone: its results are
/// compared with those of the first time, and a difference ends the run with [`ModelError::Recomputed`]: to the bit, or where a GPU's
/// libraries choose their algorithms by trying them, as far as these round alike. A layer that moves a
/// state of its own, as batch normalisation does, leaves it where [`is_recomputing`].
#[derive(Debug)]
pub struct Segment<T> {
    /// Backward may run on another thread than forward did; tensors may go there, but not be used by two threads at once.
    layers: Arc<Mutex<T>>,
    name: Arc<str>,
    number: usize,
    parameters: Vec<Tensor>,
    recompute: Recompute,
    /// Changes of the handle that were seen, and runs since the last of them.
    runs: Mutex<(usize, u64)>,
}

impl<T: Send + 'static> Segment<T> {
    pub(super) fn new(
        layers: T,
        name: &str,
        number: usize,
        parameters: Vec<Tensor>,
        recompute: Recompute,
    ) -> Self {
        Self {
            layers: Arc::new(Mutex::new(layers)),
            name: name.into(),
            number,
            parameters,
            recompute,
            runs: Mutex::default(),
        }
    }

    /// What `forward` makes of `x`. It is called again in backward where the segment is one of those, so it must not change
    /// `x` in place.
    pub fn run(
        &self,
        x: &Tensor,
        forward: impl Fn(&T, &Tensor) -> Result<Tensor, ModelError> + Send + Sync + 'static,
    ) -> Result<Tensor, ModelError> {
        self.run_many([x], move |layers, [x]| forward(layers, x))
    }

    /// As [`Segment::run`], of several tensors.
    pub fn run_many<const N: usize>(
        &self,
        inputs: [&Tensor; N],
        forward: impl Fn(&T, [&Tensor; N]) -> Result<Tensor, ModelError> + Send + Sync + 'static,
    ) -> Result<Tensor, ModelError> {
        if !self.is_recomputed(&inputs) {
            return forward(&lock(&self.layers), inputs);
        }
        let (layers, handle) = (Arc::clone(&self.layers), self.recompute.clone());
        let check =
            Check { name: Arc::clone(&self.name), values: self.is_checked(), first: Mutex::default() };
        // What an earlier backward pass left for whoever asks, and nobody asked for.
        self.recompute.take_failure();
        let output = recompute(&inputs, move |inputs, pass| {
            let _region = Region::enter(pass);
            let compute = || {
                // libtorch gives back as many as it was given.
                let count = |_| TchError::Convert("another number of tensors".to_owned());
                let inputs = <&[Tensor; N]>::try_from(inputs).map_err(count)?;
                let output = forward(&lock(&layers), inputs.each_ref())?;
                check.compare(&output, pass)?;
                Ok(output)
            };
            compute().map_err(|error| handle.fail(error))
        });
        output.map_err(|error| self.recompute.take_failure().unwrap_or_else(|| error.into()))
    }

    /// Whether there is a backward pass to come that leads through the segment, and the segment is one of those.
    fn is_recomputed(&self, inputs: &[&Tensor]) -> bool {
        self.number < self.recompute.count()
            && grad_enabled()
            && (inputs.iter().any(|input| input.requires_grad())
                || self.parameters.iter().any(Tensor::requires_grad))
    }

    /// Whether the values of this run are compared.
    ///
    /// To read every output twice in every step costs about 1% of its time, and on a GPU the host would wait for the device.
    /// What is wrong is mostly wrong at once; but a branch that begins with a weight of zero hides it, and so can rounding. So
    /// a segment's first, second, fourth, eighth ... run is checked, counted anew when the number of segments changes.
    fn is_checked(&self) -> bool {
        let changes = self.recompute.shared.changes.load(Ordering::Relaxed);
        let (seen, runs) = &mut *lock(&self.runs);
        *runs = if *seen == changes { *runs + 1 } else { 1 };
        *seen = changes;
        runs.is_power_of_two()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Layers are not changed by computing with them, and the rest is whole; a panic is reported by whoever panicked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static RECOMPUTING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread computes a segment for the second time, so that what a layer keeps of each forward pass (running
/// statistics, counters) has been moved already.
pub fn is_recomputing() -> bool {
    RECOMPUTING.get()
}

/// While it lives, the thread computes a segment for this time. A segment within one that is computed again is so too.
struct Region(bool);

impl Region {
    fn enter(pass: Pass) -> Self {
        let before = RECOMPUTING.get();
        RECOMPUTING.set(before || pass == Pass::Again);
        Self(before)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        RECOMPUTING.set(self.0);
    }
}

/// What is kept of the result of the first time.
struct Check {
    name: Arc<str>,
    /// Whether values are compared too.
    values: bool,
    first: Mutex<Option<Print>>,
}

impl Check {
    /// Keeps what the first time gave, and holds the second against it.
    fn compare(&self, output: &Tensor, pass: Pass) -> Result<(), ModelError> {
        let closeness = match self.values {
            true => Closeness::on(output.device()),
            false => Closeness::Shapes,
        };
        let print = Print::of(output, closeness)?;
        let mut first = lock(&self.first);
        if pass == Pass::First {
            *first = Some(print);
            return Ok(());
        }
        match first.as_ref().and_then(|first| print.against(first)) {
            None => Ok(()),
            Some(what) => Err(ModelError::Recomputed(self.name.to_string(), what)),
        }
    }
}

#[cfg(test)]
mod tests;
