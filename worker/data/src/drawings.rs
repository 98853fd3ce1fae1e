//! Masks without files: shapes of classes, drawn when a sample is loaded, pixel by pixel as pycocotools draws them.

use dtrain_shared_memory::MemoryError;
use serde::{Deserialize, Serialize};

use super::packed::Packed;
use super::raster::Labels;

/// Parts of a pixel that coordinates of polygons count, as in pycocotools.
pub(super) const SCALE: f64 = 5.0;

/// The bit of a part's length that marks runs.
const RUNS: u32 = 1 << 31;

/// The masks of all samples. Clones share them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drawings {
    /// The file of the annotations, below the folder of the data.
    pub file: String,
    /// Where the words of each sample end.
    ends: Packed<u64>,
    /// For each sample width and height, then its shapes in the order of drawing: class, number of parts, and for each part its
    /// length with its words.
    words: Packed<u32>,
}

/// A mask: its size in pixels, and its shapes in the order of drawing. Everything else is class 0.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Drawing {
    pub size: (u32, u32),
    pub shapes: Vec<Shape>,
}

/// A shape of a class: the union of its parts.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shape {
    pub class: u16,
    pub parts: Vec<Part>,
}

/// A part of a shape.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Part {
    /// Coordinates x, y, x, y, ... in fifths of a pixel.
    Polygon(Vec<i32>),
    /// Lengths of runs of pixels outside and inside, in turn, column by column.
    Runs(Vec<u32>),
}

impl Drawings {
    /// Writes masks, by sample.
    pub(super) fn write(file: &str, drawings: &[Drawing]) -> Result<Self, MemoryError> {
        let ends = drawings.iter().scan(0, |end, drawing| {
            *end += drawing.words().count() as u64;
            Some(*end)
        });
        let (ends, words) = (Packed::write(ends)?, Packed::write(drawings.iter().flat_map(Drawing::words))?);
        Ok(Self { file: file.to_owned(), ends, words })
    }

    /// Joins the masks of several sources.
    pub(super) fn join(all: &[&Self]) -> Result<Self, MemoryError> {
        let mut first = 0;
        let ends = all.iter().flat_map(|one| {
            let before = first;
            first += one.words.len() as u64;
            one.ends.iter().map(move |end| before + end)
        });
        let (ends, words) =
            (Packed::write(ends)?, Packed::write(all.iter().flat_map(|one| one.words.iter().copied()))?);
        let files: Vec<_> = all.iter().map(|one| one.file.as_str()).collect();
        Ok(Self { file: files.join(" and "), ends, words })
    }

    /// Returns the masks of the samples for which `is_kept`.
    pub(super) fn kept(&self, is_kept: impl Fn(usize) -> bool) -> Result<Self, MemoryError> {
        let kept: Vec<&[u32]> = (0..self.len()).filter(|&at| is_kept(at)).map(|at| self.of(at)).collect();
        let ends = kept.iter().scan(0, |end, words| {
            *end += words.len() as u64;
            Some(*end)
        });
        let (ends, words) =
            (Packed::write(ends)?, Packed::write(kept.iter().flat_map(|words| words.iter().copied()))?);
        Ok(Self { file: self.file.clone(), ends, words })
    }

    /// Returns the number of masks.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn of(&self, sample: usize) -> &[u32] {
        let start = if sample == 0 { 0 } else { self.ends[sample - 1] };
        // Another process may have written the lists.
        self.words.get(start as usize..self.ends[sample] as usize).unwrap_or_default()
    }

    /// Returns the size of a mask, (width, height).
    pub fn size(&self, sample: usize) -> (u32, u32) {
        match self.of(sample) {
            &[width, height, ..] => (width, height),
            _ => (0, 0),
        }
    }

    /// Draws a mask.
    pub fn draw(&self, sample: usize, out: &mut Labels) {
        let (width, height) = self.size(sample);
        (out.width, out.height) = (width, height);
        out.values.clear();
        out.values.resize(width as usize * height as usize, 0);
        let mut words = self.of(sample).get(2..).unwrap_or_default();
        while let &[class, parts, ref rest @ ..] = words {
            words = rest;
            for _ in 0..parts {
                let Some((&header, rest)) = words.split_first() else { return };
                let Some((part, rest)) = rest.split_at_checked((header & !RUNS) as usize) else { return };
                words = rest;
                match header & RUNS == 0 {
                    true => draw_polygon(bytemuck::cast_slice(part), class as u16, out),
                    false => draw_runs(part, class as u16, out),
                }
            }
        }
    }
}

