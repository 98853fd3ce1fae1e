//! The micro-batches of a training, from the loader to the device.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dtrain_common::trace::{self, Kind};
use dtrain_torch_shim::ShimError;
use dtrain_torch_shim::stream::{Event, Stream};
use tch::Device;

use crate::data::error::MOST_NAMED;
use crate::data::{self, Dataset, Field, Loader, LoaderOptions, MicroBatch, SampleHashes};
use crate::step::error::{Result, StepError};
use crate::tasks::Batch;

/// A micro-batch on its device.
pub(crate) struct DeviceBatch {
    pub(crate) batch: Batch,
    /// The numbers of the samples that could not be read.
    pub(crate) unreadable: Vec<u32>,
    /// The wait for the decoded micro-batch.
    pub(crate) data_wait: Duration,
    /// Hashes of its samples; empty without values.
    pub(crate) hashes: SampleHashes,
}

impl DeviceBatch {
    fn of(decoded: &data::Batch, batch: Batch, data_wait: Duration) -> Self {
        Self { batch, unreadable: decoded.unreadable().collect(), data_wait, hashes: decoded.hashes.clone() }
    }
}

/// The source of a step's micro-batches.
pub(crate) trait Feed {
    fn next(&mut self) -> Result<DeviceBatch>;

    /// Begins a step that takes its micro-batches once or twice.
    fn repeat(&mut self, _is_repeated: bool) {}

    /// Goes back to the step's first micro-batch. Call it once in a step, after all were taken.
    fn again(&mut self) {}

    /// Fetches the next micro-batch if that is free. Call it when the last micro-batch is freed.
    fn prefetch(&mut self) {}

    /// Returns the bytes of the next micro-batch that are already on the device.
    fn prefetched_bytes(&self) -> u64 {
        0
    }
}

/// Micro-batches without values on the CPU, for the rehearsal of a step.
pub(crate) struct BlankFeed {
    fields: Vec<Field>,
    sizes: Vec<usize>,
    taken: usize,
}

impl BlankFeed {
    /// Makes micro-batches of these sizes.
    pub(crate) fn new(fields: &[Field], sizes: &[usize]) -> Self {
        Self { fields: fields.to_vec(), sizes: sizes.to_vec(), taken: 0 }
    }
}

impl Feed for BlankFeed {
    fn next(&mut self) -> Result<DeviceBatch> {
        let samples = *self.sizes.get(self.taken).ok_or(StepError::LoaderEnded)?;
        self.taken += 1;
        Ok(DeviceBatch {
            batch: Batch::blank(&self.fields, samples, Device::Cpu)?,
            unreadable: Vec::new(),
            data_wait: Duration::ZERO,
            hashes: SampleHashes::default(),
        })
    }

    fn again(&mut self) {
        self.taken = 0;
    }
}

/// The micro-batches of a plan, in order, from its loader.
///
/// On a GPU, the next micro-batch is copied from pinned memory on a separate stream, while the device
/// computes. The copy begins when the previous one is freed, so memory holds one at a time.
pub(crate) struct LoaderFeed {
    loader: Loader,
    warned: Warned,
    device: Device,
    /// The stream of the copies; created for the first copy.
    copies: Option<Stream>,
    prefetched: Prefetch,
    /// Whether a step takes its micro-batches twice.
    is_repeated: bool,
    /// The step's decoded micro-batches, for the second time.
    kept: VecDeque<data::Batch>,
    /// Whether these are next.
    is_second: bool,
}

/// The state of the next micro-batch.
enum Prefetch {
    /// Not yet taken from the loader.
    Empty,
    /// Decoded but not copied, because an allocation failed; or an error of the loader.
    Decoded(Result<data::Batch, data::DataError>),
    /// On the device, once the event is reached; with what was decoded.
    OnDevice(Box<DeviceBatch>, Option<Event>, data::Batch),
}

