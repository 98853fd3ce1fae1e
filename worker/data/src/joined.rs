//! Samples of several sources.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::drawings::Drawings;
use super::error::DataError;
use super::ignored::Ignored;
use super::origin::SourcePart;
use super::packed::Packed;
use super::paths::Paths;
use super::pixel_target::PixelRule;
use super::samples::{ClassSets, Files, List, ListValues, Samples};
use super::stored::{Part, Parts};
use super::texts::Texts;
use super::token_lists::TextForm;

impl Samples {
    /// Joins the samples of sources, in their order, each with its weight. Classes are those of all sources, by name.
    ///
    /// # Errors
    /// Sources with other fields. Panics without a source.
    pub fn join(mut sources: Vec<(Self, Option<f64>)>) -> Result<Self, DataError> {
        if sources.len() == 1 {
            return Ok(sources.remove(0).0);
        }
        let (first, others) = sources.split_first().unwrap_or_else(|| panic!("no source to join"));
        let parts: Vec<SourcePart> = sources.iter().map(|(samples, weight)| part(samples, *weight)).collect();
        for (at, (other, _)) in others.iter().enumerate() {
            same_fields((&first.0, &parts[0]), (other, &parts[at + 1]))?;
            same_fields((other, &parts[at + 1]), (&first.0, &parts[0]))?;
        }
        let mut ignored = Ignored::default();
        sources.iter().for_each(|(samples, _)| ignored.add(&samples.ignored));
        let all: Vec<&Self> = sources.iter().map(|(samples, _)| samples).collect();
        let lists = first.0.lists.iter().map(|list| join_lists(list, &all));
        let lists = lists.collect::<Result<_, _>>()?;
        let names: BTreeSet<&str> = all.iter().map(|samples| samples.set.as_str()).collect();
        let set = names.into_iter().collect::<Vec<_>>().join(" and ");
        let root = first.0.root.clone();
        Ok(Self { root, set, table: None, sources: parts, lists, size: None, ignored })
    }

    /// Returns the folders or tables of the sources, for messages; None if the samples are of one source.
    pub(super) fn places(&self) -> Option<PathBuf> {
        let places: Vec<_> = self.sources.iter().map(|part| part.place().display().to_string()).collect();
        (!places.is_empty()).then(|| places.join(" and ").into())
    }
}

fn part(samples: &Samples, weight: Option<f64>) -> SourcePart {
    let Samples { root, set, table, .. } = samples.clone();
    let folder = samples.images().next().map(|files| files.folder.clone()).unwrap_or_default();
    SourcePart { samples: samples.count(), weight, root, set, folder, table }
}

/// Checks that the second source has the fields of the first.
fn same_fields(
    (one, first): (&Samples, &SourcePart),
    (other, second): (&Samples, &SourcePart),
) -> Result<(), DataError> {
    for list in &one.lists {
        let found = other.lists.iter().find(|of_other| of_other.field == list.field);
        let (has, lacks) = (content(&list.values), found.map(|list| content(&list.values)));
        if lacks.as_ref() != Some(&has) {
            let at = |what: &str, part: &SourcePart| format!("{what} in {}", part.place().display());
            return Err(DataError::OtherFields {
                field: list.field.clone(),
                one: at(&has, first),
                other: at(lacks.as_deref().unwrap_or("missing"), second),
            });
        }
    }
    Ok(())
}

/// Says what a field is.
fn content(values: &ListValues) -> String {
    match values {
        ListValues::Images(files) if files.len() == 1 => "an image".to_owned(),
        ListValues::Images(files) => format!("a list of {} images", files.len()),
        ListValues::Pixels(_, PixelRule::Mask(_)) => "a mask".to_owned(),
        ListValues::Drawn(_, PixelRule::Mask(rule)) => {
            format!("a mask of annotations of the classes {}", rule.names.join(", "))
        }
        ListValues::Drawn(_, PixelRule::Map(_)) => "a map of annotations".to_owned(),
        ListValues::Pixels(_, PixelRule::Map(_)) => "a map".to_owned(),
        ListValues::Classes { .. } => "a class".to_owned(),
        ListValues::ClassSets { .. } => "any number of classes".to_owned(),
        ListValues::Numbers { names, .. } => format!("the numbers {}", names.join(", ")),
        ListValues::Texts(_, TextForm::Text) | ListValues::Tokens(_) => "a text".to_owned(),
        ListValues::Texts(_, TextForm::Prompt) => "a prompt".to_owned(),
        ListValues::Texts(_, TextForm::Answer) => "a prompt with its answer".to_owned(),
        ListValues::Texts(_, TextForm::Chat) => "a chat".to_owned(),
    }
}

