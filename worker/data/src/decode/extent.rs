//! How much of a picture is decoded, and how finely.

use dtrain_resize::Rectangle;

/// The pixels that are needed of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// 1, 2, 4 or 8: JPEG files are decoded at this part of their size, rounded up.
    pub denominator: u32,
    /// The needed rectangle of the picture of that size; `None` is all of it.
    pub part: Option<Rectangle>,
}

impl Extent {
    /// Every pixel.
    pub const WHOLE: Self = Self { denominator: 1, part: None };

    /// Returns the smallest size at which a rectangle of (width, height) pixels still has at least `target`.
    pub fn denominator_for(part: (f64, f64), target: (u32, u32)) -> u32 {
        let fits = |&by: &u32| {
            let side = |length: f64, target: u32| length / f64::from(by) >= f64::from(target);
            side(part.0, target.0) && side(part.1, target.1)
        };
        [8, 4, 2].into_iter().find(fits).unwrap_or(1)
    }

    /// Returns the size of the scaled picture of a file of this size.
    pub(super) fn scaled(&self, (width, height): (u32, u32)) -> (u32, u32) {
        (width.div_ceil(self.denominator), height.div_ceil(self.denominator))
    }

    /// Returns the rectangle of the scaled picture of a file of this size, cut to it.
    pub(super) fn rectangle(&self, size: (u32, u32)) -> Rectangle {
        let (width, height) = self.scaled(size);
        let all = Rectangle { left: 0, top: 0, width, height };
        self.part.map_or(all, |part| {
            let (left, top) =
                (part.left.min(width.saturating_sub(1)), part.top.min(height.saturating_sub(1)));
            Rectangle {
                left,
                top,
                width: part.width.min(width - left),
                height: part.height.min(height - top),
            }
        })
    }
}

/// Copies a rectangle of an image of `row` pixels of `bytes` bytes each.
pub(super) fn cut(from: &[u8], row: usize, part: Rectangle, bytes: usize, out: &mut [u8]) {
    let length = part.width as usize * bytes;
    for (y, out) in out.chunks_exact_mut(length.max(1)).enumerate() {
        let start = ((part.top as usize + y) * row + part.left as usize) * bytes;
        out.copy_from_slice(&from[start..start + length]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_scaled_only_if_its_part_keeps_the_target() {
        let of = |width, height| Extent::denominator_for((width, height), (224, 112));
        assert_eq!(of(500.0, 375.0), 2);
        assert_eq!(of(447.9, 375.0), 1);
        assert_eq!((of(896.0, 448.0), of(1792.0, 896.0), of(9000.0, 9000.0)), (4, 8, 8));
        assert_eq!(of(10.0, 10.0), 1);
    }

    #[test]
    fn sizes_are_rounded_up_and_rectangles_stay_inside() {
        let part = Rectangle { left: 3, top: 100, width: 9, height: 4 };
        let extent = Extent { denominator: 4, part: Some(part) };
        assert_eq!(extent.scaled((33, 17)), (9, 5));
        assert_eq!(extent.rectangle((33, 17)), Rectangle { left: 3, top: 4, width: 6, height: 1 });
    }
}
