//! The whole report, for programs.

use serde::Serialize;

use crate::documents::TextReport;
use crate::duplicates::{Duplicates, Repeated};
use crate::set::SetReport;
use crate::values::LoadedValues;

/// What the data of a recipe holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// The recipe, its task and the kind of its data.
    pub recipe: String,
    pub task: String,
    pub kind: String,
    /// Whether all files of all sets can be trained on, and if not, why a training stops.
    pub trains: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// What is probably wrong, each with a remedy.
    pub problems: Vec<String>,
    /// Warnings of the training's own survey.
    pub warnings: Vec<String>,
    /// Sets of files.
    pub files: Vec<SetReport>,
    /// The data sets that a training gets; empty if it stops.
    pub sets: Vec<DataSet>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<TextReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicates: Option<Duplicates>,
    /// The values of some training samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub values: Option<LoadedValues>,
    /// The picture that was drawn, and what it shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub picture: Option<String>,
}

/// A data set as a training gets it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DataSet {
    pub name: String,
    pub samples: usize,
    /// The single samples that they are made of: more or fewer for pairs and episodes.
    pub singles: usize,
    /// The fields of a sample, and their lengths.
    pub fields: Vec<(String, Vec<usize>)>,
}

impl Report {
    /// Finds what is probably wrong.
    pub fn judge(&mut self) {
        let mut problems = Vec::new();
        if let Some(duplicates) = &self.duplicates {
            problems.extend(duplicates.across.iter().map(leak));
            let conflicts = &duplicates.conflicts;
            if conflicts.samples > 0 {
                let pairs = conflicts.first.iter().map(|[(path, class), (other, other_class)]| {
                    format!("{path} ({class}) and {other} ({other_class})")
                });
                problems.push(format!(
                    "{} of the same content as another {} another class: {}; keep each image in the class that it shows",
                    samples(conflicts.samples),
                    if conflicts.samples == 1 { "has" } else { "have" },
                    list(pairs.collect(), conflicts.samples)
                ));
            }
        }
        if let Some(documents) = self.text.as_ref().and_then(|text| text.documents.as_ref())
            && let Some((test, train)) = documents.first_leak
        {
            problems.push(format!(
                "{} of the test or validation part {} also in the training part: document {test} is document {train}; remove one of each, or \
                 the figures count what the model has seen",
                dtrain_common::text::counted(documents.leaked, "document"),
                if documents.leaked == 1 { "is" } else { "are" },
            ));
        }
        self.problems = problems;
    }
}

fn leak(repeated: &Repeated) -> String {
    let Repeated { set, of, samples: count, first } = repeated;
    let pairs = first.iter().map(|(copy, original)| format!("{copy} is {original}"));
    format!(
        "{} of {set} {} also in {of}: {}; remove them from one of the sets, or the figures of {set} count what the model has seen",
        samples(*count),
        if *count == 1 { "is" } else { "are" },
        list(pairs.collect(), *count)
    )
}

pub(crate) fn samples(count: usize) -> String {
    dtrain_common::text::counted(count, "sample")
}

/// Joins the first of `count` things, and counts the rest.
pub(crate) fn list(first: Vec<String>, count: usize) -> String {
    match count.saturating_sub(first.len()) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}
