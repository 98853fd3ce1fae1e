//! Threads that load the next batches during training.
//!
//! All threads work on the oldest unfinished batch, sample by sample, so that a large batch is ready as soon
//! as possible. When its last samples are taken, they start the next batch. Content and order of the batches
//! depend on the plan alone, never on the number of threads.
//!
//! Each thread loads into its own buffer and copies the sample into the batch under the batch's lock. The
//! copy costs about one hundredth of the decoding and needs no shared mutable slices.

use std::sync::Arc;
use std::task::Poll;
use std::thread::{self, JoinHandle};

use self::threads::{Shared, State, lock, wait};
use super::dataset::Dataset;
use super::error::DataError;

mod batch;
mod threads;

pub use batch::{BadPlace, Batch, LoaderOptions, MicroBatch};

/// The loading threads. Iterate to get the batches. Dropping it stops the threads after their current sample.
pub struct Loader {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Loader {
    /// Starts loading `work`. It may be endless, only one thread at a time calls it, and it should not block.
    pub fn start(
        dataset: Arc<dyn Dataset>,
        options: LoaderOptions,
        work: impl Iterator<Item = MicroBatch> + Send + 'static,
    ) -> Result<Self, DataError> {
        let options = LoaderOptions { prefetch_batches: options.prefetch_batches.max(1), ..options };
        let shared = Arc::new(Shared::new(dataset, options, Box::new(work)));
        let mut loader = Self { shared, threads: Vec::new() };
        for number in 0..options.threads.max(1) {
            let shared = Arc::clone(&loader.shared);
            let thread = thread::Builder::new()
                .name(format!("loader-{number}"))
                .spawn(move || shared.run())
                .map_err(DataError::ThreadStart)?;
            loader.threads.push(thread);
        }
        Ok(loader)
    }

    /// Returns a used batch's memory for the next one.
    pub fn recycle(&self, batch: Batch) {
        let mut state = self.shared.lock();
        // The most that can be in use at once; more would never be used.
        if state.spare.len() <= self.shared.options.prefetch_batches {
            state.spare.push(batch.columns);
        }
    }

    /// As [`Iterator::next`], but without waiting: also `None` while the next batch is still loading.
    pub fn next_if_loaded(&mut self) -> Option<Result<Batch, DataError>> {
        match self.look(&mut self.shared.lock()) {
            Poll::Ready(batch) => batch,
            Poll::Pending => None,
        }
    }

    fn look(&self, state: &mut State) -> Poll<Option<Result<Batch, DataError>>> {
        // If several threads fail, only the first error is reported, and iteration ends.
        if state.stop {
            return Poll::Ready(None);
        }
        if state.error.is_none() {
            state.error = state.batches.front_mut().and_then(|loading| loading.failed.take());
        }
        if let Some(error) = state.error.take() {
            state.stop = true;
            self.shared.work_changed.notify_all();
            return Poll::Ready(Some(Err(error)));
        }
        match state.batches.front() {
            Some(loading) if loading.done == loading.samples => {
                let batch = std::mem::take(&mut *lock(&loading.batch));
                state.batches.pop_front();
                self.shared.work_changed.notify_all();
                Poll::Ready(Some(Ok(batch)))
            }
            None if state.exhausted => Poll::Ready(None),
            _ => Poll::Pending,
        }
    }
}

impl Iterator for Loader {
    type Item = Result<Batch, DataError>;

    /// Waits for the next batch of the plan; `None` after the last one or after an error.
    fn next(&mut self) -> Option<Self::Item> {
        let mut state = self.shared.lock();
        loop {
            match self.look(&mut state) {
                Poll::Ready(batch) => return batch,
                Poll::Pending => state = wait(&self.shared.batch_changed, state),
            }
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.work_changed.notify_all();
        for thread in self.threads.drain(..) {
            // Panics are caught inside the thread, so the result has no information.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