impl Drawing {
    fn words(&self) -> impl Iterator<Item = u32> + '_ {
        let part = |part: &'_ Part| {
            let (header, words): (u32, &[u32]) = match part {
                Part::Polygon(points) => (points.len() as u32, bytemuck::cast_slice(points)),
                Part::Runs(runs) => (RUNS | runs.len() as u32, runs),
            };
            std::iter::once(header).chain(words.to_vec())
        };
        let shape = move |shape: &'_ Shape| {
            let head = [u32::from(shape.class), shape.parts.len() as u32];
            head.into_iter().chain(shape.parts.iter().flat_map(part).collect::<Vec<_>>())
        };
        [self.size.0, self.size.1].into_iter().chain(self.shapes.iter().flat_map(shape))
    }
}

/// Fills pixels from `start` to `end`, which are counted column by column.
fn fill(start: u64, end: u64, class: u16, out: &mut Labels) {
    let (width, height) = (u64::from(out.width), u64::from(out.height));
    let end = end.min(width * height);
    let mut at = start;
    while at < end {
        let (x, y) = (at / height, at % height);
        let rows = (height - y).min(end - at);
        let column = out.values[(y * width + x) as usize..].iter_mut().step_by(width as usize);
        column.take(rows as usize).for_each(|value| *value = class);
        at += rows;
    }
}

fn draw_runs(runs: &[u32], class: u16, out: &mut Labels) {
    let mut at = 0;
    for (number, &length) in runs.iter().enumerate() {
        let end = at + u64::from(length);
        if number % 2 == 1 {
            fill(at, end, class, out);
        }
        at = end;
    }
}

/// Draws a polygon as `rleFrPoly` of pycocotools: the boundary in fifths of a pixel, and from it the rows at which each column
/// enters and leaves the polygon.
fn draw_polygon(points: &[i32], class: u16, out: &mut Labels) {
    let (width, height) = (f64::from(out.width), f64::from(out.height));
    let mut crossings: Vec<u64> = Vec::new();
    let mut before: Option<(i32, i32)> = None;
    let (corners, _) = points.as_chunks::<2>();
    for (at, &[x, y]) in corners.iter().enumerate() {
        let next = corners[(at + 1) % corners.len()];
        each_point((x, y), (next[0], next[1]), |u, v| {
            let Some((last_u, last_v)) = before.replace((u, v)) else { return };
            if u == last_u {
                return;
            }
            let column = (f64::from(if u < last_u { u } else { u - 1 }) + 0.5) / SCALE - 0.5;
            if column.floor() != column || column < 0.0 || column > width - 1.0 {
                return;
            }
            let row = (f64::from(v.min(last_v)) + 0.5) / SCALE - 0.5;
            let row = row.clamp(0.0, height).ceil();
            crossings.push(column as u64 * u64::from(out.height) + row as u64);
        });
    }
    crossings.push(u64::from(out.width) * u64::from(out.height));
    crossings.sort_unstable();
    for inside in crossings.chunks_exact(2) {
        fill(inside[0], inside[1], class, out);
    }
}

/// Calls `visit` for the points of a line from one corner to another, both included.
fn each_point(from: (i32, i32), to: (i32, i32), mut visit: impl FnMut(i32, i32)) {
    let (dx, dy) = ((to.0 - from.0).abs(), (to.1 - from.1).abs());
    let is_flat = dx >= dy;
    let is_flipped = is_flat && from.0 > to.0 || !is_flat && from.1 > to.1;
    let (start, end) = if is_flipped { (to, from) } else { (from, to) };
    let length = dx.max(dy);
    // A line of one point has no slope.
    let rise = if is_flat { end.1 - start.1 } else { end.0 - start.0 };
    let slope = if length == 0 { 0.0 } else { f64::from(rise) / f64::from(length) };
    for step in 0..=length {
        let t = if is_flipped { length - step } else { step };
        let across = |base: i32| (f64::from(base) + slope * f64::from(t) + 0.5) as i32;
        match is_flat {
            true => visit(t + start.0, across(start.1)),
            false => visit(across(start.0), t + start.1),
        }
    }
}

#[cfg(test)]
mod tests;
