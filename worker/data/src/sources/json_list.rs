//! Lists of images with their classes in a JSON file for each set, as those of few-shot learning: `base.json`, `val.json`,
//! `novel.json` (Chen et al. 2019, arXiv 1904.04232).

use std::collections::{HashMap, HashSet};
use std::path::Path;

use dtrain_recipe::ColumnKind;
use serde::Deserialize;

use super::super::error::DataError;
use super::super::samples::Samples;
use super::super::table_problem::TableProblem;
use super::Request;
use super::class_sets::fields;
use super::csv::LineProblem;
use super::row_fields::Table;
use super::rows::{Problems, Rows};
use super::table_file::{self, Form, Json};

#[derive(Deserialize)]
struct Lists {
    label_names: Vec<String>,
    image_names: Vec<String>,
    /// For each image the number of its name in `label_names`.
    image_labels: Vec<usize>,
}

/// Lists the images of the file `set` below the root: the fields `image` and `label`. Their paths are below the root, also if
/// the file has them in full.
pub(super) fn list(request: &Request<'_>) -> Result<Samples, DataError> {
    let &Request { root, set, reading, .. } = request;
    let path = root.join(set);
    let form = Form {
        remedy: "set data.train and data.test to lists below data.root, such as base.json",
        json: Json::Expected,
    };
    let rows = table_file::read(&path, form, |text| {
        let lists: Lists = serde_json::from_str(text)
            .map_err(|error| (error.line(), TableProblem::NoLists(error.to_string())))?;
        rows(&lists, root)
    })?;
    let table = Table { path: &path, root: root.to_owned(), set, rows, has_lines: false };
    table.samples(&fields(ColumnKind::Class), reading)
}

fn rows(lists: &Lists, root: &Path) -> Result<Rows, LineProblem> {
    let Lists { label_names, image_names, image_labels } = lists;
    if image_names.len() != image_labels.len() {
        return Err((0, TableProblem::Lengths(image_names.len(), image_labels.len())));
    }
    if image_names.is_empty() {
        return Err((0, TableProblem::EmptyList));
    }
    let mut known = HashSet::new();
    if let Some(name) = label_names.iter().find(|name| !known.insert(name.as_str())) {
        return Err((0, TableProblem::DuplicateName(name.clone())));
    }
    let mut rows = Rows::new(0);
    let (mut seen, mut problems) = (HashMap::new(), Problems::default());
    for (entry, (name, &label)) in image_names.iter().zip(image_labels).enumerate() {
        let inner = Path::new(name).strip_prefix(root).ok().and_then(Path::to_str).unwrap_or(name);
        if inner.starts_with('/') {
            problems.add(entry, TableProblem::NotBelow(name.clone(), root.display().to_string()));
        }
        if let Some(earlier) = seen.insert(inner, entry) {
            problems.add(entry, TableProblem::DuplicateEntry(name.clone(), earlier));
        }
        if label >= label_names.len() {
            problems.add(entry, TableProblem::NoLabelName(label, label_names.len()));
        }
        rows.add(inner);
        rows.end_cell();
        rows.add(label_names.get(label).map_or("", String::as_str));
        rows.end_cell();
        rows.end_row(entry);
    }
    let of_entry = |(entry, problem)| (0, TableProblem::Entry(entry, Box::new(problem)));
    problems.checked().map_err(of_entry)?;
    Ok(rows)
}

#[cfg(test)]
mod tests;
