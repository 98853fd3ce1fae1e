//! A check of every image before training starts, so that bad files are reported at once, not hours later.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use dtrain_common::recipe::Resize;

use super::class_counts::ClassCounts;
use super::dataset::Field;
use super::decode;
use super::error::{BadSample, DataError, Result, SampleError};
use super::moments::Moments;
use super::pixel_target::{PixelRule, PixelTarget};
use super::raster::Raster;
use super::regular;

/// Depth of the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The header: a known format and a size within the limit. Other damage is found when loading.
    Header,
    /// The whole image is decoded.
    Full,
}

/// Up to this many images are decoded in full, which takes seconds; more would take minutes.
const FULL_UP_TO: usize = 10_000;

impl Depth {
    /// Returns the depth for a split of `images`.
    pub fn for_len(images: usize) -> Self {
        if images <= FULL_UP_TO { Depth::Full } else { Depth::Header }
    }
}

/// Requirements for the images of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Channels of every image; 3 for RGB pictures.
    pub channels: usize,
    /// With [`Resize::None`], all images must have the same size.
    pub resize: Resize,
}

/// The learning target of one image.
pub enum Target<'a> {
    Label(u32),
    Vector(&'a [f32]),
    /// The file with a target for each pixel, and the rule to read it.
    Pixels(PathBuf, PixelRule),
}

/// A list of image files with targets.
pub trait ImageList: Send + Sync {
    /// Returns the number of samples.
    fn count(&self) -> usize;

    /// Returns the path of one sample's image.
    fn image_path(&self, sample: usize) -> PathBuf;

    /// Checks one sample and returns the size of its image, (width, height).
    fn inspect(
        &self,
        sample: usize,
        needs: Needs,
        depth: Depth,
        inspector: &mut Inspector,
    ) -> Result<(u32, u32)> {
        inspector.image(&self.image_path(sample), needs.channels, depth)
    }

    /// Returns the target of a sample.
    fn target(&self, sample: usize) -> Target<'_>;

    /// Returns the field of the target for images of this size in pixels.
    fn target_field(&self, height: usize, width: usize) -> Field;
}

/// Result of [`check`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CheckReport {
    pub bad: Vec<BadSample>,
    pub checked: usize,
    /// Statistics of the decoded masks; empty without masks.
    pub class_counts: ClassCounts,
    /// Statistics of the decoded maps; of no number without maps.
    pub moments: Moments,
    /// The good samples and the sizes of their images, by number; only if images are not resized.
    sizes: Vec<(usize, (u32, u32))>,
}

/// Returns whether more than 1% are bad: the data set then counts as damaged. Also used in training.
pub fn too_many_bad(bad: usize, total: usize) -> bool {
    bad.saturating_mul(100) > total
}

/// Most headers are in the first part of a file, so a large set need not be read whole.
const HEADER_BYTES: u64 = 64 << 10;

