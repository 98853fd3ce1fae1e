//! The common JPEG files: sequential, Huffman codes, one scan, colours of full or half resolution.
//!
//! The pixels equal those of `libjpeg-turbo-rs`, whose transforms it uses. Other than that crate it can skip the pixels that
//! are not needed, and decodes the codes faster.

use dtrain_resize::Rectangle;
use libjpeg_turbo_rs::decode::idct_scaled::{idct_1x1, idct_2x2};
use libjpeg_turbo_rs::decode::marker::{JpegMetadata, MarkerReader};
use libjpeg_turbo_rs::simd::{SimdRoutines, detect};

use super::super::extent::Extent;
use super::entropy::{Bits, Block, Pair, codes_of};
use super::half::half;
use super::tables;

/// Pixels of the side of a block.
const SIDE: usize = 8;
/// The least width and height: narrower colours are enlarged by other rules.
const LEAST: u16 = 16;

/// A plane of brightness or colour.
struct Plane {
    values: Vec<u8>,
    /// Values from one row to the next.
    row: usize,
    /// Values of the side of a block after scaling, and the blocks of a unit.
    side: usize,
    blocks: (usize, usize),
    /// The size without what fills the last blocks.
    size: (usize, usize),
    /// The units that are needed, of columns and rows.
    needed: [(usize, usize); 2],
}

/// Decodes the extent's rectangle as RGB, row by row. `None` if the file is not of this kind, or damaged.
pub(in super::super) fn decode(bytes: &[u8], extent: Extent, out: &mut [u8]) -> Option<()> {
    let file = MarkerReader::new(bytes).read_markers().ok()?;
    let (frame, scan) = (&file.frame, &file.scan);
    let is_sequential = !(frame.is_progressive || frame.is_lossless || file.is_arithmetic)
        && (scan.spec_start, scan.spec_end, scan.succ_high, scan.succ_low) == (0, 63, 0, 0);
    let is_rgb = file.saw_adobe_marker && file.adobe_transform == 0;
    let has_usual_names = frame.components.iter().map(|it| it.id).eq(1..=3);
    if frame.precision != 8
        || !is_sequential
        || file.scans.len() > 1
        || is_rgb
        || !has_usual_names
        || !scan.components.iter().map(|it| it.component_id).eq(1..=3)
        || frame.width < LEAST
        || frame.height < LEAST
    {
        return None;
    }
    let sampling = |at: usize| {
        let of = &frame.components[at];
        (usize::from(of.horizontal_sampling), usize::from(of.vertical_sampling))
    };
    let units = sampling(0);
    if !matches!(units, (1 | 2, 1) | (2, 2)) || sampling(1) != (1, 1) || sampling(2) != (1, 1) {
        return None;
    }
    let size = (usize::from(frame.width), usize::from(frame.height));
    let count = (size.0.div_ceil(SIDE * units.0), size.1.div_ceil(SIDE * units.1));
    let part = extent.rectangle((size.0 as u32, size.1 as u32));
    let side = SIDE / extent.denominator as usize;
    // Colours of half resolution are scaled less, if that makes them as large as the brightness.
    let is_halved = units != (1, 1);
    let side_of_colour = if is_halved && units == (2, 2) { (2 * side).min(SIDE) } else { side };
    let is_enlarged = is_halved && side_of_colour == side;
    if is_enlarged && side < SIDE {
        return None;
    }
    let scaled = |length: usize| length.div_ceil(extent.denominator as usize);
    let mut planes = [0, 1, 2].map(|at| {
        let (blocks, side) = if at == 0 { (units, side) } else { ((1, 1), side_of_colour) };
        let (across, down) = if at > 0 && is_enlarged { units } else { (1, 1) };
        let row = count.0 * blocks.0 * side;
        // A colour's neighbours are needed to enlarge it.
        let span = |start: u32, length: u32, each: usize, count: usize| {
            let (start, end) = (start as usize, (start + length) as usize);
            (start.saturating_sub(2) / each, ((end + 2).div_ceil(each)).min(count))
        };
        Plane {
            values: vec![0; row * count.1 * blocks.1 * side],
            row,
            side,
            blocks,
            size: (scaled(size.0).div_ceil(across), scaled(size.1).div_ceil(down)),
            needed: [
                span(part.left, part.width, units.0 * SIDE / extent.denominator as usize, count.0),
                span(part.top, part.height, units.1 * SIDE / extent.denominator as usize, count.1),
            ],
        }
    });
    let routines = detect();
    let codes = codes_of(tables(bytes, file.entropy_data_offset), &file)?;
    read(&file, (&codes, bytes.get(file.entropy_data_offset..)?), count, &routines, &mut planes)?;
    match is_enlarged {
        true => enlarge(&planes, units, part, &routines, out),
        false => convert(&planes, part, &routines, out),
    }
    Some(())
}

