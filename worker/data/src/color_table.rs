//! Classes of pixels by their colours.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

pub use super::color::Color;
use super::color::Hex;
use super::error::{Result, SampleError};
use super::raster::Labels;

/// The class of each colour of a mask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColorTable {
    /// In the order of the recipe, with the names of their classes for messages.
    pub entries: Vec<ColorEntry>,
    /// The most levels by which each channel of a pixel may differ from a colour.
    pub tolerance: u8,
}

/// A colour of a class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColorEntry {
    pub color: Color,
    /// The number of the class, or [`super::MaskRule::ignore`].
    pub class: u16,
    pub name: String,
}

/// Pixels whose colours have no class, by colour.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Strangers(HashMap<Color, Found>);

/// How often a colour occurs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Found {
    pub files: u64,
    pub pixels: u64,
}

/// The most colours of a set that are counted separately; the pixels of further ones are counted under black. A photograph has as many.
const MOST_TOLD_APART: usize = 1 << 16;

impl Strangers {
    pub(super) fn merge(&mut self, other: Self) {
        for (color, found) in other.0 {
            self.add(color, found);
        }
    }

    fn add(&mut self, color: Color, found: Found) {
        if self.0.len() < MOST_TOLD_APART || self.0.contains_key(&color) {
            let sum = self.0.entry(color).or_default();
            sum.files += found.files;
            sum.pixels += found.pixels;
        }
    }

    /// Returns the colours, those of the most pixels first.
    pub fn by_pixels(&self) -> Vec<(Color, Found)> {
        let mut all: Vec<_> = self.0.iter().map(|(color, found)| (*color, *found)).collect();
        all.sort_unstable_by_key(|(color, found)| (std::cmp::Reverse(found.pixels), *color));
        all
    }
}

impl ColorTable {
    /// Returns the entry of the nearest colour: by the largest difference of a channel, then by the sum of squares, then the first.
    pub fn nearest(&self, color: Color) -> Option<&ColorEntry> {
        let differences = |entry: &&ColorEntry| {
            let each = [0, 1, 2].map(|at| u32::from(entry.color[at].abs_diff(color[at])));
            (distance(entry.color, color), each.map(|difference| difference * difference).iter().sum::<u32>())
        };
        self.entries.iter().min_by_key(differences)
    }

    fn class(&self, color: Color) -> Option<u16> {
        if self.tolerance == 0 {
            return self.entries.iter().find(|entry| entry.color == color).map(|entry| entry.class);
        }
        self.nearest(color)
            .filter(|entry| distance(entry.color, color) <= self.tolerance)
            .map(|entry| entry.class)
    }

    /// Turns colours, three values a pixel, into classes. An error has `strangers`.
    pub(super) fn apply(&self, rgb: &[u8], labels: &mut Labels, strangers: &mut Strangers) -> Result<()> {
        labels.values.clear();
        labels.values.reserve(rgb.len() / 3);
        let mut known: HashMap<Color, Option<u16>> = HashMap::new();
        let mut unknown: HashMap<Color, u64> = HashMap::new();
        let (pixels, _) = rgb.as_chunks::<3>();
        for run in pixels.chunk_by(|one, other| one == other) {
            let class = *known.entry(run[0]).or_insert_with(|| self.class(run[0]));
            if class.is_none() {
                *unknown.entry(run[0]).or_default() += run.len() as u64;
            }
            labels.values.extend(std::iter::repeat_n(class.unwrap_or_default(), run.len()));
        }
        let most = unknown.iter().max_by_key(|(color, pixels)| (**pixels, std::cmp::Reverse(**color)));
        let Some((&color, _)) = most else { return Ok(()) };
        let error = SampleError::MaskColor {
            pixels: unknown.values().sum(),
            colors: unknown.len(),
            color: Hex(color),
            nearest: self.describe_nearest(color),
        };
        for (color, pixels) in unknown {
            strangers.add(color, Found { files: 1, pixels });
        }
        Err(error)
    }

    /// Returns the largest difference of a channel from the nearest colour.
    pub fn distance(&self, color: Color) -> u8 {
        self.nearest(color).map_or(u8::MAX, |entry| distance(entry.color, color))
    }

    /// Describes the nearest class: "road #804080, 3 levels away".
    pub fn describe_nearest(&self, color: Color) -> String {
        self.nearest(color).map_or_else(String::new, |entry| {
            let away = self.distance(color);
            format!(
                "{} {}, {away} level{} away",
                entry.name,
                Hex(entry.color),
                if away == 1 { "" } else { "s" }
            )
        })
    }
}

/// Returns the largest difference of a channel.
fn distance(one: Color, other: Color) -> u8 {
    one.iter().zip(other).map(|(a, b)| a.abs_diff(b)).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn table(tolerance: u8) -> ColorTable {
        let entry = |name: &str, color, class| ColorEntry { color, class, name: name.to_owned() };
        let entries = vec![
            entry("road", [128, 64, 128], 0),
            entry("sky", [128, 192, 255], 1),
            entry("void", [0; 3], 255),
        ];
        ColorTable { entries, tolerance }
    }

    #[test]
    fn colors_are_classes_and_others_an_error_with_counts() {
        let (mut labels, mut strangers) = (Labels::default(), Strangers::default());
        let rgb = [128, 64, 128, 128, 192, 255, 0, 0, 0, 128, 192, 255];
        table(0).apply(&rgb, &mut labels, &mut strangers).unwrap();
        assert_eq!(labels.values, [0, 1, 255, 1]);
        let rgb = [128, 64, 129, 128, 64, 129, 1, 0, 0, 128, 192, 255];
        let error = table(0).apply(&rgb, &mut labels, &mut strangers).unwrap_err().to_string();
        assert!(
            error.starts_with("3 pixels of the mask have colours that data.mask_colors lacks, such as #804081 (nearest: road #804080, 1 level away)"),
            "{error}"
        );
        assert!(table(0).apply(&rgb, &mut labels, &mut strangers).is_err());
        let found = strangers.by_pixels();
        assert_eq!(found[0], ([128, 64, 129], Found { files: 2, pixels: 4 }));
        assert_eq!(found[1], ([1, 0, 0], Found { files: 2, pixels: 2 }));
        table(1).apply(&rgb, &mut labels, &mut strangers).unwrap();
        assert_eq!(labels.values, [0, 0, 255, 1]);
        assert!(table(3).apply(&[64; 3], &mut labels, &mut strangers).is_err());
    }

    #[test]
    fn the_nearest_color_wins() {
        let two = ColorTable {
            entries: [[0; 3], [10; 3], [4, 4, 0]]
                .map(|color| ColorEntry { color, class: u16::from(color[0]), name: String::new() })
                .into(),
            tolerance: 255,
        };
        assert_eq!(two.class([7; 3]), Some(10), "the largest difference counts");
        assert_eq!(two.class([2, 2, 0]), Some(0), "the first of two equal ones");
        assert_eq!(two.class([5; 3]), Some(4), "then the sum of squares");
    }
}
