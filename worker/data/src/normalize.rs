//! From pixel values to what a model takes: `(x - mean) / std` for each channel, in planes.

use super::raster::{Samples, View};

/// Mean and standard deviation for each channel, and for 8-bit values a table of `(x / 255 - mean) / std`.
#[derive(Debug, Clone)]
pub struct Normalize {
    tables: Vec<[f32; 256]>,
    mean: Vec<f64>,
    std: Vec<f64>,
}

/// Where the pixels of the image that is written are taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Placement {
    /// Column of the source that becomes the first; what lies outside of the source is 0 before normalisation.
    pub left: i32,
    /// Row of the source that becomes the first.
    pub top: i32,
    /// Whether the result is mirrored left to right.
    pub flip: bool,
}

impl Placement {
    /// For a side of `length` pixels: the range of the result that the source covers, and where in the source it begins.
    /// `shift` is [`Placement::left`] or [`Placement::top`].
    pub(super) fn covered(shift: i32, length: usize) -> (std::ops::Range<usize>, usize) {
        let away = shift.unsigned_abs() as usize;
        let kept = length.saturating_sub(away);
        if shift < 0 {
            (length - kept..length, 0)
        } else {
            (0..kept, length - kept)
        }
    }
}

impl Normalize {
    /// Mean and standard deviation of each channel, for 8- and 16-bit images on the scale from 0 to 1, for
    /// floating-point images on that of their values. `std` must not be 0 (the recipe checks it).
    ///
    /// # Panics
    /// If the two are not of the same length.
    pub fn new(mean: &[f64], std: &[f64]) -> Self {
        assert_eq!(
            mean.len(),
            std.len(),
            "a mean and a standard deviation for each channel"
        );
        let table =
            |(mean, std): (&f64, &f64)| std::array::from_fn(|x| ((x as f64 / 255.0 - mean) / std) as f32);
        Self {
            tables: mean.iter().zip(std).map(table).collect(),
            mean: mean.to_vec(),
            std: std.to_vec(),
        }
    }

    /// How many channels it is for.
    pub fn channels(&self) -> usize {
        self.mean.len()
    }

    /// A floating-point value of channel `c` as [`Normalize::write`] writes it.
    pub fn value(&self, c: usize, x: f32) -> f32 {
        ((f64::from(x) - self.mean[c]) / self.std[c]) as f32
    }

    /// Writes an image of the view's size into `out`, one plane for each channel, each row by row.
    ///
    /// # Panics
    /// If `out` does not hold the image, or the view has other channels than this.
    pub fn write(&self, view: View<'_>, placement: Placement, out: &mut [f32]) {
        let (width, height) = (view.width, view.height);
        assert_eq!(view.channels, self.channels(), "channels of the image");
        assert_eq!(
            out.len(),
            width * height * view.channels,
            "room for one image of {width}x{height}"
        );
        let (columns, left) = Placement::covered(placement.left, width);
        let (rows, top) = Placement::covered(placement.top, height);
        let whole = columns.len() == width && rows.len() == height;
        if !whole {
            for (c, plane) in out.chunks_exact_mut((width * height).max(1)).enumerate() {
                plane.fill(self.value(c, 0.0));
            }
        }
        // Where the row goes: mirrored, the range of columns lies on the other side.
        let columns = if placement.flip {
            width - columns.end..width - columns.start
        } else {
            columns
        };
        for (y, source) in rows.zip(top..) {
            let place = y * width + columns.start..y * width + columns.end;
            match view.samples {
                Samples::U8(values) if view.is_rgb() => {
                    let row = &values[source * view.row + 3 * left..][..3 * columns.len()];
                    self.write_rgb(row, placement.flip, place, width * height, out);
                }
                Samples::U8(values) => {
                    for (c, table) in self.tables.iter().enumerate() {
                        let row = &values[c * view.plane + source * view.row + left..][..columns.len()];
                        let target = &mut out[c * width * height..][place.clone()];
                        put(row, placement.flip, target, |x| table[usize::from(x)]);
                    }
                }
                Samples::F32(values) => {
                    for c in 0..view.channels {
                        let row = &values[c * view.plane + source * view.row + left..][..columns.len()];
                        let target = &mut out[c * width * height..][place.clone()];
                        put(row, placement.flip, target, |x| self.value(c, x));
                    }
                }
            }
        }
    }

    /// One row of an RGB picture into the three planes.
    fn write_rgb(
        &self,
        row: &[u8],
        flip: bool,
        place: std::ops::Range<usize>,
        plane: usize,
        out: &mut [f32],
    ) {
        let [reds, greens, blues] = &self.tables[..] else {
            return;
        };
        let (red, rest) = out.split_at_mut(plane);
        let (green, blue) = rest.split_at_mut(plane);
        let targets = red[place.clone()]
            .iter_mut()
            .zip(&mut green[place.clone()])
            .zip(&mut blue[place]);
        let put = |(((r, g), b), pixel): (((&mut f32, &mut f32), &mut f32), &[u8])| {
            *r = reds[usize::from(pixel[0])];
            *g = greens[usize::from(pixel[1])];
            *b = blues[usize::from(pixel[2])];
        };
        if flip {
            targets.zip(row.rchunks_exact(3)).for_each(put);
        } else {
            targets.zip(row.chunks_exact(3)).for_each(put);
        }
    }
}

fn put<T: Copy, U>(row: &[T], flip: bool, target: &mut [U], value: impl Fn(T) -> U) {
    if flip {
        target
            .iter_mut()
            .zip(row.iter().rev())
            .for_each(|(to, &x)| *to = value(x));
    } else {
        target.iter_mut().zip(row).for_each(|(to, &x)| *to = value(x));
    }
}

/// Writes a mask of `width` columns as a [`Normalize`] with the same placement writes its image; pixels outside of the
/// mask become `outside`.
pub(super) fn write_labels(
    values: &[u16],
    width: usize,
    placement: Placement,
    outside: i64,
    out: &mut [i64],
) {
    assert_eq!(out.len(), values.len(), "room for one mask");
    let height = values.len() / width.max(1);
    let (columns, left) = Placement::covered(placement.left, width);
    let (rows, top) = Placement::covered(placement.top, height);
    if columns.len() < width || rows.len() < height {
        out.fill(outside);
    }
    let columns = if placement.flip {
        width - columns.end..width - columns.start
    } else {
        columns
    };
    for (y, source) in rows.zip(top..) {
        let row = &values[source * width + left..][..columns.len()];
        let target = &mut out[y * width + columns.start..y * width + columns.end];
        put(row, placement.flip, target, i64::from);
    }
}

impl Default for Normalize {
    /// The figures of ImageNet, which torchvision's weights expect.
    fn default() -> Self {
        Self::new(&[0.485, 0.456, 0.406], &[0.229, 0.224, 0.225])
    }
}

#[cfg(test)]
mod tests;
