//! The shared state of the loader's threads, and their work.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use dtrain_common::trace::{self, Kind};

use super::super::dataset::{Column, Dataset, Field, columns_for};
use super::super::error::{BadSample, DataError, SampleError};
use super::super::mixing::Blend;
use super::super::rng::{Domain, below, keyed};
use super::super::sample_hashes::SampleHashes;
use super::super::sampler::Place;
use super::batch::{BadPlace, Batch, LoaderOptions, MicroBatch};

/// Samples that are tried in place of one that cannot be loaded. More than 1% of such samples end a run.
const STAND_INS: usize = 16;

pub(super) type Upcoming = Box<dyn Iterator<Item = MicroBatch> + Send>;

pub(super) struct Shared {
    dataset: Arc<dyn Dataset>,
    /// Fields of the data set. The first thread asks for them, so that a panic there is caught.
    fields: OnceLock<Arc<[Field]>>,
    pub(super) options: LoaderOptions,
    state: Mutex<State>,
    /// Signals the threads that there may be work.
    pub(super) work_changed: Condvar,
    /// Signals the consumer that a batch may be ready.
    pub(super) batch_changed: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    /// The micro-batches to load; `None` while a thread takes the next one.
    work: Option<Upcoming>,
    /// They have ended, or one of them or a load failed: no more batches are opened.
    pub(super) exhausted: bool,
    /// Batches that are loading or loaded, oldest first.
    pub(super) batches: VecDeque<LoadingBatch>,
    pub(super) spare: Vec<Vec<Column>>,
    /// An error that the next call reports, before anything else.
    pub(super) error: Option<DataError>,
    pub(super) stop: bool,
}

pub(super) struct LoadingBatch {
    request: Arc<MicroBatch>,
    pub(super) samples: usize,
    /// Samples that threads have taken, and samples that are in the batch.
    claimed: usize,
    pub(super) done: usize,
    pub(super) batch: Arc<Mutex<Batch>>,
    /// Set if a sample's code panicked; reported when it is this batch's turn.
    pub(super) failed: Option<DataError>,
}

/// A thread's own columns.
struct Buffer {
    /// For one sample.
    sample: Vec<Column>,
    /// For one of its members, if it has several.
    member: Vec<Column>,
}

/// A single sample that could not be loaded.
struct Failed {
    index: usize,
    error: SampleError,
}

enum Task {
    /// Loads the sample at a position of a batch.
    Load(Arc<Mutex<Batch>>, Arc<MicroBatch>, usize),
    /// Takes the next micro-batch, which gets this memory.
    Open(Upcoming, Vec<Column>),
}

impl Shared {
    pub(super) fn new(dataset: Arc<dyn Dataset>, options: LoaderOptions, work: Upcoming) -> Self {
        Self {
            dataset,
            fields: OnceLock::new(),
            options,
            state: Mutex::new(State { work: Some(work), ..State::default() }),
            work_changed: Condvar::new(),
            batch_changed: Condvar::new(),
        }
    }

