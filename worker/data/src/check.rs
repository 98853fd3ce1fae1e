//! A look at every image before training starts, so that bad files are named at once instead of hours later.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::census::Census;
use super::decode;
use super::error::{BadSample, DataError, SampleError, first_few};
use super::fit::Resize;
use super::image_folder::{ImageIndex, Sample};
use super::raster::{Labels, Raster};
use super::regular;

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

/// What the images of a data set must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Channels of every image; 3 for RGB pictures.
    pub channels: usize,
    /// With [`Resize::None`], all must be of one size.
    pub resize: Resize,
}

impl Default for Needs {
    /// RGB pictures of any size.
    fn default() -> Self {
        Self {
            channels: 3,
            resize: Resize::Crop,
        }
    }
}

/// A list of samples that are files and can be looked at one by one.
pub trait Listed: Sync {
    /// How many samples there are.
    fn count(&self) -> usize;

    /// The path of one sample's image.
    fn image_path(&self, sample: usize) -> PathBuf;

    /// Looks at one sample and gives the size of its image, (width, height).
    fn look(
        &self,
        sample: usize,
        needs: Needs,
        depth: Depth,
        looker: &mut Looker,
    ) -> Result<(u32, u32), SampleError>;

    /// Width and height that the images must have, where they are not resized and it is known.
    fn expected_size(&self) -> Option<(u32, u32)>;
}

impl Listed for ImageIndex {
    fn count(&self) -> usize {
        self.len()
    }

    fn image_path(&self, sample: usize) -> PathBuf {
        self.path(sample)
    }

    fn look(
        &self,
        sample: usize,
        needs: Needs,
        depth: Depth,
        looker: &mut Looker,
    ) -> Result<(u32, u32), SampleError> {
        looker.image(&self.path(sample), needs.channels, depth)
    }

    fn expected_size(&self) -> Option<(u32, u32)> {
        self.size
    }
}

/// What [`check`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReport {
    /// The bad samples, by number.
    pub bad: Vec<BadSample>,
    /// How many were looked at.
    pub checked: usize,
    /// What the masks that were decoded hold; nothing where there are no masks.
    pub census: Census,
    /// The size of every image, (0, 0) of bad ones; only where images are not resized.
    sizes: Option<Vec<(u32, u32)>>,
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

