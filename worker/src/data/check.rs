//! A look at every image before training starts, so that bad files are named at once instead of hours later.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::decode;
use super::error::{BadSample, DataError, SampleError, first_few};
use super::image_folder::{ImageIndex, Sample};

/// How closely images are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The header: a known format and a size within the limit. Files that are damaged further on are found only when
    /// they are loaded.
    Header,
    /// The whole image is decoded.
    Full,
}

impl Depth {
    /// Up to this many images are decoded in full, which takes seconds; beyond it would take minutes.
    pub const FULL_UP_TO: usize = 10_000;

    /// The depth for a split of `images`.
    pub fn for_len(images: usize) -> Self {
        if images <= Self::FULL_UP_TO {
            Depth::Full
        } else {
            Depth::Header
        }
    }
}

/// What [`check`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReport {
    /// The bad images, by number.
    pub bad: Vec<BadSample>,
    /// How many were looked at.
    pub checked: usize,
}

/// Whether so many bad images are taken for damage to the data set: more than 1%. The same rule holds for images that
/// turn out bad while training.
pub fn too_many_bad(bad: usize, total: usize) -> bool {
    bad.saturating_mul(100) > total
}

/// The header is nearly always in the first part of a file, so a large set need not be read whole for it.
const HEADER_BYTES: u64 = 64 << 10;

/// The longest time between two calls of `progress`.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// Looks at all images of `index` in `threads` threads (at least one) and calls `progress(done, total)` on this
/// thread now and then, and once at the end. The report does not depend on the number of threads.
pub fn check(
    index: &ImageIndex,
    depth: Depth,
    threads: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> CheckReport {
    let total = index.len();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let look = |report: &mpsc::Sender<BadSample>| {
        let mut looker = Looker::default();
        loop {
            let sample = next.fetch_add(1, Ordering::Relaxed);
            if sample >= total {
                return;
            }
            let path = index.path(sample);
            if let Err(error) = looker.look(&path, depth) {
                let bad = BadSample {
                    index: sample,
                    path: path.display().to_string(),
                    reason: error.to_string(),
                };
                // The receiver lives as long as any sender does.
                let _ = report.send(bad);
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
    };

    let mut bad = Vec::new();
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let look = &look;
        let mut running = 0;
        for _ in 0..threads.clamp(1, total.max(1)) {
            let sender = sender.clone();
            let thread = thread::Builder::new().name("check".to_owned());
            running += usize::from(thread.spawn_scoped(scope, move || look(&sender)).is_ok());
        }
        if running == 0 {
            look(&sender);
        }
        drop(sender);
        loop {
            match receiver.recv_timeout(PROGRESS_EVERY) {
                Ok(image) => bad.push(image),
                Err(RecvTimeoutError::Timeout) => progress(done.load(Ordering::Relaxed), total),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    });
    progress(total, total);
    bad.sort_unstable_by_key(|image| image.index);
    CheckReport { bad, checked: total }
}

impl CheckReport {
    /// The index without the bad images.
    ///
    /// # Errors
    /// [`DataError::TooManyBad`] if more than 1% are bad, [`DataError::ClassLost`] if a class would be left with none.
    ///
    /// # Panics
    /// If the report is of another index.
    pub fn apply(&self, index: &ImageIndex) -> Result<ImageIndex, DataError> {
        assert_eq!(self.checked, index.len(), "the report belongs to another index");
        let (bad, total) = (self.bad.len(), index.len());
        let before = index.class_counts();
        let mut left = before.clone();
        let mut keep = vec![true; total];
        for image in &self.bad {
            left[index.samples[image.index].0 as usize] -= 1;
            keep[image.index] = false;
        }
        if too_many_bad(bad, total) {
            return Err(DataError::TooManyBad {
                bad,
                total,
                first: first_few(&self.bad),
            });
        }
        if let Some(class) = (0..left.len()).find(|&class| left[class] == 0 && before[class] > 0) {
            let of_class: Vec<BadSample> = self
                .bad
                .iter()
                .filter(|image| index.samples[image.index].0 as usize == class)
                .cloned()
                .collect();
            return Err(DataError::ClassLost {
                class: index.classes[class].clone(),
                bad: of_class.len(),
                first: first_few(&of_class),
            });
        }
        let kept = index.samples.iter().zip(keep).filter(|(_, keep)| *keep);
        let samples: Vec<Sample> = kept.map(|(sample, _)| sample.clone()).collect();
        Ok(ImageIndex {
            samples,
            ..index.clone()
        })
    }
}

/// The working memory of one checking thread.
#[derive(Default)]
struct Looker {
    file: Vec<u8>,
    raw: Vec<u8>,
    rgb: Vec<u8>,
}

impl Looker {
    fn look(&mut self, path: &Path, depth: Depth) -> Result<(), SampleError> {
        let mut file = File::open(path)?;
        self.file.clear();
        match depth {
            Depth::Full => {
                file.read_to_end(&mut self.file)?;
                decode::rgb8(&self.file, &mut self.raw, &mut self.rgb)?;
            }
            Depth::Header => {
                file.by_ref().take(HEADER_BYTES).read_to_end(&mut self.file)?;
                if decode::header(&self.file).is_err() {
                    // TIFF keeps its directory anywhere, and a JPEG may begin with a long profile.
                    file.read_to_end(&mut self.file)?;
                    decode::header(&self.file)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
