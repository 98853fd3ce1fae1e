//! Moving the pixels of an image that has the network's size.

use super::super::plane::{Placement, Plane};
use super::super::raster::{Raster, Values};
use super::warp::{Blend, Warp};

/// A change of places.
#[derive(Debug, Clone)]
pub(super) enum Move {
    /// A shift and a mirror image.
    Place(Placement),
    UpsideDown,
    /// Quarter turns of a square, against the clock.
    Quarters(u32),
    Warp(Warp),
}

/// Memory for moves, with old content.
#[derive(Debug, Default)]
pub(super) struct Room {
    values: Values,
    wide: Vec<u64>,
}

impl Room {
    /// Returns the memory held, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        self.values.held_bytes() + 8 * self.wide.capacity()
    }
}

impl Move {
    /// Moves an image over black.
    pub(super) fn image(&self, image: &mut Raster, room: &mut Room) {
        let size = (image.width as usize, image.height as usize);
        let is_rgb = image.view().is_rgb();
        let wide = &mut room.wide;
        match &image.values {
            Values::U8(values) => {
                let out = room.values.u8();
                out.resize(values.len(), 0);
                match is_rgb {
                    true => {
                        let pixels: &[[u8; 3]] = bytemuck::cast_slice(values);
                        self.plane(pixels, size, wide, bytemuck::cast_slice_mut(out));
                    }
                    false => self.planes(values, size, wide, out),
                }
            }
            Values::F32(values) => {
                let out = room.values.f32();
                out.resize(values.len(), 0.0);
                self.planes(values, size, wide, out);
            }
        }
        std::mem::swap(&mut image.values, &mut room.values);
    }

    fn planes<T: Blend>(&self, values: &[T], size: (usize, usize), wide: &mut Vec<u64>, out: &mut [T]) {
        let plane = (size.0 * size.1).max(1);
        for (values, out) in values.chunks_exact(plane).zip(out.chunks_exact_mut(plane)) {
            self.plane(values, size, wide, out);
        }
    }

    fn plane<T: Blend>(&self, values: &[T], size: (usize, usize), wide: &mut Vec<u64>, out: &mut [T]) {
        match self {
            Self::Warp(warp) if warp.is_smooth => warp.smooth(values, size, wide, out),
            _ => self.nearest(values, size, T::default(), out),
        }
    }

    /// Writes the pixels of a plane of the size (width, height) at their new places. Those from outside are `outside`.
    pub(super) fn nearest<T: Copy>(&self, values: &[T], size: (usize, usize), outside: T, out: &mut [T]) {
        let (width, height) = size;
        let row = width.max(1);
        match self {
            Self::Place(placement) => {
                let plane = Plane { values, width, height, row: width, step: 1 };
                plane.write(*placement, outside, out, |value| value);
            }
            Self::UpsideDown => {
                let rows = out.chunks_exact_mut(row).zip(values.rchunks_exact(row));
                rows.for_each(|(to, from)| to.copy_from_slice(from));
            }
            Self::Quarters(2) => out.iter_mut().zip(values.iter().rev()).for_each(|(to, &from)| *to = from),
            Self::Quarters(turns) => {
                assert_eq!(width, height, "a square");
                let turn = |out: &mut [T], x: usize, is_down: bool| {
                    let column = values[x..].iter().step_by(row);
                    match is_down {
                        true => out.iter_mut().zip(column).for_each(|(to, &from)| *to = from),
                        false => out.iter_mut().rev().zip(column).for_each(|(to, &from)| *to = from),
                    }
                };
                for (y, out) in out.chunks_exact_mut(row).enumerate() {
                    match turns % 4 {
                        // The last column becomes the first row.
                        1 => turn(out, width - 1 - y, true),
                        3 => turn(out, y, false),
                        _ => out.copy_from_slice(&values[y * row..][..row]),
                    }
                }
            }
            Self::Warp(warp) => warp.nearest(values, size, outside, out),
        }
    }
}