impl LoaderFeed {
    pub(crate) fn start(
        dataset: Arc<dyn Dataset>,
        options: LoaderOptions,
        work: impl Iterator<Item = MicroBatch> + Send + 'static,
        device: Device,
    ) -> Result<Self> {
        Ok(Self {
            loader: Loader::start(dataset, options, work)?,
            warned: Warned::default(),
            device,
            copies: None,
            prefetched: Prefetch::Empty,
            is_repeated: false,
            kept: VecDeque::new(),
            is_second: false,
        })
    }

    /// Loads other micro-batches of the same data set.
    pub(crate) fn restart(
        &mut self,
        dataset: Arc<dyn Dataset>,
        options: LoaderOptions,
        work: impl Iterator<Item = MicroBatch> + Send + 'static,
    ) -> Result<()> {
        self.prefetched = Prefetch::Empty;
        self.kept.clear();
        self.is_second = false;
        self.loader = Loader::start(dataset, options, work)?;
        Ok(())
    }

    fn fetch_if_loaded(&mut self) {
        if self.is_second && !self.kept.is_empty() || !matches!(self.prefetched, Prefetch::Empty) {
            return;
        }
        self.prefetched = match self.loader.next_if_loaded() {
            None => return,
            Some(Err(error)) => Prefetch::Decoded(Err(error)),
            Some(Ok(decoded)) => match self.copy(&decoded) {
                Ok((batch, copied)) => {
                    self.warned.warn(&decoded);
                    Prefetch::OnDevice(
                        Box::new(DeviceBatch::of(&decoded, batch, Duration::ZERO)),
                        copied,
                        decoded,
                    )
                }
                // Its step tries again, and reports a failure.
                Err(_) => Prefetch::Decoded(Ok(decoded)),
            },
        };
    }

    /// Copies a micro-batch on a separate stream of a GPU, and records the end of the copy.
    fn copy(&mut self, decoded: &data::Batch) -> Result<(Batch, Option<Event>), ShimError> {
        let Device::Cuda(gpu) = self.device else { return Ok((Batch::new(decoded, self.device)?, None)) };
        let copies = match self.copies {
            Some(stream) => stream,
            None => *self.copies.insert(Stream::from_pool(gpu, false)?),
        };
        let mut copied = Event::new()?;
        let batch = copies.run(|| Batch::new(decoded, self.device))??;
        copied.record(copies)?;
        Ok((batch, Some(copied)))
    }

    /// Keeps a copied micro-batch for the second time, or recycles its memory.
    fn keep_or_recycle(&mut self, decoded: data::Batch) {
        match self.is_repeated {
            true => self.kept.push_back(decoded),
            false => self.loader.recycle(decoded),
        }
    }

    /// Returns a micro-batch of the step for the second time, if these are next.
    fn next_again(&mut self) -> Result<Option<DeviceBatch>> {
        if !self.is_second {
            return Ok(None);
        }
        let Some(decoded) = self.kept.pop_front() else { return Ok(None) };
        let batch = Batch::new(&decoded, self.device)?;
        let fetched = DeviceBatch::of(&decoded, batch, Duration::ZERO);
        self.loader.recycle(decoded);
        Ok(Some(fetched))
    }

    /// Frees the micro-batch that was fetched ahead. Call it before the feed is replaced.
    pub(crate) fn drop_prefetched(&mut self) {
        self.prefetched = Prefetch::Empty;
    }
}

impl Feed for LoaderFeed {
    fn next(&mut self) -> Result<DeviceBatch> {
        let _load = trace::span(Kind::Load, "load");
        if let Some(fetched) = self.next_again()? {
            return Ok(fetched);
        }
        let started = Instant::now();
        let decoded = match std::mem::replace(&mut self.prefetched, Prefetch::Empty) {
            Prefetch::OnDevice(fetched, copied, decoded) => {
                self.keep_or_recycle(decoded);
                if let Some(copied) = copied {
                    wait_for_copy(&fetched.batch, &copied, self.device)?;
                }
                return Ok(*fetched);
            }
            Prefetch::Decoded(decoded) => decoded?,
            Prefetch::Empty => self.loader.next().ok_or(StepError::LoaderEnded)??,
        };
        let data_wait = started.elapsed();
        let batch = to_device(&decoded, &mut self.warned, self.device)?;
        let fetched = DeviceBatch::of(&decoded, batch, data_wait);
        self.keep_or_recycle(decoded);
        Ok(fetched)
    }

