//! The samples that a batch normalisation normalises together.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use dtrain_torch_shim::fused;
use tch::{TchError, Tensor};

use super::batch_rows::{Recording, RowFigures};
use super::error::ModelError;
use super::lock;

/// The participants whose micro-batches are normalised together.
///
/// Every participant builds the same model, calls `forward` equally often and runs each backward pass. If it
/// has no samples left in training, it passes an empty micro-batch (N = 0). The calls of
/// [`BatchSync::all_reduce`] and the gradient sums in backward are matched by their order.
pub trait BatchSync: fmt::Debug + Send + Sync {
    /// Returns the sum of `x` (any shape, float) over all participants, with identical bits on each.
    /// Differentiable: the gradient of `x` is the sum of the participants' gradients of the result, because
    /// each participant's loss is a term of one sum.
    fn all_reduce(&self, x: &Tensor) -> Result<Tensor, ModelError>;

    /// Returns the number of participants, including this one.
    fn participants(&self) -> usize;
}

/// Groups of samples that batch normalisation normalises separately. Clones refer to the same model.
#[derive(Debug, Clone, Default)]
pub struct BatchGroups(Arc<Numbers>);

/// Numbers are 0 if there are no groups, or if a row is a sample.
#[derive(Debug, Default)]
struct Numbers {
    group: AtomicI64,
    samples: AtomicI64,
    recording: Recording,
    counters: Mutex<Option<Counters>>,
}

/// The counters of the layers that have normalised the current micro-batch, with the addresses of their owners' handles.
type Counters = Vec<(usize, Tensor)>;

impl BatchGroups {
    /// Sets the number of samples per group for the next micro-batches; a last group may be smaller. None:
    /// each micro-batch is one group, or with a [`BatchSync`] a part of one.
    pub fn set(&self, samples: Option<usize>) {
        store(&self.0.group, samples);
    }

    /// Sets the number of samples of the next micro-batch, until its backward pass ends. A layer may have several rows for
    /// a sample, such as the frames of a video. Without this call, each row is a sample.
    pub fn begin_micro_batch(&self, samples: usize) {
        store(&self.0.samples, Some(samples));
    }

    /// Begins a forward pass, in which layers do not count their batches at once, but in [`BatchGroups::end_forward`].
    pub fn begin_forward(&self) {
        *lock(&self.0.counters) = Some(Vec::new());
    }

    /// Adds 1 to `num_batches_tracked` of every layer that has normalised the micro-batch, in one operation.
    pub fn end_forward(&self) -> Result<(), ModelError> {
        add_one(lock(&self.0.counters).take().unwrap_or_default())
    }

    /// Counts a batch of a layer.
    pub(super) fn count(&self, counter: &Tensor) -> Result<(), ModelError> {
        let (owner, entry) = (std::ptr::from_ref(counter).addr(), counter.shallow_clone());
        match &mut *lock(&self.0.counters) {
            None => add_one(vec![(owner, entry)]),
            Some(counters) => {
                // One operation adds to a tensor once.
                if counters.iter().any(|(counted, _)| *counted == owner) {
                    add_one(std::mem::take(counters))?;
                }
                counters.push((owner, entry));
                Ok(())
            }
        }
    }

    /// From now on layers record their rows, and normalise by the running statistics.
    pub(crate) fn begin_recording(&self) {
        self.0.recording.begin();
    }

    pub(crate) fn end_recording(&self) -> Vec<RowFigures> {
        self.0.recording.end()
    }

    /// Records a layer's rows. Returns false if rows are not recorded now.
    pub(super) fn record(&self, layer: &str, x: &Tensor) -> Result<bool, TchError> {
        self.0.recording.add(layer, x)
    }

    /// Returns the rows of a group in an input of `rows` rows; None without groups. If the rows are not equally many for
    /// each sample, the error is the number of samples.
    pub(super) fn rows(&self, rows: i64) -> Option<Result<i64, i64>> {
        let group = self.0.group.load(Ordering::Relaxed);
        let samples = match self.0.samples.load(Ordering::Relaxed) {
            0 => rows,
            samples => samples,
        };
        (group > 0).then(|| match rows.checked_rem(samples) {
            None => Ok(group),
            Some(0) => Ok(group.saturating_mul(rows / samples)),
            Some(_) => Err(samples),
        })
    }
}

fn add_one(counters: Counters) -> Result<(), ModelError> {
    let counters: Vec<&Tensor> = counters.iter().map(|(_, counter)| counter).collect();
    Ok(fused::add_to_all(&counters, 1)?)
}

fn store(number: &AtomicI64, value: Option<usize>) {
    let value = value.and_then(|value| i64::try_from(value).ok());
    number.store(value.unwrap_or(0), Ordering::Relaxed);
}
