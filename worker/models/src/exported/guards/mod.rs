//! The sizes for which a program is valid. An export assumes the outcome of every branch on a size and notes it as a
//! guard; the program computes something else where a guard is false.

mod expression;
mod parse;

use std::collections::BTreeMap;

use self::expression::{Expression, Length};
use super::archive::Archive;
use super::graph;
use super::schema::{self, Document, NotedGuard};
use crate::exported_error::{Problem, Result};

/// Guards must be true for all batches up to this one. One that turns false above bounds the batch.
const LARGEST: i64 = 65_536;
/// Above, powers of two are tried, up to this one.
const LARGEST_POWER: u32 = 31;
/// The longest part of a guard in a message.
const SHOWN: usize = 200;

/// The batches for which a program is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Batches {
    pub least: i64,
    pub most: Option<i64>,
}

impl Batches {
    /// Returns the number of a batch's samples, which is at least 1.
    pub(super) fn least(self) -> usize {
        usize::try_from(self.least).unwrap_or(usize::MAX)
    }

    pub(super) fn most(self) -> Option<usize> {
        self.most.and_then(|most| usize::try_from(most).ok())
    }

    fn has(self, length: i64) -> bool {
        length >= self.least && self.most.is_none_or(|most| length <= most)
    }
}

/// A size that a guard depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    Batch,
    /// A dimension of an input.
    Length {
        input: usize,
        dim: usize,
    },
}

/// A condition on sizes, and where the model depends on it.
#[derive(Clone)]
struct Guard {
    text: String,
    /// Words that follow the guard; may be empty.
    place: String,
    expression: Expression,
    sizes: Vec<Size>,
}

/// The guards and ranges of one program.
#[derive(Clone)]
pub(super) struct Guards {
    /// The names of the inputs.
    names: Vec<String>,
    guards: Vec<Guard>,
    /// Range of the length of each dimension of each input.
    ranges: Vec<Vec<Batches>>,
    /// The batches for which the program is valid.
    pub batches: Batches,
    /// Whether the file has the guards of this program.
    pub is_known: bool,
}

impl Guards {
    /// Reads the guards of a program with these inputs. `smallest` is the smallest batch that was compared with PyTorch.
    pub(super) fn read(
        archive: &Archive,
        document: &Document,
        inputs: (&[graph::Input], &[String]),
        noted: Option<&[NotedGuard]>,
        smallest: Option<i64>,
    ) -> Result<Self> {
        let (placeholders, names) = inputs;
        let limits = limits(archive, &document.range_constraints)?;
        let range = |size: &schema::Size| match size {
            schema::Size::AsInt(length) => Batches { least: *length, most: Some(*length) },
            schema::Size::AsExpr(expression) => {
                let known = expression.symbol().and_then(|symbol| limits.get(symbol));
                // Exports assume that no size is 0 or 1.
                known.copied().unwrap_or(Batches { least: 2, most: None })
            }
        };
        let of_input = |input: &graph::Input| {
            input.meta.iter().flat_map(|meta| &meta.sizes).map(range).collect::<Vec<_>>()
        };
        let ranges: Vec<Vec<Batches>> = placeholders.iter().map(of_input).collect();
        // Each input may have its own symbol for the batch.
        let mut batches = Batches { least: 1, most: None };
        for batch in ranges.iter().filter_map(|ranges| ranges.first()) {
            let least = smallest.filter(|_| batch.least <= 2).unwrap_or(batch.least);
            batches.least = batches.least.max(least);
            batches.most = batches.most.into_iter().chain(batch.most).min();
        }
        let noted_guards = noted.unwrap_or_default().iter().map(|noted| (&noted.guard, noted.place.as_str()));
        let own = document.guards_code.iter().flatten().map(|guard| (guard, ""));
        let mut guards: Vec<Guard> = Vec::new();
        // The noted ones first: they have places.
        for (text, place) in noted_guards.chain(own) {
            if guards.iter().all(|known| known.text != *text) {
                let guard = Guard::read(text, place, placeholders, names);
                guards.push(guard.ok_or_else(|| archive.error(Problem::Guard(shown(text))))?);
            }
        }
        let is_known = noted.is_some() || document.guards_code.is_some();
        let mut read = Self { names: names.to_vec(), guards, ranges, batches, is_known };
        read.batches = read.narrowed(None).map_err(|problem| archive.error(problem))?;
        Ok(read)
    }

    /// Checks the program for inputs of these shapes, without the batch.
    pub(super) fn set_lengths(&mut self, shapes: &[Vec<i64>]) -> Result<(), Problem> {
        self.batches = self.narrowed(Some(shapes))?;
        Ok(())
    }

