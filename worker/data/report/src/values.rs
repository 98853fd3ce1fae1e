//! The values of samples as a network gets them without random changes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use dtrain_data::raster::Values;
use dtrain_data::{Column, Dataset, Field, Moments, Normalize, epoch_order, load_one};
use serde::Serialize;

use crate::spread::Spread;

/// Samples that are loaded, chosen at random.
const LOADED: usize = 1000;
/// Values of a sample that enter the percentiles.
const KEPT: usize = 200;

/// The values of the samples of a set that were loaded.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LoadedValues {
    /// The use of the set, such as `training`.
    pub set: String,
    /// The loaded samples, and those of the set.
    pub samples: usize,
    pub of: usize,
    pub unreadable: usize,
    pub fields: Vec<FieldValues>,
}

/// The values of a field.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FieldValues {
    pub field: String,
    /// The lengths of a sample.
    pub shape: Vec<usize>,
    pub values: FieldKind,
}

/// Statistics by what the field is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldKind {
    /// An image: each channel before normalisation, 8 and 16 bits on the scale from 0 to 1. Also mean and deviation of the recipe.
    Image { channels: Vec<Spread>, recipe: Vec<(f64, f64)> },
    /// Numbers: each of a few, or all of a map together.
    Numbers(Vec<Spread>),
    /// Numbers of classes, and how often each occurs.
    Classes(BTreeMap<i64, u64>),
    /// Tokens of a text.
    Tokens,
}

/// What one sample adds to a field.
#[derive(Debug, Clone, Default)]
struct Part {
    moments: Vec<Moments>,
    kept: Vec<Vec<f32>>,
    classes: BTreeMap<i64, u64>,
}

impl LoadedValues {
    /// Loads samples of the set `name` in `threads` threads; of samples that are made of others, these. `normalize` is what generated images
    /// were normalised with.
    pub fn of(name: &str, set: &dyn Dataset, normalize: &Normalize, threads: usize) -> Self {
        let set = set.groups().map_or(set, |groups| groups.singles());
        let mut chosen = epoch_order(set.len(), 0, 0);
        chosen.truncate(LOADED);
        chosen.sort_unstable();
        let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(&sample) = chosen.get(at) else { break };
                let loaded = load_one(set, sample as usize, None).map(|columns| {
                    let of = |(field, column)| Part::of(field, column, normalize);
                    set.fields().iter().zip(&columns).map(of).collect::<Vec<_>>()
                });
                found.lock().unwrap_or_else(PoisonError::into_inner).push((at, loaded.ok()));
            }
        };
        thread::scope(|scope| {
            // Without more threads, this one does all.
            (1..threads).for_each(|_| drop(thread::Builder::new().spawn_scoped(scope, work)));
            work();
        });
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        // Sums depend on the order, which must not depend on threads.
        found.sort_unstable_by_key(|(at, _)| *at);
        let mut parts = vec![Part::default(); set.fields().len()];
        let mut unreadable = 0;
        for (_, loaded) in found {
            match loaded {
                Some(of) => parts.iter_mut().zip(of).for_each(|(all, part)| all.add(part)),
                None => unreadable += 1,
            }
        }
        let fields =
            set.fields().iter().zip(parts).map(|(field, part)| part.field(field, normalize)).collect();
        Self { set: name.to_owned(), samples: chosen.len() - unreadable, of: set.len(), unreadable, fields }
    }
}

/// Returns whether a field holds tokens.
pub(crate) fn is_of_tokens(field: &Field) -> bool {
    const NAMES: [&str; 4] = ["tokens", "targets", "documents", "positions"];
    field.shape.len() == 1 && NAMES.contains(&&*field.name)
}

/// Returns the values of a field of images before normalisation, channel by channel, those of 8 bits from 0 to 1; None for other
/// fields. `normalize` is what generated images were normalised with.
pub(crate) fn stored(field: &Field, column: &Column, normalize: &Normalize) -> Option<Vec<f32>> {
    let [channels, height, width] = *image(field)?;
    let plane = (height * width).max(1);
    let back = |values: &[f32], normalize: &Normalize| {
        let one = |(at, value): (usize, &f32)| normalize.stored((at / plane) % channels.max(1), *value);
        values.iter().enumerate().map(one).collect()
    };
    match column {
        Column::Pixels(pixels) => Some(match pixels.values() {
            Values::U8(values) => values.iter().map(|value| f32::from(*value) / 255.0).collect(),
            Values::F32(values) => back(values, pixels.normalize()),
        }),
        Column::F32(values) if normalize.channels() == channels => Some(back(values, normalize)),
        Column::F32(_) | Column::I64(_) => None,
    }
}

/// Returns the lengths of an image, (channels, height, width), of a field of images.
pub(crate) fn image(field: &Field) -> Option<&[usize; 3]> {
    let is_generated = || field.kind == dtrain_data::FieldKind::F32 && field.name.ends_with("image");
    let lengths = field.shape.last_chunk::<3>()?;
    (field.normalize.is_some() || is_generated()).then_some(lengths)
}

impl Part {
    fn of(field: &Field, column: &Column, normalize: &Normalize) -> Self {
        let mut part = Self::default();
        if let (Some(values), Some(&[channels, height, width])) =
            (stored(field, column, normalize), image(field))
        {
            for channel in 0..channels {
                let planes = values.chunks_exact((height * width).max(1)).skip(channel).step_by(channels);
                part.moments.push(Moments::of(planes.flatten().copied()));
            }
            return part;
        }
        match column {
            Column::Pixels(_) => {}
            Column::F32(values) => {
                // Each of a few numbers means something else.
                let numbers = if field.shape.len() == 1 { values.len() } else { 1 };
                for number in 0..numbers {
                    let own = || values.iter().copied().skip(number).step_by(numbers);
                    let count = values.len() / numbers.max(1);
                    part.moments.push(Moments::of(own()));
                    part.kept.push(own().step_by(count.div_ceil(KEPT).max(1)).collect());
                }
            }
            Column::I64(_) if is_of_tokens(field) => {}
            Column::I64(values) => {
                for run in values.chunk_by(|a, b| a == b) {
                    *part.classes.entry(run[0]).or_default() += run.len() as u64;
                }
            }
        }
        part
    }

    fn add(&mut self, other: Self) {
        self.moments.resize(other.moments.len(), Moments::default());
        self.moments.iter_mut().zip(&other.moments).for_each(|(all, one)| all.add(one));
        self.kept.resize(other.kept.len(), Vec::new());
        self.kept.iter_mut().zip(other.kept).for_each(|(all, mut one)| all.append(&mut one));
        for (class, count) in other.classes {
            *self.classes.entry(class).or_default() += count;
        }
    }

    fn field(self, field: &Field, normalize: &Normalize) -> FieldValues {
        let own = field.normalize.as_deref().unwrap_or(normalize);
        let values = match (image(field), field.kind) {
            (Some(_), _) if own.channels() == self.moments.len() => FieldKind::Image {
                channels: self.moments.iter().map(Spread::from).collect(),
                recipe: own.mean_and_std().collect(),
            },
            (_, dtrain_data::FieldKind::F32) => {
                let spreads = self.moments.iter().zip(self.kept);
                FieldKind::Numbers(spreads.map(|(moments, kept)| Spread::of(moments, kept)).collect())
            }
            _ if is_of_tokens(field) => FieldKind::Tokens,
            _ => FieldKind::Classes(self.classes),
        };
        FieldValues { field: field.name.clone().into_owned(), shape: field.shape.clone(), values }
    }
}
