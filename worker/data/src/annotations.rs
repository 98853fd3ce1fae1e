//! Files of annotations in COCO's format.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::drawings::{Part, SCALE};

/// The parts of a file that masks need.
#[derive(Debug, Deserialize)]
pub(super) struct Annotations {
    pub images: Vec<ImageEntry>,
    pub annotations: Vec<Annotation>,
    pub categories: Vec<Category>,
}

/// An image.
#[derive(Debug, Deserialize)]
pub(super) struct ImageEntry {
    pub id: i64,
    pub file_name: String,
    /// In pixels, like the height.
    pub width: u32,
    pub height: u32,
}

/// A category of objects.
#[derive(Debug, Deserialize)]
pub(super) struct Category {
    pub id: i64,
    pub name: String,
}

/// An object, or a crowd of objects, in an image.
#[derive(Debug, Deserialize)]
pub(super) struct Annotation {
    #[serde(default)]
    pub id: i64,
    pub image_id: i64,
    pub category_id: i64,
    /// In pixels.
    #[serde(default)]
    pub area: Option<f64>,
    #[serde(default)]
    pub segmentation: Segmentation,
}

/// The shape of an annotation.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) enum Segmentation {
    /// None: the annotation has a box alone.
    #[default]
    None,
    Polygons(Vec<Vec<Fifths>>),
    /// Runs of a mask of this height and width.
    Runs {
        size: (u32, u32),
        runs: Vec<u32>,
    },
}

/// A coordinate in fifths of a pixel, rounded as in pycocotools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fifths(pub(super) i32);

impl<'de> Deserialize<'de> for Fifths {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self((SCALE * f64::deserialize(deserializer)? + 0.5) as i32))
    }
}

/// Lengths of runs, as a list or as text.
struct Counts(Vec<u32>);

impl<'de> Deserialize<'de> for Counts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Of;
        impl<'de> Visitor<'de> for Of {
            type Value = Counts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of runs, or their compressed text")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Counts, E> {
                let runs = decompress(text.as_bytes());
                runs.map(Counts).ok_or_else(|| E::custom("the compressed runs are damaged"))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Counts, A::Error> {
                let mut runs = Vec::new();
                while let Some(run) = list.next_element()? {
                    runs.push(run);
                }
                Ok(Counts(runs))
            }
        }
        deserializer.deserialize_any(Of)
    }
}

/// Returns the runs of a text as pycocotools writes it: 5 bits a letter, from the third run on less the run before the last.
fn decompress(text: &[u8]) -> Option<Vec<u32>> {
    let mut runs: Vec<u32> = Vec::new();
    let mut letters = text.iter();
    while !letters.as_slice().is_empty() {
        let (mut value, mut shift) = (0i64, 0);
        loop {
            let bits = i64::from(letters.next()?.checked_sub(48).filter(|bits| *bits < 64)?);
            value |= (bits & 0x1f) << shift;
            shift += 5;
            if bits & 0x20 == 0 {
                if bits & 0x10 != 0 {
                    value |= -1 << shift;
                }
                break;
            }
            // A run of 32 bits has no more letters.
            if shift > 35 {
                return None;
            }
        }
        if runs.len() > 2 {
            value += i64::from(runs[runs.len() - 2]);
        }
        runs.push(u32::try_from(value).ok()?);
    }
    Some(runs)
}

impl<'de> Deserialize<'de> for Segmentation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Of;
        impl<'de> Visitor<'de> for Of {
            type Value = Segmentation;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of polygons, or runs with `size` and `counts`")
            }

            fn visit_unit<E: Error>(self) -> Result<Segmentation, E> {
                Ok(Segmentation::None)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Segmentation, A::Error> {
                let mut polygons = Vec::new();
                while let Some(polygon) = list.next_element()? {
                    polygons.push(polygon);
                }
                Ok(if polygons.is_empty() { Segmentation::None } else { Segmentation::Polygons(polygons) })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Segmentation, A::Error> {
                let (mut size, mut counts) = (None, None);
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "size" => size = Some(map.next_value()?),
                        "counts" => counts = Some(map.next_value::<Counts>()?.0),
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                let size = size.ok_or_else(|| A::Error::missing_field("size"))?;
                let runs = counts.ok_or_else(|| A::Error::missing_field("counts"))?;
                Ok(Segmentation::Runs { size, runs })
            }
        }
        deserializer.deserialize_any(Of)
    }
}

impl Annotation {
    /// Returns the area in pixels: the stated one, else that of the polygons or runs.
    pub(super) fn area(&self) -> f64 {
        self.area.filter(|area| area.is_finite()).unwrap_or_else(|| match &self.segmentation {
            Segmentation::None => 0.0,
            Segmentation::Polygons(polygons) => polygons.iter().map(|points| polygon_area(points)).sum(),
            Segmentation::Runs { runs, .. } => {
                runs.iter().skip(1).step_by(2).map(|&run| f64::from(run)).sum()
            }
        })
    }

    /// Returns the parts to draw in an image of this size (width, height), or why that is impossible.
    pub(super) fn parts(&self, (width, height): (u32, u32)) -> Result<Vec<Part>, Unusable> {
        match &self.segmentation {
            Segmentation::None => Err(Unusable::BoxAlone),
            Segmentation::Runs { size, .. } if *size != (height, width) => Err(Unusable::Size),
            Segmentation::Runs { runs, .. } => {
                let pixels: u64 = runs.iter().map(|&run| u64::from(run)).sum();
                match pixels == u64::from(width) * u64::from(height) {
                    true => Ok(vec![Part::Runs(runs.clone())]),
                    false => Err(Unusable::Runs),
                }
            }
            Segmentation::Polygons(polygons) => {
                let part = |points: &Vec<Fifths>| {
                    if points.len() < 6 || points.len() % 2 == 1 {
                        return Err(Unusable::Points);
                    }
                    let near = |value: i32, size: u32| {
                        let size = SCALE as i64 * i64::from(size);
                        (-size..=2 * size).contains(&i64::from(value))
                    };
                    let is_near = points
                        .chunks_exact(2)
                        .all(|point| near(point[0].0, width) && near(point[1].0, height));
                    match is_near {
                        true => Ok(Part::Polygon(points.iter().map(|value| value.0).collect())),
                        false => Err(Unusable::Outside),
                    }
                };
                polygons.iter().map(part).collect()
            }
        }
    }
}

fn polygon_area(points: &[Fifths]) -> f64 {
    let corners: Vec<_> =
        points.chunks_exact(2).map(|point| (f64::from(point[0].0), f64::from(point[1].0))).collect();
    let next = corners.iter().cycle().skip(1);
    let twice: f64 = corners.iter().zip(next).map(|((x, y), (next_x, next_y))| x * next_y - next_x * y).sum();
    twice.abs() / 2.0 / (SCALE * SCALE)
}

/// Why a shape cannot be drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Unusable {
    #[error("no segmentation, only a box")]
    BoxAlone,
    #[error("a polygon without three points, or with a coordinate too few")]
    Points,
    #[error("points farther outside of the image than it is large")]
    Outside,
    #[error("runs of another height or width than the image")]
    Size,
    #[error("runs of more or fewer pixels than the image has")]
    Runs,
}

#[cfg(test)]
mod tests;