/// Decodes the planes' needed blocks.
fn read(
    file: &JpegMetadata,
    (codes, coded): (&[Pair; 3], &[u8]),
    count: (usize, usize),
    routines: &SimdRoutines,
    planes: &mut [Plane; 3],
) -> Option<()> {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("bmi2") {
        #[target_feature(enable = "avx2,bmi2")]
        fn read_by_avx2(
            file: &JpegMetadata,
            coded: (&[Pair; 3], &[u8]),
            count: (usize, usize),
            routines: &SimdRoutines,
            planes: &mut [Plane; 3],
        ) -> Option<()> {
            read_blocks(file, coded, count, routines, planes)
        }
        // SAFETY: the processor has the instructions, which shift by a variable in one step and multiply eight numbers.
        return unsafe { read_by_avx2(file, (codes, coded), count, routines, planes) };
    }
    read_blocks(file, (codes, coded), count, routines, planes)
}

#[inline(always)]
fn read_blocks(
    file: &JpegMetadata,
    (codes, coded): (&[Pair; 3], &[u8]),
    count: (usize, usize),
    routines: &SimdRoutines,
    planes: &mut [Plane; 3],
) -> Option<()> {
    let quantities = |at: usize| {
        let of = usize::from(file.frame.components[at].quant_table_index);
        Some(&file.quant_tables.get(of)?.as_ref()?.values)
    };
    let quantities = [quantities(0)?, quantities(1)?, quantities(2)?];
    let mut bits = Bits::of(coded)?;
    let codes = [0, 1, 2].map(|at: usize| codes[at].each_ref().map(|codes| &**codes));
    let (mut firsts, mut block, interval) = ([0; 3], [0; 256], usize::from(file.restart_interval));
    let mut until_restart = interval;
    for y in 0..count.1 {
        for x in 0..count.0 {
            if interval > 0 && until_restart == 0 {
                bits.restart()?;
                (firsts, until_restart) = ([0; 3], interval);
            }
            until_restart = until_restart.wrapping_sub(1);
            for (at, plane) in planes.iter_mut().enumerate() {
                let [columns, rows] = plane.needed;
                let is_needed = (columns.0..columns.1).contains(&x) && (rows.0..rows.1).contains(&y);
                for number in 0..plane.blocks.0 * plane.blocks.1 {
                    bits.block(codes[at], &mut firsts[at], &mut block)?;
                    if is_needed {
                        let (across, down) = (number % plane.blocks.0, number / plane.blocks.0);
                        let place = (x * plane.blocks.0 + across, y * plane.blocks.1 + down);
                        plane.write(place, &block, quantities[at], routines);
                    }
                }
            }
        }
    }
    bits.has_enough()?;
    bits.is_last()
}

impl Plane {
    /// Transforms a block into its place, in blocks.
    #[inline(always)]
    fn write(
        &mut self,
        (x, y): (usize, usize),
        block: &Block,
        quantities: &[u16; 64],
        routines: &SimdRoutines,
    ) {
        let Some(block) = block.first_chunk() else { return };
        let to = &mut self.values[(y * self.row + x) * self.side..];
        match self.side {
            8 => {
                let mut pixels = [0; 64];
                (routines.idct_islow)(block, quantities, &mut pixels);
                put::<8>(&pixels, self.row, to);
            }
            4 => {
                put::<4>(&half(block, quantities), self.row, to);
            }
            2 => {
                let mut pixels = [0; 4];
                idct_2x2(block, quantities, &mut pixels);
                put::<2>(&pixels, self.row, to);
            }
            _ => to[0] = idct_1x1(block, quantities),
        }
    }

