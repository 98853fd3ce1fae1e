//! The samples of a set, from their check.

use std::collections::BTreeMap;

use dtrain_data::{CheckReport, Depth, Ignored, ListValues, PixelRule, Samples};
use serde::{Serialize, Serializer};

use crate::balance::Balance;
use crate::spread::Spread;

/// Unusable samples and marked files that are named; further ones are only counted.
const NAMED: usize = 5;

/// A set of samples and its files.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SetReport {
    /// The set in the recipe, such as `train`.
    pub name: String,
    /// The place that lists its samples.
    pub place: String,
    /// The listed samples, and those that a training uses.
    pub samples: usize,
    pub usable: usize,
    /// Whether all files were decoded; otherwise only their headers were read.
    pub decoded: bool,
    /// Files by what they are (`image`, `mask`, `map`) and their kind, the most frequent first.
    pub files: BTreeMap<&'static str, Vec<(String, usize)>>,
    /// The sizes of images; None without images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sizes: Option<Sizes>,
    /// Files with an EXIF orientation other than the stored one.
    pub turned: usize,
    /// Maps whose compression changed their values.
    pub lossy_maps: usize,
    pub unusable: Unusable,
    /// Files that are no images to dtrain, or are in no class.
    #[serde(serialize_with = "ignored")]
    pub ignored: Ignored,
    /// The images of each class, by field.
    pub classes: BTreeMap<String, Balance>,
    /// The pixels of each class in the first masks, and the number of these masks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pixels: Option<(Balance, usize)>,
    pub numbers: Vec<(String, Spread)>,
    /// The numbers of the maps that were decoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maps: Option<Spread>,
}

/// Sizes of images, (width, height).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// By their number of pixels.
    pub smallest: (u32, u32),
    pub median: (u32, u32),
    pub largest: (u32, u32),
    pub most_frequent: (u32, u32),
    /// Images of the most frequent size, and of any.
    pub of_it: usize,
    pub images: usize,
    /// Different sizes.
    pub different: usize,
}

/// Samples that a training leaves out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Unusable {
    pub samples: usize,
    /// By the kind of the reason.
    pub by_kind: BTreeMap<&'static str, usize>,
    /// The first ones, each with its reason.
    pub first: Vec<(String, String)>,
}

fn ignored<S: Serializer>(ignored: &Ignored, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(ignored)
}

impl SetReport {
    /// Describes a set that was checked in detail.
    pub fn of(samples: &Samples, report: &CheckReport) -> Self {
        let tally = &report.tally;
        let mut files: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (&(role, kind), &count) in &tally.kinds {
            files.entry(role).or_default().push((kind.to_string(), count));
        }
        files.values_mut().for_each(|kinds| kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count)));
        let first = report.bad.iter().take(NAMED).map(|bad| (bad.path.clone(), bad.reason.clone()));
        let is_of_maps = samples.pixels().is_some_and(|(_, rule)| matches!(rule, PixelRule::Map(_)));
        let is_of_masks = samples.pixels().is_some_and(|(_, rule)| matches!(rule, PixelRule::Mask(_)));
        Self {
            name: samples.set.clone(),
            place: samples.place(&samples.set).display().to_string(),
            samples: samples.count(),
            usable: samples.count() - report.bad.len(),
            decoded: Depth::for_len(samples.count()) == Depth::Full,
            files,
            sizes: Sizes::of(&tally.sizes),
            turned: report.marks.turned.files,
            lossy_maps: report.marks.lossy_maps.files,
            unusable: Unusable {
                samples: report.bad.len(),
                by_kind: tally.faults.clone(),
                first: first.collect(),
            },
            ignored: samples.ignored.clone(),
            classes: classes(samples),
            pixels: is_of_masks.then(|| {
                let counts = &report.class_counts;
                let rule = samples.mask_rules().next().map(|(_, rule)| rule);
                let mut pixels = vec![0; rule.map_or(0, |rule| rule.classes)];
                counts.occurring().for_each(|(class, count)| {
                    pixels.resize(pixels.len().max(class + 1), 0);
                    pixels[class] = count;
                });
                let name = |class: usize| rule.map_or_else(|| class.to_string(), |rule| rule.name(class));
                let named = pixels.into_iter().enumerate().map(|(class, count)| (name(class), count));
                (Balance { classes: named.collect(), of_none: counts.ignored }, counts.masks)
            }),
            numbers: numbers(samples),
            maps: is_of_maps.then(|| Spread::from(&report.moments)),
        }
    }
}

fn classes(samples: &Samples) -> BTreeMap<String, Balance> {
    let of = |values: &ListValues| match values {
        ListValues::Classes { names, numbers } => Some(Balance::count(names, numbers.iter().copied())),
        ListValues::ClassSets { names, sets } => {
            let all = || (0..samples.count()).map(|sample| sets.of(sample));
            let mut balance = Balance::count(names, all().flatten().copied());
            balance.of_none = all().filter(|set| set.is_empty()).count() as u64;
            Some(balance)
        }
        _ => None,
    };
    samples.lists.iter().filter_map(|list| Some((list.field.clone(), of(&list.values)?))).collect()
}

fn numbers(samples: &Samples) -> Vec<(String, Spread)> {
    let (names, values) = samples.numbers();
    let moments = samples.moments();
    let of = |(at, (name, moments)): (usize, (&String, _))| {
        let own = values.iter().copied().skip(at).step_by(names.len()).collect();
        (name.clone(), Spread::of(moments, own))
    };
    names.iter().zip(&moments).enumerate().map(of).collect()
}

impl Sizes {
    fn of(sizes: &BTreeMap<(u32, u32), usize>) -> Option<Self> {
        let mut by_pixels: Vec<_> = sizes.iter().map(|(size, images)| (*size, *images)).collect();
        by_pixels.sort_by_key(|((width, height), _)| u64::from(*width) * u64::from(*height));
        let images = by_pixels.iter().map(|(_, images)| images).sum::<usize>();
        let mut before = 0;
        let median = by_pixels.iter().find(|(_, of_it)| {
            before += of_it;
            before > images / 2
        })?;
        let (most_frequent, of_it) = *by_pixels.iter().max_by_key(|(_, of_it)| *of_it)?;
        Some(Self {
            smallest: by_pixels.first()?.0,
            median: median.0,
            largest: by_pixels.last()?.0,
            most_frequent,
            of_it,
            images,
            different: by_pixels.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sizes_are_ordered_by_pixels() {
        let sizes = BTreeMap::from([((10, 10), 2), ((1, 200), 5), ((30, 5), 1)]);
        let expected = Sizes {
            smallest: (10, 10),
            median: (1, 200),
            largest: (1, 200),
            most_frequent: (1, 200),
            of_it: 5,
            images: 8,
            different: 3,
        };
        assert_eq!(Sizes::of(&sizes).unwrap(), expected);
        assert_eq!(Sizes::of(&BTreeMap::new()), None);
    }
}