    fn repeat(&mut self, is_repeated: bool) {
        self.is_repeated = is_repeated;
        self.kept.clear();
        self.is_second = false;
    }

    fn again(&mut self) {
        self.is_second = true;
    }

    /// Keeps an error for [`Feed::next`], which returns it in the step of the micro-batch.
    fn prefetch(&mut self) {
        if self.device.is_cuda() {
            self.fetch_if_loaded();
        }
    }

    fn prefetched_bytes(&self) -> u64 {
        match &self.prefetched {
            Prefetch::OnDevice(fetched, ..) => fetched.batch.bytes(),
            _ => 0,
        }
    }
}

/// Makes the computing stream wait for the copy. The batch's memory belongs to the other stream; it is not
/// reused before the computing stream has finished the work queued until the batch is dropped.
fn wait_for_copy(batch: &Batch, copied: &Event, device: Device) -> Result<(), ShimError> {
    if let Device::Cuda(gpu) = device {
        let computing = Stream::current(gpu)?;
        copied.block(computing)?;
        for tensor in batch.tensors() {
            computing.record_tensor(tensor)?;
        }
    }
    Ok(())
}

/// Copies a decoded batch to the device, and reports unreadable samples.
pub(crate) fn to_device(decoded: &data::Batch, warned: &mut Warned, device: Device) -> Result<Batch> {
    warned.warn(decoded);
    Ok(Batch::new(decoded, device)?)
}

/// The unreadable samples of a data set that were reported. Each is reported once, however often it is loaded.
#[derive(Debug, Default)]
pub(crate) struct Warned(HashSet<usize>);