    fn line(&self, y: usize) -> &[u8] {
        &self.values[y * self.row..(y + 1) * self.row]
    }
}

#[inline(always)]
fn put<const SIDE: usize>(pixels: &[u8], row: usize, to: &mut [u8]) {
    for (y, pixels) in pixels.chunks_exact(SIDE).enumerate() {
        to[y * row..y * row + SIDE].copy_from_slice(pixels);
    }
}

/// Writes RGB from planes of one size.
fn convert(planes: &[Plane; 3], part: Rectangle, routines: &SimdRoutines, out: &mut [u8]) {
    let (left, width) = (part.left as usize, part.width as usize);
    for (y, out) in out.chunks_exact_mut(3 * width).enumerate() {
        let [luma, blue, red] =
            [0, 1, 2].map(|at| &planes[at].line(part.top as usize + y)[left..left + width]);
        (routines.ycbcr_to_rgb_row)(luma, blue, red, out, width);
    }
}

/// Writes RGB from colours of half the width, and half the height if `units` has two rows, by libjpeg-turbo's filter: the
/// nearest value counts three times as much as the next one.
fn enlarge(
    planes: &[Plane; 3],
    units: (usize, usize),
    part: Rectangle,
    routines: &SimdRoutines,
    out: &mut [u8],
) {
    let (left, width) = (part.left as usize, part.width as usize);
    let columns = left / 2..(left + width).div_ceil(2);
    let skipped = left - 2 * columns.start;
    let mut sums = vec![0; columns.len() + 2];
    let mut colours = [vec![0; 2 * columns.len()], vec![0; 2 * columns.len()]];
    for (y, out) in out.chunks_exact_mut(3 * width).enumerate() {
        let y = part.top as usize + y;
        for (plane, colour) in planes[1..].iter().zip(&mut colours) {
            let (own, next) = match units.1 {
                1 => (y, y),
                _ if y.is_multiple_of(2) => (y / 2, (y / 2).saturating_sub(1)),
                _ => (y / 2, (y / 2 + 1).min(plane.size.1 - 1)),
            };
            let (own, next) = (plane.line(own), plane.line(next));
            let sum = |x: usize| match units.1 {
                1 => u16::from(own[x]),
                _ => 3 * u16::from(own[x]) + u16::from(next[x]),
            };
            // Outside of the image, the values at its edge.
            sums[0] = sum(columns.start.saturating_sub(1));
            let inner =
                sums[1..=columns.len()].iter_mut().zip(&own[columns.clone()]).zip(&next[columns.clone()]);
            match units.1 {
                1 => inner.for_each(|((sum, &own), _)| *sum = own.into()),
                _ => inner.for_each(|((sum, &own), &next)| *sum = 3 * u16::from(own) + u16::from(next)),
            }
            sums[columns.len() + 1] = sum(columns.end.min(plane.size.0 - 1));
            match units.1 {
                1 => spread::<2>(&sums, (1, 2), colour),
                _ => spread::<4>(&sums, (8, 7), colour),
            }
        }
        let luma = &planes[0].line(y)[left..left + width];
        let [blue, red] = [0, 1].map(|at| &colours[at][skipped..skipped + width]);
        (routines.ycbcr_to_rgb_row)(luma, blue, red, out, width);
    }
}

/// Doubles a row. `rounding` is added to the first and to the second value of a pair.
fn spread<const SHIFT: u32>(sums: &[u16], rounding: (u16, u16), out: &mut [u8]) {
    let neighbours = sums.windows(3);
    for (pair, of) in out.chunks_exact_mut(2).zip(neighbours) {
        let most = 3 * of[1];
        pair[0] = ((most + of[0] + rounding.0) >> SHIFT) as u8;
        pair[1] = ((most + of[2] + rounding.1) >> SHIFT) as u8;
    }
}