/// Looks at all samples of `index` in `threads` threads (at least one) and calls `progress(done, total)` on this
/// thread now and then, and once at the end. The report does not depend on the number of threads.
pub fn check(
    index: &dyn Listed,
    needs: Needs,
    depth: Depth,
    threads: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> CheckReport {
    let total = index.count();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let census = Mutex::new(Census::default());
    let look = |report: &mpsc::Sender<Found>| {
        let mut looker = Looker::default();
        loop {
            let sample = next.fetch_add(1, Ordering::Relaxed);
            if sample >= total {
                let mut census = census.lock().unwrap_or_else(PoisonError::into_inner);
                census.add(&looker.census);
                return;
            }
            let found = index.look(sample, needs, depth, &mut looker);
            // Sizes of good images are of use only where all must be the same.
            if found.is_err() || needs.resize == Resize::None {
                // The receiver lives as long as any sender does.
                let _ = report.send((sample, found));
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
    };

    let mut sizes = (needs.resize == Resize::None).then(|| vec![(0, 0); total]);
    let mut bad = Vec::new();
    let mut found = |(sample, found): Found| match found {
        Ok(size) => {
            if let Some(sizes) = &mut sizes {
                sizes[sample] = size;
            }
        }
        Err(error) => bad.push(BadSample {
            index: sample,
            path: index.image_path(sample).display().to_string(),
            reason: error.to_string(),
        }),
    };
    in_threads(threads.clamp(1, total.max(1)), look, |message| match message {
        Some(one) => found(one),
        None => progress(done.load(Ordering::Relaxed), total),
    });
    progress(total, total);
    bad.sort_unstable_by_key(|sample| sample.index);
    CheckReport {
        bad,
        checked: total,
        census: census.into_inner().unwrap_or_else(PoisonError::into_inner),
        sizes,
    }
}

/// Runs `look` in so many threads, and gives `take` what they send, or now and then nothing.
fn in_threads<T: Send>(
    threads: usize,
    look: impl Fn(&mpsc::Sender<T>) + Sync,
    mut take: impl FnMut(Option<T>),
) {
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let look = &look;
        let mut running = 0;
        for _ in 0..threads {
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
                Ok(one) => take(Some(one)),
                Err(RecvTimeoutError::Timeout) => take(None),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    });
}

/// A sample and the size of its image, or why it is bad.
type Found = (usize, Result<(u32, u32), SampleError>);

impl CheckReport {
    /// Which samples are good, if few enough are bad.
    pub(super) fn kept(&self, total: usize) -> Result<Vec<bool>, DataError> {
        assert_eq!(self.checked, total, "the report belongs to another index");
        if too_many_bad(self.bad.len(), total) {
            return Err(DataError::TooManyBad {
                bad: self.bad.len(),
                total,
                first: first_few(&self.bad),
            });
        }
        let mut keep = vec![true; total];
        for sample in &self.bad {
            keep[sample.index] = false;
        }
        Ok(keep)
    }

    /// The one size that the good images have, where they must: that which the index expects, else that of the first.
    pub(super) fn common_size(&self, index: &dyn Listed) -> Result<Option<(u32, u32)>, DataError> {
        let Some(sizes) = &self.sizes else {
            return Ok(None);
        };
        let good = || sizes.iter().enumerate().filter(|(_, size)| **size != (0, 0));
        let path = |sample: usize| index.image_path(sample).display().to_string();
        let Some((expected, first)) = index
            .expected_size()
            .map(|size| (size, "every training image".to_owned()))
            .or_else(|| good().next().map(|(sample, size)| (*size, path(sample))))
        else {
            return Ok(None);
        };
        match good().find(|(_, size)| **size != expected) {
            None => Ok(Some(expected)),
            Some((sample, size)) => Err(DataError::MixedSizes {
                path: path(sample),
                size: *size,
                first,
                expected,
            }),
        }
    }

    /// The index without the bad images.
    /// More than 1% of bad images, a class that loses all, and differing sizes of images that are not resized
    /// are errors. Panics if the report is of another index.
    pub fn apply(&self, index: &ImageIndex) -> Result<ImageIndex, DataError> {
        let keep = self.kept(index.len())?;
        let before = index.class_counts();
        let mut left = before.clone();
        for sample in &self.bad {
            left[index.samples[sample.index].0 as usize] -= 1;
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
            size: self.common_size(index)?,
            ..index.clone()
        })
    }
}

/// The working memory of one checking thread.
#[derive(Default)]
pub struct Looker {
    file: Vec<u8>,
    raw: Vec<u8>,
    raster: Raster,
    pub(super) labels: Labels,
    /// What this thread has counted.
    pub(super) census: Census,
}

impl Looker {
    /// Looks at an image and gives its size.
    pub(super) fn image(
        &mut self,
        path: &Path,
        channels: usize,
        depth: Depth,
    ) -> Result<(u32, u32), SampleError> {
        match depth {
            Depth::Full => {
                regular::read(path, &mut self.file)?;
                decode::pixels(&self.file, channels, &mut self.raw, &mut self.raster)?;
                Ok((self.raster.width, self.raster.height))
            }
            Depth::Header => self.beginning(path, |bytes| decode::header(bytes, channels)),
        }
    }

    /// Looks at a mask and gives its size; with [`Depth::Full`] its values are in `labels`.
    pub(super) fn mask(&mut self, path: &Path, depth: Depth) -> Result<(u32, u32), SampleError> {
        match depth {
            Depth::Full => {
                regular::read(path, &mut self.file)?;
                decode::mask(&self.file, &mut self.raw, &mut self.labels)?;
                Ok((self.labels.width, self.labels.height))
            }
            Depth::Header => self.beginning(path, decode::mask_header),
        }
    }

    /// Reads no more of the file than is needed for its header.
    fn beginning(
        &mut self,
        path: &Path,
        header: impl Fn(&[u8]) -> Result<(u32, u32), SampleError>,
    ) -> Result<(u32, u32), SampleError> {
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