    /// Returns the batches for which all guards are true that depend on nothing else, or on these shapes.
    fn narrowed(&self, shapes: Option<&[Vec<i64>]>) -> Result<Batches, Problem> {
        for (input, shape) in shapes.unwrap_or_default().iter().enumerate() {
            for (number, length) in shape.iter().enumerate() {
                let range = self.ranges.get(input).and_then(|ranges| ranges.get(number + 1));
                if let Some(range) = range.filter(|range| !range.has(*length)) {
                    let (input, range) = (self.names[input].clone(), range.to_string());
                    return Err(Problem::Length { input, dim: number + 1, length: *length, range });
                }
            }
        }
        // Those of the batch alone have narrowed it when they were read.
        let mut guards = self.guards.iter().filter(|guard| guard.has_lengths() == shapes.is_some());
        guards.try_fold(self.batches, |batches, guard| guard.narrow(batches, shapes))
    }
}

impl std::fmt::Display for Batches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.most {
            Some(most) if most == self.least => write!(f, "{most}"),
            Some(most) => write!(f, "{} to {most}", self.least),
            None => write!(f, "{} or more", self.least),
        }
    }
}

impl Guard {
    fn read(text: &str, place: &str, placeholders: &[graph::Input], names: &[String]) -> Option<Self> {
        let expression = parse::parse(text)?;
        let size = |length: &Length| {
            if length.dim == 0 {
                return Some(Size::Batch);
            }
            let known =
                |(name, input): (&String, &graph::Input)| *name == length.input || input.name == length.input;
            let input = names.iter().zip(placeholders).position(known)?;
            Some(Size::Length { input, dim: length.dim })
        };
        let sizes = expression.lengths.iter().map(size).collect::<Option<Vec<_>>>()?;
        let place = if place.is_empty() { String::new() } else { format!(" ({})", shown(place)) };
        Some(Self { text: text.to_owned(), place, expression, sizes })
    }

    fn has_lengths(&self) -> bool {
        self.sizes.iter().any(|size| *size != Size::Batch)
    }

    /// Returns the part of `batches` for which the guard is true, which must be all of the small ones.
    fn narrow(&self, batches: Batches, shapes: Option<&[Vec<i64>]>) -> Result<Batches, Problem> {
        let shape = |input: usize, dim: usize| shapes?.get(input)?.get(dim - 1).copied();
        let lengths = self.sizes.iter().map(|size| match size {
            Size::Batch => Some(0),
            Size::Length { input, dim } => shape(*input, *dim),
        });
        let Some(mut lengths) = lengths.collect::<Option<Vec<i64>>>() else {
            return Err(self.problem("inputs of another rank".to_owned()));
        };
        let mut holds = |batch: i64| {
            for (length, _) in lengths.iter_mut().zip(&self.sizes).filter(|(_, size)| **size == Size::Batch) {
                *length = batch;
            }
            self.expression.holds(&lengths) == Some(true)
        };
        if !self.sizes.contains(&Size::Batch) {
            let about = if self.has_lengths() { "inputs of these lengths" } else { "all inputs" };
            return if holds(0) { Ok(batches) } else { Err(self.problem(about.to_owned())) };
        }
        let Batches { mut least, mut most } = batches;
        // One sample: the export assumes two.
        if least == 1 && !holds(1) {
            least = 2;
        }
        let last = most.unwrap_or(LARGEST).min(LARGEST);
        if let Some(batch) = (least..=last).find(|batch| !holds(*batch)) {
            return Err(self.problem(format!("a batch of {batch}")));
        }
        let powers = (LARGEST.ilog2() + 1..=LARGEST_POWER).map(|power| 1i64 << power);
        let larger = powers.take_while(|power| most.is_none_or(|most| *power <= most)).chain(most);
        let mut valid = LARGEST;
        for batch in larger.filter(|batch| *batch > LARGEST) {
            if !holds(batch) {
                most = Some(valid);
                break;
            }
            valid = batch;
        }
        Ok(Batches { least, most })
    }

    fn problem(&self, about: String) -> Problem {
        Problem::False { guard: shown(&self.text), place: self.place.clone(), about }
    }
}

/// Returns a text for a message: a part of it, on one line.
fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push_str("...");
    }
    shown
}

/// Returns the ranges of symbols.
fn limits(
    archive: &Archive,
    constraints: &BTreeMap<String, schema::Range>,
) -> Result<BTreeMap<String, Batches>> {
    let limit = |(symbol, range): (&String, &schema::Range)| {
        let (least, most) = (range.min_val.unwrap_or(1).max(0), range.max_val);
        if most.is_some_and(|most| most < least) {
            let words = format!("the range of `{}` has minimum {least} above maximum", shown(symbol));
            return Err(archive.error(Problem::Damaged(format!("{words} {}", most.unwrap_or_default()))));
        }
        Ok((symbol.clone(), Batches { least, most }))
    };
    constraints.iter().map(limit).collect()
}

#[cfg(test)]
mod tests;
