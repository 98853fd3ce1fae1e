//! A data set for the loader's tests.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::super::error::SampleError;
use super::super::rng::{Domain, SampleRng, below, keyed, unit};
use super::*;

/// One-pixel images of known values, with samples that are slow, bad, or panic.
#[derive(Default)]
pub(super) struct Numbers {
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

impl Dataset for Numbers {
    fn len(&self) -> usize {
        Self::LEN
    }
    fn classes(&self) -> usize {
        7
    }
    fn image_size(&self) -> usize {
        1
    }
    fn label(&self, index: usize) -> u32 {
        (index % 7) as u32
    }
    fn load(
        &self,
        index: usize,
        augment: Option<&mut SampleRng>,
        out: &mut [f32],
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
        let noise = augment.map_or(0.0, unit);
        out.copy_from_slice(&[index as f32, noise, -1.0]);
        if self.bad == Some(index) {
            Err(SampleError::Empty)
        } else {
            Ok(())
        }
    }
    fn describe(&self, index: usize) -> String {
        format!("number {index}")
    }
}

pub(super) fn options(threads: usize) -> LoaderOptions {
    LoaderOptions {
        threads,
        prefetch_batches: 3,
        seed: 1,
        augment: true,
    }
}

pub(super) fn work(batches: &[&[u32]]) -> Vec<MicroBatch> {
    (0..)
        .zip(batches)
        .map(|(epoch, indices)| MicroBatch {
            epoch,
            indices: indices.to_vec(),
        })
        .collect()
}

pub(super) fn all(dataset: Arc<dyn Dataset>, options: LoaderOptions, work: Vec<MicroBatch>) -> Vec<Batch> {
    Loader::start(dataset, options, work.into_iter())
        .unwrap()
        .map(Result::unwrap)
        .collect()
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
