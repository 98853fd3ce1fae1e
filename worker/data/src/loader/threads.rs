//! What the loader's threads share, and what they do.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use super::super::dataset::{Column, Dataset, Field, Slot, columns_for};
use super::super::error::{BadSample, DataError, SampleError};
use super::super::rng::{Domain, keyed};
use super::batch::{Batch, LoaderOptions, MicroBatch};

/// The plan, boxed.
pub(super) type Work = Box<dyn Iterator<Item = MicroBatch> + Send>;

pub(super) struct Shared {
    dataset: Arc<dyn Dataset>,
    /// Those of the data set; asked for by the first thread, so that a data set that panics there is caught.
    fields: OnceLock<Arc<[Field]>>,
    pub(super) options: LoaderOptions,
    pub(super) state: Mutex<State>,
    /// There may be something to do for the threads.
    pub(super) work_changed: Condvar,
    /// There may be something for the consumer.
    pub(super) batch_changed: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    /// The plan; away while a thread asks it for the next micro-batch.
    work: Option<Work>,
    /// The plan has ended, or asking it or loading failed: no more jobs will be opened.
    pub(super) exhausted: bool,
    /// Batches that are loading or loaded, oldest first. Their numbers are consecutive.
    pub(super) jobs: VecDeque<Job>,
    opened: u64,
    /// Memory of used batches.
    pub(super) spare: Vec<Vec<Column>>,
    /// An error to be reported by the next call, before anything else.
    pub(super) broken: Option<DataError>,
    pub(super) stop: bool,
}

/// One batch in the making.
pub(super) struct Job {
    number: u64,
    epoch: u64,
    pub(super) indices: Arc<[u32]>,
    /// Samples that a thread has taken, and those that are in the batch.
    claimed: usize,
    pub(super) done: usize,
    pub(super) batch: Arc<Mutex<Batch>>,
    /// Set when a sample's code panicked; reported when this batch's turn comes.
    pub(super) failed: Option<DataError>,
}

/// What a thread does next.
enum Task {
    Load {
        job: u64,
        epoch: u64,
        position: usize,
        index: u32,
        batch: Arc<Mutex<Batch>>,
    },
    Open {
        work: Work,
        memory: Vec<Column>,
    },
    Stop,
}

impl Shared {
    pub(super) fn new(dataset: Arc<dyn Dataset>, options: LoaderOptions, work: Work) -> Self {
        Self {
            dataset,
            fields: OnceLock::new(),
            options,
            state: Mutex::new(State {
                work: Some(work),
                ..State::default()
            }),
            work_changed: Condvar::new(),
            batch_changed: Condvar::new(),
        }
    }

