//! A check of every image before training starts, so that bad files are reported at once, not hours later.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dtrain_recipe::{Orientation, Resize};

use super::class_counts::ClassCounts;
use super::error::{BadSample, DataError, Result, SampleError};
use super::inspector::Inspector;
use super::marks::Marks;
use super::moments::Moments;
use super::needs::{Depth, Needs};
use super::pixel_target::PixelRule;
use super::samples::{PixelSource, Samples};
use super::stored::Stored;
use super::tally::Tally;

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
    /// Whether these samples are a part of others, all of which have few bad samples.
    is_of_good_list: bool,
    /// Counts for people, of a check in detail.
    pub tally: Tally,
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
pub fn check(
    samples: &Samples,
    needs: Needs,
    depth: Depth,
    threads: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> CheckReport {
    let inspect =
        |sample, inspector: &mut Inspector| samples.inspect_to_keep(sample, needs, depth, inspector);
    described(inspect_all(samples.count(), inspect, threads, progress), samples)
}

/// As [`check`]; the report also has a [`Tally`].
pub fn check_in_detail(
    samples: &Samples,
    needs: Needs,
    depth: Depth,
    threads: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> CheckReport {
    let inspect = |sample, inspector: &mut Inspector| {
        inspector.tally.get_or_insert_default().begin(sample);
        let inspected = samples.inspect_to_keep(sample, needs, depth, inspector);
        if let (Err(error), Some(tally)) = (&inspected, &mut inspector.tally) {
            tally.fail(error);
        }
        inspected
    };
    described(inspect_all(samples.count(), inspect, threads, progress), samples)
}

fn described(mut report: CheckReport, samples: &Samples) -> CheckReport {
    for bad in &mut report.bad {
        bad.path = samples.describe(bad.index);
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
    let found_values = Mutex::new((ClassCounts::default(), Vec::new(), Marks::default(), Tally::default()));
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
        values.3.merge(inspector.tally.take().unwrap_or_default());
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
        let mut told = Instant::now();
        loop {
            if told.elapsed() >= PROGRESS_EVERY {
                told = Instant::now();
                progress(done.load(Ordering::Relaxed), total);
            }
            match receiver.recv_timeout(PROGRESS_EVERY) {
                Ok((sample, Ok(size))) => report.sizes.push((sample, size)),
                Ok((index, Err(error))) => {
                    report.bad.push(BadSample { index, path: String::new(), reason: error.to_string() })
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    });
    progress(total, total);
    report.bad.sort_unstable_by_key(|sample| sample.index);
    report.sizes.sort_unstable();
    let found = found_values.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut moments = found.1;
    (report.class_counts, report.marks, report.tally) = (found.0, found.2, found.3);
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
        if !self.is_of_good_list && too_many_bad(self.bad.len(), total) {
            return Err(DataError::TooManyBad(self.bad.clone(), total));
        }
        Ok(|at| self.bad.binary_search_by_key(&at, |bad| bad.index).is_err())
    }

    /// Applies the limit on bad samples to the parts of one list together: one bad sample may be much of a small part.
    pub fn join_limit(parts: [&mut Self; 2]) -> Result<(), DataError> {
        let total = parts.iter().map(|part| part.checked).sum();
        let bad: Vec<_> = parts.iter().flat_map(|part| part.bad.iter().cloned()).collect();
        if too_many_bad(bad.len(), total) {
            return Err(DataError::TooManyBad(bad, total));
        }
        parts.into_iter().for_each(|part| part.is_of_good_list = true);
        Ok(())
    }

    /// Returns the common size of the good images: `expected`, else the first's. Others are an error.
    pub(super) fn common_size(
        &self,
        list: &Samples,
        expected: Option<(u32, u32)>,
    ) -> Result<Option<(u32, u32)>, DataError> {
        let named = |(sample, size): &(usize, (u32, u32))| (list.describe(*sample), *size);
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

/// Masks that a header check decodes of a larger set, to know their values. It takes seconds.
pub(super) const COUNTED: usize = 2_000;

impl Samples {
    /// Checks one sample, and returns the size of its image if it is to be kept.
    fn inspect_to_keep(
        &self,
        sample: usize,
        needs: Needs,
        depth: Depth,
        inspector: &mut Inspector,
    ) -> Result<Option<(u32, u32)>> {
        let size = self.inspect(sample, needs, depth, inspector)?;
        Ok(size.filter(|_| needs.resize == Resize::None))
    }

    /// Checks one sample and returns the size of its first image, mask or map, (width, height).
    pub(super) fn inspect(
        &self,
        sample: usize,
        needs: Needs,
        depth: Depth,
        inspector: &mut Inspector,
    ) -> Result<Option<(u32, u32)>> {
        let mut images = self.images().map(|files| self.stored(files, sample));
        let mut first = images.next().map(|file| inspector.image(&file, needs, depth)).transpose()?;
        for file in images {
            let checked = inspector.image(&file, needs, depth).and_then(|size| match first {
                Some(first) if needs.resize == Resize::None && size != first => {
                    Err(SampleError::Size(size, first))
                }
                _ => Ok(()),
            });
            checked.map_err(|error| error.of("image", &file))?;
        }
        let mut is_first = true;
        for list in &self.lists {
            let Some((source, rule)) = list.values.pixels() else { continue };
            let depth = if self.is_counted(sample) { Depth::Full } else { depth };
            let (size, file) = self.target(source, sample, rule, needs.orientation, depth, inspector)?;
            rule.check_size(&file, size, *first.get_or_insert(size))?;
            // The statistics are of one field: classes of several mean different things.
            if depth == Depth::Full && std::mem::take(&mut is_first) {
                inspector.count(sample, rule.outside());
            }
        }
        Ok(first)
    }

    /// Decodes or draws the targets of a sample's pixels. Returns their size and their file.
    pub(super) fn target(
        &self,
        source: PixelSource<'_>,
        sample: usize,
        rule: &PixelRule,
        orientation: Orientation,
        depth: Depth,
        inspector: &mut Inspector,
    ) -> Result<((u32, u32), Stored)> {
        match source {
            PixelSource::Files(files) => {
                let file = self.stored(files, sample);
                Ok((inspector.pixels(&file, rule, orientation, depth)?, file))
            }
            PixelSource::Drawings(drawings) => {
                if depth == Depth::Full {
                    drawings.draw(sample, inspector.target.classes());
                }
                Ok((drawings.size(sample), Stored::from(self.root.join(&drawings.file).as_path())))
            }
        }
    }

    /// Returns whether any check decodes this sample's masks: up to [`COUNTED`] samples, evenly spread.
    fn is_counted(&self, sample: usize) -> bool {
        sample.is_multiple_of(self.count().div_ceil(COUNTED).max(1))
    }

    /// Returns the set without the samples that `report` found bad. Errors: more than 1% bad samples, a class
    /// without good samples, and different sizes of images that are not resized.
    pub fn without_bad(&self, report: &CheckReport) -> Result<Self, DataError> {
        let is_good = report.good(self.count())?;
        let kept = self.kept(&is_good)?;
        let (names, classes) = self.classes();
        let found = |classes: &[u32]| {
            let mut found = vec![false; names.len()];
            classes.iter().for_each(|&class| found[class as usize] = true);
            found
        };
        let (before, after) = (found(classes), found(kept.classes().1));
        if let Some(lost) = (0..names.len()).find(|&class| before[class] && !after[class]) {
            let of_class = report.bad.iter().filter(|bad| classes[bad.index] as usize == lost);
            return Err(DataError::ClassLost(names[lost].clone(), of_class.cloned().collect()));
        }
        Ok(Self { size: report.common_size(self, self.size)?, ..kept })
    }

    /// Returns the classes in the first masks. If the check decoded only some of them and found fewer than `wanted`
    /// classes, decodes the others until it has found that many: a class may be rare.
    pub fn class_counts(
        &self,
        report: &CheckReport,
        wanted: usize,
        threads: usize,
        progress: &mut dyn FnMut(usize, usize),
    ) -> ClassCounts {
        let mut class_counts = report.class_counts.clone();
        let Some((masks, rule)) = self.pixels() else { return class_counts };
        if class_counts.classes() >= wanted || class_counts.masks + report.bad.len() >= self.count() {
            return class_counts;
        }
        let is_enough = AtomicBool::new(false);
        // A bad mask is reported when it is loaded, as in every set with a header check. Turning a mask changes
        // no count.
        let inspect = |sample, inspector: &mut Inspector| {
            if !self.is_counted(sample) && !is_enough.load(Ordering::Relaxed) {
                self.target(masks, sample, rule, Orientation::Stored, Depth::Full, inspector)?;
                inspector.count(sample, rule.outside());
                is_enough.fetch_or(inspector.class_counts.classes() >= wanted, Ordering::Relaxed);
            }
            Ok(None)
        };
        class_counts.add(&inspect_all(self.count(), inspect, threads, progress).class_counts);
        class_counts
    }
}

#[cfg(test)]
mod tests;