    /// Runs a thread. Every failure in it reaches the consumer.
    pub(super) fn run(&self) {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let member = self
                .dataset
                .groups()
                .map(|groups| columns_for(groups.singles().fields(), 1))
                .unwrap_or_default();
            let mut own = Buffer { sample: columns_for(self.fields(), 1), member };
            while let Some(task) = self.next_task() {
                match task {
                    Task::Load(batch, request, position) => {
                        self.loaded(&batch, self.load(&batch, &request, position, &mut own).err());
                    }
                    Task::Open(work, memory) => self.open(work, memory),
                }
            }
        }));
        if let Err(panic) = outcome {
            self.lock().error = Some(panicked("a loader thread's own work".to_owned(), panic));
            self.batch_changed.notify_all();
        }
    }

    /// Waits for work; `None` when it is time to stop.
    fn next_task(&self) -> Option<Task> {
        let mut state = self.lock();
        while !state.stop {
            let unclaimed =
                |loading: &&mut LoadingBatch| loading.failed.is_none() && loading.claimed < loading.samples;
            if let Some(loading) = state.batches.iter_mut().find(unclaimed) {
                loading.claimed += 1;
                let (batch, request) = (Arc::clone(&loading.batch), Arc::clone(&loading.request));
                return Some(Task::Load(batch, request, loading.claimed - 1));
            }
            let room = !state.exhausted && state.batches.len() < self.options.prefetch_batches;
            if room && let Some(work) = state.work.take() {
                return Some(Task::Open(work, state.spare.pop().unwrap_or_default()));
            }
            state = wait(&self.work_changed, state);
        }
        None
    }

    /// Takes the next micro-batch and allocates it, without the lock: both may take a while.
    fn open(&self, mut work: Upcoming, memory: Vec<Column>) {
        let taken = catch_unwind(AssertUnwindSafe(|| {
            let micro_batch = work.next()?;
            let batch = self.empty_batch(&micro_batch, memory);
            Some((Arc::new(micro_batch), batch))
        }));
        let mut state = self.lock();
        let (request, batch, failed) = match taken {
            Ok(Some((request, batch))) => {
                state.work = Some(work);
                (request, batch, None)
            }
            Ok(None) => {
                state.exhausted = true;
                self.batch_changed.notify_all();
                return;
            }
            Err(panic) => {
                state.exhausted = true;
                (
                    Arc::new(MicroBatch::of(0, [])),
                    Batch::default(),
                    Some(panicked("the plan of the next batch".to_owned(), panic)),
                )
            }
        };
        state.batches.push_back(LoadingBatch {
            request,
            samples: batch.weights.len(),
            claimed: 0,
            done: 0,
            batch: Arc::new(Mutex::new(batch)),
            failed,
        });
        self.work_changed.notify_all();
        // The batch may be ready already: empty, or failed.
        self.batch_changed.notify_all();
    }

    fn empty_batch(&self, micro_batch: &MicroBatch, memory: Vec<Column>) -> Batch {
        let samples = micro_batch.samples();
        let fields = self.fields();
        let mut columns = memory;
        let mut pairs = columns.iter().zip(&**fields);
        if columns.len() != fields.len() || !pairs.all(|(column, field)| column.matches(field)) {
            columns = columns_for(fields, samples);
        }
        for (column, field) in columns.iter_mut().zip(&**fields) {
            column.resize(samples * field.values());
        }
        let hashes = match micro_batch.order {
            None => SampleHashes::default(),
            order => SampleHashes { order, ..SampleHashes::none_of(&*self.dataset) },
        };
        Batch { fields: Arc::clone(fields), columns, weights: vec![0.0; samples], bad: Vec::new(), hashes }
    }

    /// Loads one sample into its slot in the batch.
    fn load(
        &self,
        batch: &Mutex<Batch>,
        request: &MicroBatch,
        position: usize,
        own: &mut Buffer,
    ) -> Result<(), DataError> {
        let _decode = trace::span(Kind::Decode, "load a sample");
        let (places, blend) = (request.members(position), request.blend(position));
        let epoch = request.epoch;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let (failed, has_values) = self.load_places(places, blend, epoch, own);
            let bad = failed.into_iter().map(|Failed { index, error }| {
                let path = self.singles().describe(index);
                BadSample { index, path, reason: error.to_string() }
            });
            (bad.collect::<Vec<_>>(), has_values)
        }));
        let (bad, has_values) = outcome.map_err(|panic| {
            let index = places.first().map_or(0, |place| place.sample);
            panicked(format!("sample {index}"), panic)
        })?;

        // Before the lock, for which other threads wait.
        let hashes = request.order.filter(|_| has_values).map(|_| {
            let mut hashes = SampleHashes::none_of(&*self.dataset);
            hashes.add_sample(places, &own.sample);
            hashes
        });

        let mut batch = lock(batch);
        hashes.iter().for_each(|hashes| batch.hashes.add(hashes));
        for (column, own) in batch.columns.iter_mut().zip(&own.sample) {
            let place = position * own.len()..(position + 1) * own.len();
            match has_values {
                true => column.copy(place, own),
                false => column.clear(place),
            }
        }
        batch.weights[position] = if bad.is_empty() { 1.0 } else { 0.0 };
        batch.bad.extend(bad.into_iter().map(|sample| BadPlace { place: position, sample }));
        Ok(())
    }

    /// Loads the members of a sample, and others in place of those that cannot be loaded. Returns these, and whether all have
    /// values.
    fn load_places(
        &self,
        places: &[Place],
        blend: Option<&Blend>,
        epoch: u64,
        own: &mut Buffer,
    ) -> (Vec<Failed>, bool) {
        let Some(groups) = self.dataset.groups() else {
            return self.load_member(&*self.dataset, places[0], epoch, &mut own.sample);
        };
        // A member of another depth may have changed the columns.
        own.sample.iter_mut().for_each(|column| column.resize(0));
        own.sample.iter_mut().zip(&**self.fields()).for_each(|(column, field)| column.resize(field.values()));
        let fixed: Vec<Place>;
        let members = match places {
            &[Place { sample, repeat }] => {
                let members = groups.of(sample as usize).into_iter();
                fixed = members.map(|sample| Place { sample, repeat }).collect();
                &fixed
            }
            places => places,
        };
        let mut failed = Vec::new();
        for (at, member) in members.iter().enumerate() {
            let (found, has_values) = self.load_member(groups.singles(), *member, epoch, &mut own.member);
            failed.extend(found);
            if !has_values {
                // An outage: the others would fail too, perhaps each after a time-out.
                return (failed, false);
            }
            groups.put(at, &own.member, blend, &mut own.sample);
        }
        (failed, true)
    }

    /// Loads a single sample, or another in its place. Returns the first if it cannot be loaded, and whether there are values.
    fn load_member(
        &self,
        dataset: &dyn Dataset,
        place: Place,
        epoch: u64,
        own: &mut [Column],
    ) -> (Vec<Failed>, bool) {
        match self.load_place(dataset, place, epoch, own) {
            Ok(()) => (Vec::new(), true),
            Err(failed) => {
                let has_values = self.load_stand_in(dataset, &failed, epoch, own);
                (vec![failed], has_values)
            }
        }
    }

    fn load_place(
        &self,
        dataset: &dyn Dataset,
        place: Place,
        epoch: u64,
        own: &mut [Column],
    ) -> Result<(), Failed> {
        let key = u64::from(place.repeat) << u32::BITS | u64::from(place.sample);
        let mut rng = self.options.augment.then(|| keyed(Domain::Augment, self.options.seed, epoch, key));
        let index = place.sample as usize;
        dataset.load(index, rng.as_mut(), own).map_err(|error| Failed { index, error })
    }

    /// Loads another sample in place of one that cannot be loaded: statistics over a batch need a plausible one.
    /// It depends on (seed, epoch, sample) alone, so it is the same in every batch and on every rank. Returns
    /// whether one of a few could be loaded. During an outage the others fail too, perhaps each after a time-out, so the
    /// first one that fails for the same reason is the last.
    fn load_stand_in(&self, dataset: &dyn Dataset, failed: &Failed, epoch: u64, own: &mut [Column]) -> bool {
        let Failed { index, error } = failed;
        let samples = u32::try_from(dataset.len()).unwrap_or(u32::MAX);
        let mut rng = keyed(Domain::StandIn, self.options.seed, epoch, *index as u64);
        let others = (0..STAND_INS).map(|_| below(&mut rng, samples));
        for other in others.filter(|&other| other as usize != *index) {
            match self.load_place(dataset, Place::first(other), epoch, own).map_err(|failed| failed.error) {
                Ok(()) => return true,
                Err(again) if again.outage().is_some() && again.outage() == error.outage() => return false,
                Err(_) => {}
            }
        }
        false
    }

    fn singles(&self) -> &dyn Dataset {
        self.dataset.groups().map_or(&*self.dataset, |groups| groups.singles())
    }

    /// Records that a sample of a batch is done.
    fn loaded(&self, batch: &Arc<Mutex<Batch>>, failed: Option<DataError>) {
        let mut state = self.lock();
        let state = &mut *state;
        // The consumer removes a batch only when all its samples are done, or to report that it failed.
        let Some(loading) = state.batches.iter_mut().find(|loading| Arc::ptr_eq(&loading.batch, batch))
        else {
            return;
        };
        loading.done += 1;
        if let Some(error) = failed {
            loading.failed.get_or_insert(error);
            state.exhausted = true;
        }
        if loading.failed.is_some() {
            self.batch_changed.notify_all();
        } else if loading.done == loading.samples {
            // Threads finish in any order; errors are reported in the batch's order.
            lock(batch).bad.sort_by_key(|bad| bad.place);
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

/// Locks also after a panic of the holder: that panic is reported separately.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn wait<'a>(changed: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    changed.wait(state).unwrap_or_else(PoisonError::into_inner)
}

fn panicked(at: String, panic: Box<dyn Any + Send>) -> DataError {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    DataError::Panicked(at, text.unwrap_or("a panic without a message").to_owned())
}
