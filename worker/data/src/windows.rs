//! Overlapping windows of large images, each a sample.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::dataset::{Column, Dataset, Field};
use super::error::Result;
use super::file_set::ImageOptions;
use super::inspector::Inspector;
use super::needs::{Depth, Needs};
use super::plane::Placement;
use super::raster::{Raster, Values};
use super::rng::SampleRng;
use super::samples::{ListValues, Samples};

/// A window of an image: its upper left corner in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Window {
    /// The number of the image.
    image: u32,
    left: u32,
    top: u32,
}

/// Images that stay decoded: those of a few windows that threads load at once.
const KEPT: usize = 4;

/// An image once it is decoded; None if it cannot be.
type Decoded = Arc<OnceLock<Option<Raster>>>;

/// The windows of images, which are not resized. An image smaller than a window is continued by its border.
pub struct Windows {
    samples: Samples,
    options: ImageOptions,
    fields: Vec<Field>,
    windows: Vec<Window>,
    recent: Mutex<VecDeque<(u32, Decoded)>>,
}

/// Returns where windows of `window` pixels begin along a side of `side` pixels, which they cover. Neighbours share at least
/// `overlap` pixels, below `window`.
fn starts(side: u32, window: u32, overlap: u32) -> Vec<u32> {
    let Some(last) = side.checked_sub(window) else { return vec![0] };
    let step = window.saturating_sub(overlap).max(1);
    let count = last.div_ceil(step);
    // Evenly spread, so that no two neighbours share nearly all.
    (0..=count)
        .map(|at| (u64::from(last) * u64::from(at)).div_euclid(u64::from(count.max(1))) as u32)
        .collect()
}

/// Returns the upper left corners of the windows of an image, row by row: all sizes are width and height in pixels.
pub fn corners(image: (u32, u32), window: (u32, u32), overlap: u32) -> Vec<(u32, u32)> {
    let of = |side: u32, window: u32| starts(side, window, overlap.min(window.saturating_sub(1)));
    let (lefts, tops) = (of(image.0, window.0), of(image.1, window.1));
    tops.into_iter().flat_map(|top| lefts.iter().map(move |&left| (left, top)).collect::<Vec<_>>()).collect()
}

impl Windows {
    /// Makes the windows of samples with one image each, of `sizes`, width and height in pixels, each of `options.size` pixels. A size of 0 is of
    /// an image that cannot be read, which gets one window.
    pub fn new(samples: Samples, sizes: &[(u32, u32)], overlap: u32, options: ImageOptions) -> Self {
        let (width, height) = options.size;
        let of_image = |(image, &size): (usize, &(u32, u32))| {
            let window = move |(left, top)| Window { image: image as u32, left, top };
            corners(size, options.size, overlap).into_iter().map(window)
        };
        let shape = (width as usize, height as usize);
        Self {
            fields: samples.fields(options.channels, shape, &options.normalize, 0),
            windows: sizes.iter().enumerate().flat_map(of_image).collect(),
            recent: Mutex::default(),
            options,
            samples,
        }
    }

    /// Returns the memory for an image, which may be decoded already.
    fn decoded(&self, image: u32) -> Decoded {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, decoded)) = recent.iter().find(|(number, _)| *number == image) {
            return Arc::clone(decoded);
        }
        let decoded = Decoded::default();
        recent.push_back((image, Arc::clone(&decoded)));
        if recent.len() > KEPT {
            recent.pop_front();
        }
        decoded
    }

    fn decode(&self, image: u32) -> Result<Raster> {
        let ImageOptions { channels, resize, orientation, nodata, fill, .. } = self.options;
        let mut inspector = Inspector::default();
        inspector.image(
            &self.samples.first_image(image as usize),
            Needs { channels, resize, orientation, nodata, fill },
            Depth::Full,
        )?;
        Ok(inspector.image)
    }
}

