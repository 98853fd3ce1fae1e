//! A plane of values, and shifting or mirroring it.

use std::ops::Range;

/// The source position of a written image's pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Placement {
    /// Source column that becomes the first; pixels outside of the source are 0 before normalisation.
    pub(super) left: i32,
    pub(super) top: i32,
    pub(super) flip: bool,
}

/// One plane of an image: the value at (x, y) is `values[y * row + x * step]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plane<'a, T> {
    pub(super) values: &'a [T],
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) row: usize,
    pub(super) step: usize,
}

impl<T: Copy> Plane<'_, T> {
    /// Writes the plane row by row into `out`; pixels outside of the source become `outside`.
    pub(super) fn write<U: Copy>(&self, at: Placement, outside: U, out: &mut [U], value: impl Fn(T) -> U) {
        let (width, height) = (self.width, self.height);
        assert_eq!(out.len(), width * height, "room for one image of {width}x{height}");
        let (columns, left) = covered(at.left, width);
        let (rows, top) = covered(at.top, height);
        if columns.len() < width || rows.len() < height {
            out.fill(outside);
        }
        if columns.is_empty() {
            return;
        }
        // A mirrored image has the range of columns on the other side.
        let columns = if at.flip { width - columns.end..width - columns.start } else { columns };
        for (y, source) in rows.zip(top..) {
            let target = &mut out[y * width + columns.start..y * width + columns.end];
            let row = self.values[source * self.row + left * self.step..].iter().step_by(self.step);
            let put = |(to, &x): (&mut U, &T)| *to = value(x);
            match at.flip {
                true => target.iter_mut().rev().zip(row).for_each(put),
                false => target.iter_mut().zip(row).for_each(put),
            }
        }
    }
}

/// Returns, for a side of `length` pixels, the range of the result that the source covers, and its start.
fn covered(shift: i32, length: usize) -> (Range<usize>, usize) {
    let away = shift.unsigned_abs() as usize;
    let kept = length.saturating_sub(away);
    if shift < 0 { (length - kept..length, 0) } else { (0..kept, length - kept) }
}