    /// A thread's life. Whatever goes wrong in it reaches the consumer.
    pub(super) fn run(&self) {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut sample = columns_for(self.fields(), 1);
            loop {
                match self.next_task() {
                    Task::Load {
                        job,
                        epoch,
                        position,
                        index,
                        batch,
                    } => {
                        let failed = self.load(epoch, position, index, &batch, &mut sample).err();
                        self.loaded(job, failed);
                    }
                    Task::Open { work, memory } => self.open(work, memory),
                    Task::Stop => return,
                }
            }
        }));
        if let Err(panic) = outcome {
            let mut state = self.lock();
            state.broken = Some(panicked("a loader thread's own work".to_owned(), panic));
            self.batch_changed.notify_all();
        }
    }

    fn next_task(&self) -> Task {
        let mut state = self.lock();
        loop {
            if state.stop {
                return Task::Stop;
            }
            let unclaimed = |job: &&mut Job| job.failed.is_none() && job.claimed < job.indices.len();
            if let Some(job) = state.jobs.iter_mut().find(unclaimed) {
                let position = job.claimed;
                job.claimed += 1;
                let (index, batch) = (job.indices[position], Arc::clone(&job.batch));
                return Task::Load {
                    job: job.number,
                    epoch: job.epoch,
                    position,
                    index,
                    batch,
                };
            }
            let room = !state.exhausted && state.jobs.len() < self.options.prefetch_batches;
            if room && let Some(work) = state.work.take() {
                let memory = state.spare.pop().unwrap_or_default();
                return Task::Open { work, memory };
            }
            state = self
                .work_changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Asks the plan for the next micro-batch and makes room for it, without the lock: both may take a while.
    fn open(&self, mut work: Work, memory: Vec<Column>) {
        let planned = catch_unwind(AssertUnwindSafe(|| {
            let Some(micro_batch) = work.next() else {
                return (work, None);
            };
            let batch = self.empty_batch(&micro_batch, memory);
            (work, Some((micro_batch, batch)))
        }));
        let mut state = self.lock();
        let (epoch, indices, batch, failed) = match planned {
            Ok((work, Some((micro_batch, batch)))) => {
                state.work = Some(work);
                (micro_batch.epoch, micro_batch.indices, batch, None)
            }
            Ok((_, None)) => {
                state.exhausted = true;
                self.batch_changed.notify_all();
                return;
            }
            Err(panic) => {
                state.exhausted = true;
                let failed = panicked("the plan of the next batch".to_owned(), panic);
                (0, Vec::new(), Batch::default(), Some(failed))
            }
        };
        let number = state.opened;
        state.opened += 1;
        let batch = Arc::new(Mutex::new(batch));
        state.jobs.push_back(Job {
            number,
            epoch,
            indices: indices.into(),
            claimed: 0,
            done: 0,
            batch,
            failed,
        });
        self.work_changed.notify_all();
        // It may be ready as it is: empty, or failed.
        self.batch_changed.notify_all();
    }

    fn empty_batch(&self, micro_batch: &MicroBatch, memory: Vec<Column>) -> Batch {
        let samples = micro_batch.indices.len();
        let fields = self.fields();
        let mut columns = memory;
        let mut pairs = columns.iter().zip(&**fields);
        if columns.len() != fields.len() || !pairs.all(|(column, field)| column.suits(field)) {
            columns = columns_for(fields, samples);
        }
        for (column, field) in columns.iter_mut().zip(&**fields) {
            column.resize(samples * field.len());
        }
        Batch {
            fields: Arc::clone(fields),
            columns,
            weights: vec![0.0; samples],
            indices: micro_batch.indices.clone(),
            bad: Vec::new(),
        }
    }

    /// Loads one sample into its place. `own` is the thread's room for one sample.
    fn load(
        &self,
        epoch: u64,
        position: usize,
        index: u32,
        batch: &Mutex<Batch>,
        own: &mut [Column],
    ) -> Result<(), DataError> {
        let LoaderOptions { seed, augment, .. } = self.options;
        let sample = index as usize;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut rng = augment.then(|| keyed(Domain::Augment, seed, epoch, u64::from(index)));
            let mut slots: Vec<Slot<'_>> = own.iter_mut().map(Column::slot).collect();
            let loaded = self.dataset.load(sample, rng.as_mut(), &mut slots);
            loaded.map_err(|error| self.bad_sample(sample, &error))
        }));
        let loaded = outcome.map_err(|panic| panicked(format!("sample {sample}"), panic))?;

        let mut batch = lock(batch);
        let place = |own: &Column| position * own.len()..(position + 1) * own.len();
        match loaded {
            Ok(()) => {
                for (column, own) in batch.columns.iter_mut().zip(&*own) {
                    column.copy(place(own), own);
                }
                batch.weights[position] = 1.0;
            }
            Err(bad) => {
                for (column, own) in batch.columns.iter_mut().zip(&*own) {
                    column.clear(place(own));
                }
                batch.bad.push(bad);
            }
        }
        Ok(())
    }

    fn bad_sample(&self, sample: usize, error: &SampleError) -> BadSample {
        BadSample {
            index: sample,
            path: self.dataset.describe(sample),
            reason: error.to_string(),
        }
    }

    /// Records that a sample of a job has been dealt with.
    fn loaded(&self, number: u64, failed: Option<DataError>) {
        let mut state = self.lock();
        let state = &mut *state;
        // The consumer takes a job away only when all its samples are done, or to report that it failed.
        let Some(job) = state.jobs.iter_mut().find(|job| job.number == number) else {
            return;
        };
        job.done += 1;
        if let Some(error) = failed {
            job.failed.get_or_insert(error);
            state.exhausted = true;
        }
        if job.failed.is_some() {
            self.batch_changed.notify_all();
        } else if job.done == job.indices.len() {
            sort_bad(&mut lock(&job.batch));
            self.batch_changed.notify_all();
        }
    }

    fn fields(&self) -> &Arc<[Field]> {
        self.fields.get_or_init(|| self.dataset.fields().into())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Threads finish in any order; the batch's order is the one reported.
fn sort_bad(batch: &mut Batch) {
    let Batch { bad, indices, .. } = batch;
    bad.sort_by_cached_key(|sample| indices.iter().position(|&index| index as usize == sample.index));
}

/// A lock whose holder panicked is taken over: such a panic is reported on its own way, and a second one here would
/// hide it.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn panicked(at: String, panic: Box<dyn Any + Send>) -> DataError {
    let message = match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => match panic.downcast::<&str>() {
            Ok(text) => (*text).to_owned(),
            Err(_) => "a panic without a message".to_owned(),
        },
    };
    DataError::Panicked { at, message }
}
