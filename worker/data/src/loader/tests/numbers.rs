//! A data set for the loader's tests.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::super::super::dataset::{Column, Field};
use super::super::super::error::SampleError;
use super::super::super::rng::{Domain, SampleRng, below, keyed, unit};
use super::super::*;

/// One-pixel images of known values, with samples that are slow, bad, or panic.
pub(super) struct Numbers {
    pub(super) fields: Vec<Field>,
    pub(super) slow: bool,
    pub(super) bad: Option<usize>,
    pub(super) panics: Option<usize>,
    pub(super) loaded: AtomicUsize,
    pub(super) running: AtomicUsize,
    pub(super) held: AtomicBool,
}

impl Numbers {
    const LEN: usize = 1000;
}

impl Default for Numbers {
    fn default() -> Self {
        Self {
            fields: vec![Field::f32("image", [3, 1, 1]), Field::i64("label", [])],
            slow: false,
            bad: None,
            panics: None,
            loaded: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            held: AtomicBool::new(false),
        }
    }
}

impl Dataset for Numbers {
    fn len(&self) -> usize {
        Self::LEN
    }
    fn fields(&self) -> &[Field] {
        &self.fields
    }
    fn load(
        &self,
        index: usize,
        random: Option<&mut SampleRng>,
        out: &mut [Column],
    ) -> Result<(), SampleError> {
        assert!(index < Self::LEN, "sample {index} of {}", Self::LEN);
        self.running.fetch_add(1, Ordering::SeqCst);
        if self.slow {
            // Uneven, so that threads overtake each other.
            let mut rng = keyed(Domain::GeneratedImage, 0, 0, index as u64);
            std::thread::sleep(Duration::from_micros(u64::from(below(&mut rng, 300))));
        }
        while self.held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.running.fetch_sub(1, Ordering::SeqCst);
        self.loaded.fetch_add(1, Ordering::SeqCst);
        if self.panics == Some(index) {
            panic!("made to fail");
        }
        let noise = random.map_or(0.0, unit);
        out[0].f32().copy_from_slice(&[index as f32, noise, -1.0]);
        out[1].i64()[0] = index as i64 % 7;
        if self.bad == Some(index) { Err(SampleError::Empty) } else { Ok(()) }
    }
    fn describe(&self, index: usize) -> String {
        format!("number {index}")
    }
}

pub(super) fn options(threads: usize) -> LoaderOptions {
    LoaderOptions { threads, prefetch_batches: 3, seed: 1, augment: true }
}

pub(super) fn work(batches: &[&[u32]]) -> Vec<MicroBatch> {
    (0..).zip(batches).map(|(epoch, indices)| MicroBatch::of(epoch, indices.to_vec())).collect()
}

pub(super) fn all(dataset: Arc<dyn Dataset>, options: LoaderOptions, work: Vec<MicroBatch>) -> Vec<Batch> {
    Loader::start(dataset, options, work.into_iter()).unwrap().map(Result::unwrap).collect()
}

pub(super) fn images(batch: &Batch) -> &[f32] {
    match batch.column("image") {
        Some(Column::F32(values)) => values,
        other => panic!("no numbers: {other:?}"),
    }
}

/// Returns the numbers of a batch's samples.
pub(super) fn indices(batch: &Batch) -> Vec<f32> {
    images(batch).iter().copied().step_by(3).collect()
}

pub(super) fn labels(batch: &Batch) -> &[i64] {
    batch.column("label").unwrap().as_i64().unwrap()
}

/// Waits until `done`, for at most half a minute.
pub(super) fn eventually(done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(30) {
        if done() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}