/// Returns the pixels of an image in a rectangle, whose pixels outside of the image are those of the image's border.
fn cut(image: &Raster, (left, top): (u32, u32), (width, height): (u32, u32)) -> Raster {
    let column = |x: u32| (left + x).min(image.width.saturating_sub(1)) as usize;
    let row = |y: u32| (top + y).min(image.height.saturating_sub(1)) as usize;
    let (row_length, is_rgb) = (image.width as usize, image.view().is_rgb());
    fn gather<T: Copy>(
        values: &[T],
        (planes, each): (usize, usize),
        plane: usize,
        rows: impl Iterator<Item = usize> + Clone,
        row_length: usize,
        columns: impl Iterator<Item = usize> + Clone,
    ) -> Vec<T> {
        let mut all = Vec::new();
        for number in 0..planes {
            for y in rows.clone() {
                for x in columns.clone() {
                    let at = number * plane + (y * row_length + x) * each;
                    all.extend_from_slice(&values[at..at + each]);
                }
            }
        }
        all
    }
    let layout = if is_rgb { (1, 3) } else { (image.channels, 1) };
    let plane = row_length * image.height as usize;
    let (rows, columns) = ((0..height).map(row), (0..width).map(column));
    let values = match &image.values {
        Values::U8(values) => Values::U8(gather(values, layout, plane, rows, row_length, columns)),
        Values::F32(values) => Values::F32(gather(values, layout, plane, rows, row_length, columns)),
    };
    Raster { width, height, channels: image.channels, values }
}

impl Dataset for Windows {
    fn len(&self) -> usize {
        self.windows.len()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn load(&self, index: usize, _: Option<&mut SampleRng>, out: &mut [Column]) -> Result<()> {
        let Window { image, left, top } = self.windows[index];
        let decoded = self.decoded(image);
        let whole = decoded.get_or_init(|| self.decode(image).ok());
        // The message of an image that cannot be decoded.
        let Some(whole) = whole else { return self.decode(image).map(|_| ()) };
        let window = cut(whole, (left, top), self.options.size);
        for (list, out) in self.samples.lists.iter().zip(out) {
            match &list.values {
                ListValues::Images(_) => out.pixels().write(window.view(), Placement::default()),
                ListValues::Numbers { names, values } => {
                    let first = image as usize * names.len();
                    out.f32().copy_from_slice(&values[first..first + names.len()]);
                }
                // Inputs have no other lists.
                _ => {}
            }
        }
        Ok(())
    }

    fn describe(&self, index: usize) -> String {
        self.samples.describe(self.windows[index].image as usize)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use dtrain_recipe::{FieldColumns, Resize};
    use proptest::prelude::*;

    use super::*;
    use crate::dataset::load_one;
    use crate::sources::inputs;
    use crate::tests::images::{png, put};

    #[test]
    fn a_window_beyond_the_image_repeats_its_border() {
        let values = Values::U8((0..6).collect());
        let image = Raster { width: 3, height: 2, channels: 1, values };
        let window = cut(&image, (1, 0), (3, 3));
        assert_eq!(window.values, Values::U8(vec![1, 2, 2, 4, 5, 5, 4, 5, 5]));
        let rgb = Raster { width: 2, height: 1, channels: 3, values: Values::U8((0..6).collect()) };
        assert_eq!(cut(&rgb, (1, 0), (1, 2)).values, Values::U8(vec![3, 4, 5, 3, 4, 5]));
    }

    /// Every window has the numbers of its sample.
    #[test]
    fn windows_keep_the_numbers_beside_the_image() {
        let root = tempfile::tempdir().unwrap();
        put(root.path().join("a.png"), &png(9, 4));
        put(root.path().join("b.png"), &png(4, 4));
        put(root.path().join("in.csv"), b"image,age\nb.png,2.5\na.png,-1\n");
        let fields = [("image", "image"), ("targets", "numbers:age")];
        let fields = fields.map(|(field, text)| FieldColumns::parse(field, text).unwrap());
        let samples = inputs::list(&root.path().join("in.csv"), &fields).unwrap();
        let options = ImageOptions { resize: Resize::Stretch, ..ImageOptions::square(4) };
        let set = Windows::new(samples, &[(4, 4), (9, 4)], 0, options);
        assert_eq!(set.len(), 4);
        let ages: Vec<f32> =
            (0..4).map(|at| load_one(&set, at, None).unwrap()[1].as_f32().unwrap()[0]).collect();
        assert_eq!(ages, [2.5, -1.0, -1.0, -1.0]);
    }

    proptest! {
        #[test]
        fn windows_cover_a_side_and_overlap(side in 1u32..500, window in 1u32..200, part in 0.0f64..0.99) {
            let overlap = (f64::from(window) * part) as u32;
            let all = starts(side, window, overlap);
            prop_assert_eq!(all[0], 0);
            prop_assert!(all.last().unwrap() + window >= side);
            prop_assert!(all.last().unwrap() + window <= side.max(window));
            for pair in all.windows(2) {
                prop_assert!(pair[0] < pair[1] && pair[0] + window >= pair[1] + overlap, "{:?}", all);
            }
        }
    }
}
