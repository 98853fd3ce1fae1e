//! A sample as tiles of a picture: its images with their masks and maps, and its other targets in words.

use std::collections::BTreeSet;

use dtrain_data::raster::Values;
use dtrain_data::{Column, Field};
use image::imageops::{FilterType, resize};
use image::{Rgb, RgbImage};

use super::canvas::{Colour, GREY, blend};
use super::colours::{of_class, of_number};
use super::tokens::is_of_text;
use super::words::{Names, split, words};
use crate::values::{image, stored};

/// An image with what is beside and below it.
pub(super) struct Cell {
    pub(super) panels: Vec<RgbImage>,
    pub(super) caption: Vec<String>,
}

/// Returns the least and the most pixels of an image's longer side, by the number of images.
pub(super) fn sides(fields: &[Field]) -> (u32, u32) {
    let images = fields.iter().filter(|field| image(field).is_some());
    let count: usize = images.map(|field| members(field, 3)).sum();
    if count >= 6 { (64, 96) } else { (128, 256) }
}

/// Returns the images of a sample in `columns`, each with its targets and within `side` ([`sides`]). Adds the classes of its masks
/// to `seen`.
pub(super) fn cells(
    fields: &[Field],
    columns: &[Column],
    names: &Names,
    seen: &mut BTreeSet<i64>,
    side: (u32, u32),
) -> Vec<Cell> {
    let mut cells = Vec::new();
    let images = |(field, _): &(&Field, &Column)| image(field).is_some();
    for (field, column) in fields.iter().zip(columns).filter(images) {
        let (Some(values), Some(&[channels, height, width])) =
            (stored(field, column, &names.normalize), image(field))
        else {
            continue;
        };
        let size = channels * height * width;
        let prefix = split(&field.name).0;
        // The targets of a member are beside its first image.
        let first = fields.iter().find(|one| image(one).is_some() && split(&one.name).0 == prefix);
        let is_first = first.is_some_and(|first| first.name == field.name);
        let has_own = members(field, 3) == own(fields, prefix);
        let has_targets = |member: usize| is_first && (has_own || member == 0);
        for (member, planes) in values.chunks_exact(size.max(1)).enumerate() {
            let range = range(planes, is_of_bytes(column));
            let plain = picture(planes, channels, (width, height), range);
            let mut cell = Cell { panels: vec![fitted(&plain, side)], caption: note(channels, range) };
            for (other, column) in fields.iter().zip(columns) {
                let is_target = image(other).is_none() && !is_of_text(other, fields);
                if has_targets(member) && split(&other.name).0 == prefix && is_target {
                    let panel = target(other, column, member, &plain, names, seen, &mut cell.caption);
                    cell.panels.extend(panel.map(|panel| fitted(&panel, side)));
                }
            }
            cells.push(cell);
        }
    }
    if cells.is_empty() {
        let mut caption = Vec::new();
        let nothing = RgbImage::new(0, 0);
        for (field, column) in fields.iter().zip(columns).filter(|(field, _)| !is_of_text(field, fields)) {
            target(field, column, 0, &nothing, names, seen, &mut caption);
        }
        cells.push(Cell { panels: Vec::new(), caption });
    }
    cells
}

/// Returns the number of images of a field, whose own lengths are the last ones.
fn members(field: &Field, own: usize) -> usize {
    field.shape[..field.shape.len() - own].iter().product()
}

/// Returns the number of members of this prefix: 1 for a single sample.
fn own(fields: &[Field], prefix: &str) -> usize {
    let label = fields.iter().find(|field| split(&field.name) == (prefix, "label"));
    label.map_or(1, Field::values)
}

/// Adds a target to the caption; returns a panel if it has one for each pixel.
fn target(
    field: &Field,
    column: &Column,
    member: usize,
    image: &RgbImage,
    names: &Names,
    seen: &mut BTreeSet<i64>,
    caption: &mut Vec<String>,
) -> Option<RgbImage> {
    let plane = (image.width() * image.height()) as usize;
    let is_of_pixels = plane > 1 && field.values().is_multiple_of(plane);
    let of_member = member * plane..(member + 1) * plane;
    match column {
        Column::I64(values) if is_of_pixels => {
            Some(overlay(image, values.get(of_member)?, names.ignore, seen))
        }
        Column::F32(values) if is_of_pixels => {
            let (panel, low, high) = ramp(image, values.get(of_member)?);
            caption.push(format!("{} {low:.4} to {high:.4}", field.name));
            Some(panel)
        }
        _ => {
            caption.extend(words(field, column, member, names));
            None
        }
    }
}