/// The longest time between two calls of `progress`.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// Checks all samples in `threads` threads (at least one). Calls `progress(done, total)` on this thread
/// regularly and once at the end.
pub fn check<L: ImageList>(
    index: &L,
    needs: Needs,
    depth: Depth,
    threads: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> CheckReport {
    let inspect = |sample, inspector: &mut Inspector| {
        let size = index.inspect(sample, needs, depth, inspector)?;
        Ok((needs.resize == Resize::None).then_some(size))
    };
    let mut report = inspect_all(index.count(), inspect, threads, progress);
    for bad in &mut report.bad {
        bad.path = index.image_path(bad.index).display().to_string();
    }
    report
}

/// As [`check`] with `inspect`, which returns the size of an image if it is to be kept. Leaves paths empty.
pub(super) fn inspect_all(
    total: usize,
    inspect: impl Fn(usize, &mut Inspector) -> Result<Option<(u32, u32)>> + Sync,
    threads: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> CheckReport {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let found_values = Mutex::new((ClassCounts::default(), Vec::new()));
    let work = |found: mpsc::Sender<_>| {
        let mut inspector = Inspector::default();
        loop {
            let sample = next.fetch_add(1, Ordering::Relaxed);
            if sample >= total {
                break;
            }
            if let Some(one) = inspect(sample, &mut inspector).transpose() {
                // The receiver lives as long as any sender.
                let _ = found.send((sample, one));
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
        let mut values = found_values.lock().unwrap_or_else(PoisonError::into_inner);
        values.0.add(&inspector.class_counts);
        values.1.append(&mut inspector.moments);
    };
    let mut report = CheckReport { checked: total, ..CheckReport::default() };
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let work = &work;
        let mut running = 0;
        for _ in 0..threads.clamp(1, total.max(1)) {
            let sender = sender.clone();
            let thread = thread::Builder::new().name("check".to_owned());
            running += usize::from(thread.spawn_scoped(scope, move || work(sender)).is_ok());
        }
        match running {
            0 => work(sender),
            _ => drop(sender),
        }
        loop {
            match receiver.recv_timeout(PROGRESS_EVERY) {
                Ok((sample, Ok(size))) => report.sizes.push((sample, size)),
                Ok((index, Err(error))) => {
                    report.bad.push(BadSample { index, path: String::new(), reason: error.to_string() })
                }
                Err(RecvTimeoutError::Timeout) => progress(done.load(Ordering::Relaxed), total),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    });
    progress(total, total);
    report.bad.sort_unstable_by_key(|sample| sample.index);
    report.sizes.sort_unstable();
    let (class_counts, mut moments) = found_values.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.class_counts = class_counts;
    // The sum depends on the order, so it must not depend on threads.
    moments.sort_unstable_by_key(|(sample, _)| *sample);
    moments.iter().for_each(|(_, moments)| report.moments.add(moments));
    report
}

impl CheckReport {
    /// Returns the good samples, unless too many are bad. Panics if the report is of another list.
    pub(super) fn good<T: Clone>(&self, samples: &[T]) -> Result<Vec<T>, DataError> {
        let total = samples.len();
        assert_eq!(self.checked, total, "the report belongs to another index");
        if too_many_bad(self.bad.len(), total) {
            return Err(DataError::TooManyBad(self.bad.clone(), total));
        }
        let is_good = |at: &usize| self.bad.binary_search_by_key(at, |bad| bad.index).is_err();
        Ok((0..total).filter(is_good).map(|at| samples[at].clone()).collect())
    }

    /// Returns the common size of the good images: `expected`, else the first's. Others are an error.
    pub(super) fn common_size(
        &self,
        list: &impl ImageList,
        expected: Option<(u32, u32)>,
    ) -> Result<Option<(u32, u32)>, DataError> {
        let named =
            |(sample, size): &(usize, (u32, u32))| (list.image_path(*sample).display().to_string(), *size);
        let Some(first) = self.sizes.first() else { return Ok(None) };
        let size = expected.unwrap_or(first.1);
        match self.sizes.iter().find(|(_, other)| *other != size) {
            None => Ok(Some(size)),
            Some(other) => {
                let given = expected.map(|size| ("every training image".to_owned(), size));
                Err(DataError::MixedSizes(named(other), given.unwrap_or_else(|| named(first))))
            }
        }
    }
}

/// The working memory of one decoding thread.
#[derive(Debug, Default)]
pub struct Inspector {
    file: Vec<u8>,
    raw: Vec<u8>,
    pub(super) image: Raster,
    pub(super) target: PixelTarget,
    pub(super) class_counts: ClassCounts,
    /// Statistics of each map, by sample.
    moments: Vec<(usize, Moments)>,
    map: Raster,
}

impl Inspector {
    /// Returns the approximate memory held after the last sample, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        let files = self.file.capacity() + self.raw.capacity();
        let images = self.image.values.held_bytes() + self.map.values.held_bytes();
        files + images + self.target.held_bytes()
    }

    pub(super) fn image(&mut self, path: &Path, channels: usize, depth: Depth) -> Result<(u32, u32)> {
        if depth == Depth::Header {
            return self.beginning(path, |bytes| decode::header(bytes, channels));
        }
        regular::read(path, &mut self.file)?;
        decode::pixels(&self.file, channels, &mut self.raw, &mut self.image)?;
        Ok((self.image.width, self.image.height))
    }

    /// Checks a mask or map and returns its size; with [`Depth::Full`] its values are in `target`.
    pub(super) fn pixels(&mut self, path: &Path, rule: PixelRule, depth: Depth) -> Result<(u32, u32)> {
        let size = match (depth, rule) {
            (Depth::Header, PixelRule::Mask(_)) => self.beginning(path, decode::mask_header),
            (Depth::Header, PixelRule::Map(_)) => self.beginning(path, decode::map_header),
            (Depth::Full, rule) => regular::read(path, &mut self.file)
                .map_err(SampleError::from)
                .and_then(|()| self.decode_pixels(rule))
                .map(|()| self.target.size()),
        };
        size.map_err(|source| SampleError::Mask(path.display().to_string(), Box::new(source)))
    }

    fn decode_pixels(&mut self, rule: PixelRule) -> Result<()> {
        match rule {
            PixelRule::Mask(rule) => {
                let classes = self.target.classes();
                decode::mask(&self.file, &mut self.raw, classes)?;
                rule.apply(classes)
            }
            PixelRule::Map(rule) => {
                let white = decode::map(&self.file, &mut self.raw, &mut self.map)?;
                rule.apply(&self.map, white, self.target.numbers());
                Ok(())
            }
        }
    }

    /// Adds the values in `target` to the statistics. Classes of the value `ignore` do not count.
    pub(super) fn count(&mut self, sample: usize, ignore: i64) {
        match &self.target {
            PixelTarget::Classes(labels) => self.class_counts.count(&labels.values, ignore),
            PixelTarget::Numbers(labels) => {
                self.moments.push((sample, Moments::of(labels.values.iter().copied())))
            }
        }
    }

    /// Reads the beginning of the file, and the rest only if the header needs it.
    fn beginning(&mut self, path: &Path, header: impl Fn(&[u8]) -> Result<(u32, u32)>) -> Result<(u32, u32)> {
        let mut file = regular::open(path)?;
        self.file.clear();
        file.by_ref().take(HEADER_BYTES).read_to_end(&mut self.file)?;
        header(&self.file).or_else(|_| {
            // TIFF keeps its directory anywhere, and a JPEG may begin with a long profile.
            file.read_to_end(&mut self.file)?;
            header(&self.file)
        })
    }
}

#[cfg(test)]
mod tests;