impl Warned {
    /// Warns of the first samples; all are counted as `skipped_images`.
    fn warn(&mut self, decoded: &data::Batch) {
        for bad in &decoded.bad {
            let bad = &bad.sample;
            if self.0.len() >= MOST_NAMED || !self.0.insert(bad.index) {
                continue;
            }
            tracing::warn!("{} cannot be read and is left out: {}", bad.path, bad.reason);
            if self.0.len() == MOST_NAMED {
                tracing::warn!("{MOST_NAMED} unreadable samples were reported; later ones are only counted");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::data::{Column, SampleError, SampleRng};

    /// A sample is its own number; 7 is unreadable and 9 is an error of the data set.
    struct Numbers([Field; 1]);

    impl Dataset for Numbers {
        fn len(&self) -> usize {
            100
        }

        fn fields(&self) -> &[Field] {
            &self.0
        }

        fn load(
            &self,
            index: usize,
            _random: Option<&mut SampleRng>,
            out: &mut [Column],
        ) -> Result<(), SampleError> {
            assert_ne!(index, 9, "made to fail");
            out[0].i64()[0] = index as i64;
            if index == 7 { Err(SampleError::Empty) } else { Ok(()) }
        }

        fn describe(&self, index: usize) -> String {
            format!("number {index}")
        }
    }

    fn feed(plan: &[&[u32]]) -> LoaderFeed {
        let options = LoaderOptions { threads: 1, prefetch_batches: 4, seed: 1, augment: false };
        let work: Vec<MicroBatch> = plan.iter().map(|indices| MicroBatch::of(0, indices.to_vec())).collect();
        let data = Arc::new(Numbers([Field::i64("x", [])]));
        LoaderFeed::start(data, options, work.into_iter(), Device::Cpu).unwrap()
    }

    fn values(fetched: &DeviceBatch) -> Vec<i64> {
        Vec::try_from(fetched.batch.field("x").unwrap()).unwrap()
    }

    /// Fetches ahead as on a GPU, once a micro-batch is decoded.
    fn fetch(feed: &mut LoaderFeed) {
        while matches!(feed.prefetched, Prefetch::Empty) {
            feed.fetch_if_loaded();
            std::thread::yield_now();
        }
    }

    #[test]
    fn micro_batches_come_in_order_with_and_without_prefetch() {
        let plan: &[&[u32]] = &[&[1, 2], &[7, 3], &[4], &[5, 6]];
        for fetched in [[false; 4], [true; 4], [false, true, true, false]] {
            let mut feed = feed(plan);
            for (indices, fetched) in plan.iter().zip(fetched) {
                if fetched {
                    fetch(&mut feed);
                    // n numbers of 8 bytes and n weights of 4; a second fetch takes no other.
                    let bytes = 12 * indices.len() as u64;
                    assert_eq!(feed.prefetched_bytes(), bytes);
                    assert_eq!(Batch::bytes_of(&[Field::i64("x", [])], indices.len()), bytes);
                    feed.fetch_if_loaded();
                }
                let fetched = feed.next().unwrap();
                assert_eq!(feed.prefetched_bytes(), 0);
                let bad = indices.iter().position(|&index| index == 7);
                assert_eq!(fetched.unreadable, bad.map(|_| 7).into_iter().collect::<Vec<_>>());
                for (place, (&index, value)) in indices.iter().zip(values(&fetched)).enumerate() {
                    // Another sample replaces the unreadable one.
                    assert_eq!(value == i64::from(index), bad != Some(place), "{value}");
                }
            }
            assert!(matches!(feed.next(), Err(StepError::LoaderEnded)));
        }
    }

    /// Steps of two, one and two micro-batches, which those of several take twice.
    #[test]
    fn a_step_takes_its_own_micro_batches_again() {
        for fetched in [false, true] {
            let mut feed = feed(&[&[1, 2], &[3], &[4], &[5, 6], &[8]]);
            for step in [&[vec![1, 2], vec![3]][..], &[vec![4]], &[vec![5, 6], vec![8]]] {
                feed.repeat(step.len() > 1);
                for pass in 0..2 {
                    for (at, samples) in step.iter().enumerate().filter(|_| pass == 0 || step.len() > 1) {
                        assert_eq!(values(&feed.next().unwrap()), *samples, "{step:?} {pass}");
                        let is_last = at + 1 == step.len();
                        if fetched && (pass == 1 || step.len() == 1) && is_last && *samples != [8] {
                            fetch(&mut feed);
                        }
                    }
                    feed.again();
                }
            }
        }
    }

    #[test]
    fn an_unreadable_sample_is_reported_once() {
        let mut warned = Warned::default();
        let bad = |index: usize| {
            let sample = data::BadSample { index, path: String::new(), reason: String::new() };
            data::BadPlace { place: 0, sample }
        };
        for _ in 0..3 {
            warned.warn(&data::Batch { bad: vec![bad(4), bad(7), bad(4)], ..data::Batch::default() });
        }
        assert_eq!(warned.0.len(), 2);
        warned.warn(&data::Batch { bad: (0..100).map(bad).collect(), ..data::Batch::default() });
        assert_eq!(warned.0.len(), MOST_NAMED);
    }

    #[test]
    fn a_cpu_prefetches_nothing_and_dropping_frees_the_batch() {
        let mut feed = feed(&[&[1], &[2]]);
        let first = feed.next().unwrap();
        assert_eq!(values(&first), [1]);
        for _ in 0..50 {
            feed.prefetch();
            assert!(matches!(feed.prefetched, Prefetch::Empty));
        }
        fetch(&mut feed);
        feed.drop_prefetched();
        assert_eq!(feed.prefetched_bytes(), 0);
    }

    #[test]
    fn an_error_while_prefetching_fails_its_own_step() {
        let mut feed = feed(&[&[1], &[9]]);
        feed.next().unwrap();
        fetch(&mut feed);
        assert!(matches!(feed.prefetched, Prefetch::Decoded(Err(_))));
        assert!(matches!(feed.next(), Err(StepError::Data(_))));
        assert!(feed.next().is_err());
    }
}