fn is_of_bytes(column: &Column) -> bool {
    matches!(column, Column::Pixels(pixels) if matches!(pixels.values(), Values::U8(_)))
}

/// Returns the values that are shown as black and white: 0 and 1, but all of the values that lie outside or use little of it, such as
/// those of a satellite.
fn range(planes: &[f32], is_of_bytes: bool) -> (f32, f32) {
    /// Images of 16 bits that reach this are shown as they are.
    const BRIGHT: f32 = 0.5;
    let low = planes.iter().copied().fold(f32::INFINITY, f32::min);
    let high = planes.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // Generated images reach a little further by rounding.
    let is_usual = low > -0.01 && (BRIGHT..1.01).contains(&high);
    if is_of_bytes || is_usual || low >= high { (0.0, 1.0) } else { (low, high) }
}

/// Says what an image shows other than all channels from 0 to 1.
fn note(channels: usize, (low, high): (f32, f32)) -> Vec<String> {
    let bands = match channels {
        1 | 3 => None,
        2 => Some("band 1 of 2".to_owned()),
        channels => Some(format!("bands 1 to 3 of {channels}")),
    };
    let values = ((low, high) != (0.0, 1.0)).then(|| format!("values {low:.4} to {high:.4}"));
    bands.into_iter().chain(values).collect()
}

/// Returns an image of planes, of which `low` is black and `high` white.
fn picture(
    planes: &[f32],
    channels: usize,
    (width, height): (usize, usize),
    (low, high): (f32, f32),
) -> RgbImage {
    let byte = |value: f32| ((value - low) / (high - low) * 255.0).round() as u8;
    let plane = width * height;
    RgbImage::from_fn(width as u32, height as u32, |x, y| {
        let at = y as usize * width + x as usize;
        let of = |channel: usize| byte(planes[channel * plane + at]);
        Rgb(match channels {
            0 => [0; 3],
            // Two bands are shown as grey of the first.
            1 | 2 => [of(0); 3],
            _ => [of(0), of(1), of(2)],
        })
    })
}

fn overlay(image: &RgbImage, classes: &[i64], ignore: Option<i64>, seen: &mut BTreeSet<i64>) -> RgbImage {
    let width = image.width();
    RgbImage::from_fn(width, image.height(), |x, y| {
        let class = classes[(y * width + x) as usize];
        let below = image.get_pixel(x, y).0;
        if Some(class) == ignore {
            // Stripes.
            return Rgb(if (x + y) % 8 < 4 { GREY } else { below });
        }
        seen.insert(class);
        Rgb(match class {
            0 => blend(below, [0; 3], 0.35),
            class => blend(below, of_class(class), 0.6),
        })
    })
}

/// Returns the numbers of pixels as colours, and their range.
fn ramp(image: &RgbImage, numbers: &[f32]) -> (RgbImage, f32, f32) {
    /// Pixels without a number.
    const NONE: Colour = [150, 150, 150];
    let found = numbers.iter().copied().filter(|number| !number.is_nan());
    let (low, high) = found
        .fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), number| (low.min(number), high.max(number)));
    let width = image.width();
    let panel = RgbImage::from_fn(width, image.height(), |x, y| {
        let number = numbers[(y * width + x) as usize];
        Rgb(if number.is_nan() {
            NONE
        } else {
            of_number((number - low) / (high - low).max(f32::MIN_POSITIVE))
        })
    });
    (panel, low, high)
}

/// Returns the image with a longer side of `least` to `most` pixels. Small ones grow by whole factors, so that pixels stay visible.
fn fitted(image: &RgbImage, (least, most): (u32, u32)) -> RgbImage {
    let (width, height) = image.dimensions();
    let side = width.max(height).max(1);
    if side > most {
        let scaled = |length: u32| (length * most / side).max(1);
        return resize(image, scaled(width), scaled(height), FilterType::Triangle);
    }
    let factor = if side < least { least.div_ceil(side).min(most / side) } else { 1 };
    resize(image, width * factor, height * factor, FilterType::Nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dark_or_other_values_are_stretched() {
        assert_eq!(range(&[0.1, 0.7], false), (0.0, 1.0));
        assert_eq!(range(&[0.01, 0.08], false), (0.01, 0.08));
        assert_eq!(range(&[0.01, 0.08], true), (0.0, 1.0));
        assert_eq!(range(&[-3.0, 900.0], false), (-3.0, 900.0));
        assert_eq!(range(&[0.2, 0.2], false), (0.0, 1.0));
        assert_eq!(note(4, (0.25, 9.0)), ["bands 1 to 3 of 4", "values 0.2500 to 9.0000"]);
        assert!(note(3, (0.0, 1.0)).is_empty());
    }
}
