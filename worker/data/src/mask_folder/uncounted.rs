//! A second look at the masks of a large set, of which the first decoded only some.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::census::Census;
use super::super::check::{Depth, Listed, Looker, Needs, check};
use super::super::error::SampleError;
use super::MaskIndex;

/// What the masks hold that a check of headers did not count, up to the first `wanted` classes in one thread's masks.
pub(super) fn census(
    index: &MaskIndex,
    wanted: usize,
    threads: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> Census {
    let uncounted = Uncounted {
        index,
        wanted,
        done: AtomicBool::new(false),
    };
    check(&uncounted, Needs::default(), Depth::Full, threads, progress).census
}

struct Uncounted<'a> {
    index: &'a MaskIndex,
    wanted: usize,
    /// There are so many classes.
    done: AtomicBool,
}

impl Listed for Uncounted<'_> {
    fn count(&self) -> usize {
        self.index.len()
    }

    fn image_path(&self, sample: usize) -> PathBuf {
        self.index.mask_path(sample)
    }

    /// A mask that cannot be used is named when it is loaded, as in any set of which headers are checked.
    fn look(
        &self,
        sample: usize,
        _needs: Needs,
        depth: Depth,
        looker: &mut Looker,
    ) -> Result<(u32, u32), SampleError> {
        if self.index.is_counted(sample) || self.done.load(Ordering::Relaxed) {
            return Ok((0, 0));
        }
        let size = self.index.look_at_mask(sample, depth, looker)?;
        looker.census.count(&looker.labels.values, self.index.rule.ignore);
        if looker.census.classes() >= self.wanted {
            self.done.store(true, Ordering::Relaxed);
        }
        Ok(size)
    }

    fn expected_size(&self) -> Option<(u32, u32)> {
        None
    }
}
