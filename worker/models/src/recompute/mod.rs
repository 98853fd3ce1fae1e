//! Segments of a model that keep only their inputs and are recomputed in backward (Chen et al. 2016, arXiv
//! 1604.06174), and the number of those segments.
//!
//! The first segments are recomputed first: backward begins with the tensors of the last segments in memory,
//! so recomputing those at once would not lower the peak.

mod summary;

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use dtrain_common::trace::{self, Kind};
use dtrain_torch_shim::recompute::{Pass, grad_enabled, recompute};
use dtrain_torch_shim::symbolic::stands_for_gpu;
use dtrain_torch_shim::{ErrorKind, ShimError, kind_of};
use tch::{TchError, Tensor};

use self::summary::{Precision, Summary};
use super::error::ModelError;
use super::lock;

/// The number of segments, from the model's beginning, that backward recomputes; initially 0. Clones are
/// handles of the same value. It may change between two steps, equally on all ranks.
#[derive(Clone, Debug, Default)]
pub struct Recompute {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    wanted: AtomicUsize,
    segments: AtomicUsize,
    /// The number of changes of `wanted`.
    changes: AtomicUsize,
    /// Why a segment failed; libtorch passes on only the message.
    failure: Mutex<Option<ModelError>>,
}

impl Recompute {
    /// Recomputes the first `count` segments from now on, or all if there are fewer.
    pub fn set(&self, count: usize) {
        if self.shared.wanted.swap(count, Ordering::Relaxed) != count {
            self.shared.changes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Recomputes all segments from now on.
    pub fn set_all(&self) {
        self.set(usize::MAX);
    }

    /// Returns the number of recomputed segments.
    pub fn count(&self) -> usize {
        self.shared.wanted.load(Ordering::Relaxed).min(self.segments())
    }

    /// Returns the number of the model's segments.
    pub fn segments(&self) -> usize {
        self.shared.segments.load(Ordering::Relaxed)
    }

    /// Runs the backward pass of `loss`. If recomputing a segment fails, returns the original error.
    pub fn backward(&self, loss: &Tensor) -> Result<(), ModelError> {
        loss.f_backward().map_err(|error| self.take_failure().unwrap_or(ModelError::Torch(error)))
    }

    /// Numbers a segment that is being built.
    pub(super) fn take_number(&self) -> usize {
        self.shared.segments.fetch_add(1, Ordering::Relaxed)
    }

    fn take_failure(&self) -> Option<ModelError> {
        lock(&self.shared.failure).take()
    }

    /// Keeps the error, and returns its kind and message for libtorch.
    fn record_failure(&self, error: ModelError) -> ShimError {
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

/// Layers that are computed together, and may be recomputed in backward: see
/// [`Scope::segment`](super::Scope::segment).
///
/// The closure of [`Segment::run`] may depend only on its arguments, the layers and torch's generators. The
/// second result is compared with the first; a difference ends the run with [`ModelError::Recomputed`]. The
/// comparison is exact, or, if a GPU's libraries choose their algorithms by benchmarks, allows for their
/// rounding. A layer with a state, such as batch normalisation, must not change it if [`is_recomputing`].
#[derive(Debug)]
pub struct Segment<T> {
    /// Backward may run on another thread. Tensors may move there, but only one thread may use them.
    layers: Arc<Mutex<T>>,
    name: Arc<str>,
    number: usize,
    parameters: Vec<Tensor>,
    recompute: Recompute,
    /// The last seen number of changes, and the runs since then.
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

    /// Computes `forward` of `x`, which it must not change: backward may call it again.
    pub fn run(
        &self,
        x: &Tensor,
        forward: impl Fn(&T, &Tensor) -> Result<Tensor, ModelError> + Send + Sync + 'static,
    ) -> Result<Tensor, ModelError> {
        self.run_many([x], move |layers, [x]| forward(layers, x))
    }

    /// Like [`Segment::run`], with several tensors.
    pub fn run_many<const N: usize>(
        &self,
        inputs: [&Tensor; N],
        forward: impl Fn(&T, [&Tensor; N]) -> Result<Tensor, ModelError> + Send + Sync + 'static,
    ) -> Result<Tensor, ModelError> {
        self.run_slice(&inputs, move |layers, inputs| {
            // libtorch returns as many tensors as it got.
            let wrong_count = |_| TchError::Convert("wrong number of tensors".to_owned());
            forward(layers, inputs.try_into().map_err(wrong_count)?)
        })
    }

    /// Like [`Segment::run`], with any number of tensors.
    pub(super) fn run_slice(
        &self,
        inputs: &[&Tensor],
        forward: impl Fn(&T, &[&Tensor]) -> Result<Tensor, ModelError> + Send + Sync + 'static,
    ) -> Result<Tensor, ModelError> {
        if !self.is_recomputed(inputs) {
            let _module = trace::named_span(Kind::Module, || self.name.to_string());
            return forward(&lock(&self.layers), inputs);
        }
        let (layers, handle) = (Arc::clone(&self.layers), self.recompute.clone());
        let check =
            Check { name: Arc::clone(&self.name), values: self.is_checked(), first: Mutex::default() };
        // Drop an error that an earlier backward pass left and nobody took.
        self.recompute.take_failure();
        let output = recompute(inputs, move |inputs, pass| {
            let _region = Region::enter(pass);
            let _again = (pass == Pass::Recompute).then(|| trace::span(Kind::Recompute, "recompute"));
            let _module = trace::named_span(Kind::Module, || check.name.to_string());
            let compute = || {
                let output = forward(&lock(&layers), &inputs.iter().collect::<Vec<_>>())?;
                check.compare(&output, pass)?;
                Ok(output)
            };
            compute().map_err(|error| handle.record_failure(error))
        });
        output.map_err(|error| self.recompute.take_failure().unwrap_or_else(|| error.into()))
    }

    /// Returns the layers, which one thread uses at a time.
    pub(super) fn layers(&self) -> MutexGuard<'_, T> {
        lock(&self.layers)
    }

    /// Returns whether the segment is recomputed and a backward pass will go through it.
    pub(super) fn is_recomputed(&self, inputs: &[&Tensor]) -> bool {
        self.number < self.recompute.count()
            && grad_enabled()
            && (inputs.iter().any(|input| input.requires_grad())
                || self.parameters.iter().any(Tensor::requires_grad))
    }

    /// Returns whether the values of this run are compared.
    ///
    /// Reading every output twice in every step would cost about 1% of its time, and on a GPU the host would
    /// wait for the device. Most errors show immediately, but initial weights of zero or rounding can hide
    /// one. So runs 1, 2, 4, 8 ... are checked, counted from the last change of the number of segments.
    fn is_checked(&self) -> bool {
        let changes = self.recompute.shared.changes.load(Ordering::Relaxed);
        let (seen, runs) = &mut *lock(&self.runs);
        *runs = if *seen == changes { *runs + 1 } else { 1 };
        *seen = changes;
        runs.is_power_of_two()
    }
}

thread_local! {
    static RECOMPUTING: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread computes a segment for the second time. Then the running statistics and
/// counters of its layers have already been updated.
pub fn is_recomputing() -> bool {
    RECOMPUTING.get()
}

/// A region in which a segment is computed. A segment inside a recomputed one counts as recomputed.
struct Region(bool);

impl Region {
    fn enter(pass: Pass) -> Self {
        let before = RECOMPUTING.get();
        RECOMPUTING.set(before || pass == Pass::Recompute);
        Self(before)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        RECOMPUTING.set(self.0);
    }
}

/// The first result of a segment, for comparison.
struct Check {
    name: Arc<str>,
    /// Whether values are compared, not only shapes and dtypes.
    values: bool,
    first: Mutex<Option<Summary>>,
}

impl Check {
    /// Keeps the first result, and compares the second with it.
    fn compare(&self, output: &Tensor, pass: Pass) -> Result<(), ModelError> {
        let precision = match self.values {
            true if stands_for_gpu() => Precision::Rehearsed,
            true => Precision::on(output.device()),
            false => Precision::Shapes,
        };
        let summary = Summary::of(output, precision)?;
        let mut first = lock(&self.first);
        if pass == Pass::Forward {
            *first = Some(summary);
            return Ok(());
        }
        match first.as_ref().and_then(|first| summary.difference_from(first)) {
            None => Ok(()),
            Some(difference) => Err(ModelError::Recomputed(self.name.to_string(), difference)),
        }
    }
}

#[cfg(test)]
mod tests;