/// Joins a field of all sources, which have it.
fn join_lists(list: &List, sources: &[&Samples]) -> Result<List, DataError> {
    let of = |samples: &'_ Samples| samples.lists.iter().position(|of| of.field == list.field);
    let lists: Vec<&ListValues> =
        sources.iter().filter_map(|samples| Some(&samples.lists[of(samples)?].values)).collect();
    let files = |pick: &dyn Fn(&ListValues) -> Option<Files>| {
        let all: Vec<Files> = lists.iter().filter_map(|values| pick(values)).collect();
        let parts: Vec<_> = all.iter().map(|files| (files.folder.as_str(), &files.paths)).collect();
        let paths = Paths::join(&parts)?;
        let in_parts = all.iter().any(|files| files.parts.is_some());
        let parts = all.iter().flat_map(|files| {
            let part = |at| files.parts.as_ref().map_or(Part::Whole, |parts| parts.get(at));
            (0..files.paths.len()).map(part)
        });
        let parts = in_parts.then(|| Parts::write(parts)).transpose()?;
        Ok::<_, DataError>(Files { folder: String::new(), paths, parts })
    };
    let values = match &list.values {
        ListValues::Images(images) => {
            let column = |at: usize| {
                files(&|values| match values {
                    ListValues::Images(images) => Some(images[at].clone()),
                    _ => None,
                })
            };
            ListValues::Images((0..images.len()).map(column).collect::<Result<_, _>>()?)
        }
        ListValues::Pixels(_, rule) => {
            let of_pixels = |values: &ListValues| match values {
                ListValues::Pixels(files, _) => Some(files.clone()),
                _ => None,
            };
            ListValues::Pixels(files(&of_pixels)?, rule.clone())
        }
        ListValues::Drawn(_, rule) => {
            let of_sources = lists.iter().filter_map(|values| match values {
                ListValues::Drawn(drawings, _) => Some(drawings),
                _ => None,
            });
            ListValues::Drawn(Drawings::join(&of_sources.collect::<Vec<_>>())?, rule.clone())
        }
        ListValues::Classes { .. } => {
            let of_sources = lists.iter().filter_map(|values| match values {
                ListValues::Classes { numbers, .. } => Some(numbers),
                _ => None,
            });
            let (names, new) = union(&lists);
            let numbers = of_sources
                .zip(&new)
                .flat_map(|(numbers, new)| numbers.iter().map(move |&old| new[old as usize]));
            ListValues::Classes { numbers: Packed::write(numbers)?, names }
        }
        ListValues::ClassSets { .. } => {
            let of_sources = lists.iter().filter_map(|values| match values {
                ListValues::ClassSets { sets, .. } => Some(sets),
                _ => None,
            });
            let (names, new) = union(&lists);
            let of_samples = of_sources.zip(&new).flat_map(|(sets, new)| {
                (0..sets.count()).map(move |at| sets.of(at).iter().map(move |&old| new[old as usize]))
            });
            ListValues::ClassSets { sets: ClassSets::write(of_samples)?, names }
        }
        ListValues::Numbers { names, .. } => {
            let values = lists.iter().flat_map(|values| match values {
                ListValues::Numbers { values, .. } => values,
                _ => [].as_slice(),
            });
            ListValues::Numbers { names: names.clone(), values: Packed::write(values.copied())? }
        }
        ListValues::Texts(columns, form) => {
            let column = |at: usize| {
                let texts = lists.iter().filter_map(|values| match values {
                    ListValues::Texts(columns, _) => Some(columns[at].iter()),
                    _ => None,
                });
                Texts::write(texts.flatten())
            };
            ListValues::Texts((0..columns.len()).map(column).collect::<Result<_, _>>()?, *form)
        }
        // Sources are joined before their texts are tokens.
        ListValues::Tokens(tokens) => ListValues::Tokens(tokens.clone()),
    };
    Ok(List { field: list.field.clone(), values })
}

/// Returns the names of the classes of all sources in order, and for each source the number there of each of its classes.
fn union(lists: &[&ListValues]) -> (Vec<String>, Vec<Vec<u32>>) {
    let named = |values: &&'_ ListValues| match values {
        ListValues::Classes { names, .. } | ListValues::ClassSets { names, .. } => names.clone(),
        _ => Vec::new(),
    };
    let of_sources: Vec<Vec<String>> = lists.iter().map(named).collect();
    let all: BTreeSet<&str> = of_sources.iter().flatten().map(String::as_str).collect();
    let number: BTreeMap<&str, u32> = all.iter().copied().zip(0..).collect();
    let new = of_sources.iter().map(|names| names.iter().map(|name| number[name.as_str()]).collect());
    (all.iter().map(|name| (*name).to_owned()).collect(), new.collect())
}

#[cfg(test)]
mod tests;
