//! A check of every image before training starts, so that bad files are reported at once, not hours later.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use dtrain_recipe::Resize;

use super::class_counts::ClassCounts;
use super::dataset::Field;
use super::error::{BadSample, DataError, Result};
use super::inspector::Inspector;
use super::marks::Marks;
use super::moments::Moments;
use super::needs::{Depth, Needs};
use super::pixel_target::PixelRule;

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
        inspector.image(&self.image_path(sample), needs, depth)
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
    /// Files that are reported and used.
    pub marks: Marks,
    /// The good samples and the sizes of their images, by number; only if images are not resized.
    sizes: Vec<(usize, (u32, u32))>,
}

/// Returns whether more than 1% are bad: the data set then counts as damaged. Also used in training.
pub fn too_many_bad(bad: usize, total: usize) -> bool {
    bad.saturating_mul(100) > total
}

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
    let found_values = Mutex::new((ClassCounts::default(), Vec::new(), Marks::default()));
    let work = |found: mpsc::Sender<_>| {
        let mut inspector = Inspector::for_check();
        loop {
            let sample = next.fetch_add(1, Ordering::Relaxed);
            if sample >= total {
                break;
            }
            if let Some(one) = inspect(sample, &mut inspector).transpose() {
                // The receiver lives as long as any sender.
                let _ = found.send((sample, one));
            }
            inspector.free_excess();
            done.fetch_add(1, Ordering::Relaxed);
        }
        let mut values = found_values.lock().unwrap_or_else(PoisonError::into_inner);
        values.0.add(&inspector.class_counts);
        values.1.append(&mut inspector.moments);
        values.2.merge(inspector.marks.take().unwrap_or_default());
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
    let found = found_values.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut moments = found.1;
    (report.class_counts, report.marks) = (found.0, found.2);
    // The sum depends on the order, so it must not depend on threads.
    moments.sort_unstable_by_key(|(sample, _)| *sample);
    moments.iter().for_each(|(_, moments)| report.moments.add(moments));
    report
}

impl CheckReport {
    /// Returns whether each of `total` samples is good, unless too many are bad. Panics if the report is of another
    /// list.
    pub(super) fn good(&self, total: usize) -> Result<impl Fn(usize) -> bool, DataError> {
        assert_eq!(self.checked, total, "the report belongs to another index");
        if too_many_bad(self.bad.len(), total) {
            return Err(DataError::TooManyBad(self.bad.clone(), total));
        }
        Ok(|at| self.bad.binary_search_by_key(&at, |bad| bad.index).is_err())
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

#[cfg(test)]
mod tests;
