//! The table beside the images of a set: numbers in `targets.csv`, or classes in `classes.csv`.
//!
//! The first line is `file,NAME,...`. Each further line has the path of an image below the table's folder and
//! a cell for each name.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Component, Path};

use dtrain_recipe::Separator;

use super::super::error::DataError;
use super::super::ignored::{Ignored, is_image};
use super::super::paths::Listing;
use super::super::table_problem::{CLASSES, TARGETS, TableProblem};
use super::csv::{self, LineProblem, Row};
use super::decimals::Decimals;
use super::listing::{SPLITS, image_files};
use super::rows::Problems;
use super::table_file::{self, Form, Json};
use super::unicode_form;

/// The name of the first column.
const FILE: &str = "file";

/// A kind of table beside images.
#[derive(Debug, Clone, Copy)]
pub(super) struct Beside {
    pub(super) file: &'static str,
    example: &'static str,
    /// The remedy if it is missing.
    remedy: &'static str,
}

impl Beside {
    pub(super) const NUMBERS: Self = Self {
        file: TARGETS,
        example: "file,NAME,...",
        remedy: "write a line `file,NAME,...` and a line for each image into it",
    };
    pub(super) const CLASSES: Self = Self {
        file: CLASSES,
        example: "file,classes",
        remedy: "write a line `file,classes` and a line for each image into it, with `|` between the classes of an image",
    };

    /// Lists the images below `root/split` by path, each with the value of its line. Every image needs a line and every line
    /// an image.
    pub(super) fn read<T>(
        self,
        root: &Path,
        split: &str,
        parse: impl FnOnce(&str, &'static str) -> Result<TargetTable<T>, LineProblem>,
    ) -> Result<Images<T>, DataError> {
        let folder = root.join(split);
        let mut ignored = Ignored::default();
        let mut images = image_files(root, &folder, SPLITS, is_image, &mut ignored)?;
        images.sort(0);
        let path = folder.join(self.file);
        let form = Form { remedy: self.remedy, json: Json::Foreign };
        let table = table_file::read(&path, form, |text| parse(text, self.example))?;
        let mut by_file: HashMap<_, _> = table.rows.into_iter().map(|row| (row.file.clone(), row)).collect();
        let (mut rows, mut missing) = (Vec::new(), Vec::new());
        for image in (0..images.len()).map(|at| images.path(at)) {
            match by_file.remove(&image) {
                Some(row) => rows.push(row),
                None => missing.push(image),
            }
        }
        let mut left: Vec<_> = by_file.into_values().collect();
        left.sort_by_key(|row| row.line);
        let mut problems = Problems::default();
        for (number, row) in left.into_iter().enumerate() {
            // The error shows the first.
            let remedy = match number {
                0 => unicode_form::remedy(&folder, &missing, [&row.file]),
                _ => None,
            };
            problems.add(row.line, TableProblem::NoImage(row.file, remedy));
        }
        problems.checked().map_err(|(line, problem)| DataError::Table(path, line, problem))?;
        match missing.is_empty() {
            true => Ok(Images { images, rows, names: table.names, ignored }),
            false => Err(DataError::NoTargets(folder, missing, self.file)),
        }
    }
}

/// Images with the rows of their table, in the same order.
pub(super) struct Images<T> {
    pub(super) images: Listing,
    pub(super) rows: Vec<TableRow<T>>,
    pub(super) names: Vec<String>,
    /// Files that are no images.
    pub(super) ignored: Ignored,
}

/// A table as read.
#[derive(Debug, Clone, PartialEq)]
pub struct TargetTable<T> {
    /// The names of the columns after the first.
    pub names: Vec<String>,
    pub rows: Vec<TableRow<T>>,
}

/// A line of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct TableRow<T> {
    /// From 1.
    pub line: usize,
    /// The path of the image, with `/` between names.
    pub file: String,
    /// What the other cells state.
    pub value: T,
}

/// Reads a table of numbers from its text; an error has the number of its line, from 1.
pub(super) fn numbers(
    text: &str,
    separator: Separator,
    example: &'static str,
) -> Result<TargetTable<Vec<f32>>, LineProblem> {
    let mut decimals = None;
    let table = parse(text, separator, example, |separator, line, names, cells| {
        let decimals = decimals.get_or_insert_with(|| Decimals::new(separator));
        names.iter().zip(cells).map(|(name, text)| decimals.read(line, name, text)).collect()
    })?;
    decimals.map_or(Ok(()), Decimals::checked)?;
    Ok(table)
}

/// Reads a table whose lines have values that `value` reads of their cells; it gets what ends a cell, the
/// line, the names of the columns and their cells.
pub(super) fn parse<T: Default>(
    text: &str,
    separator: Separator,
    example: &'static str,
    mut value: impl FnMut(char, usize, &[String], &[Cow<'_, str>]) -> Result<T, TableProblem>,
) -> Result<TargetTable<T>, LineProblem> {
    let (header, lines) = csv::read(text, separator, example, |cells| cells[0] == FILE)?;
    let names = names(header.cells).map_err(|problem| (header.line, problem))?;
    let separator = lines.separator();
    let (mut rows, mut seen, mut problems) = (Vec::new(), HashMap::new(), Problems::default());
    for read in lines {
        let Row { line, cells } = read?;
        let (path, cells) = match cells.as_slice() {
            [path, cells @ ..] if cells.len() == names.len() => (path, cells),
            _ => return Err((line, TableProblem::Fields(cells.len(), names.len() + 1, separator == ','))),
        };
        let file = problems.value(line, below(path)).to_owned();
        if let Some(earlier) = seen.insert(file.clone(), line) {
            problems.add(line, TableProblem::Duplicate(file.clone(), earlier));
        }
        let value = problems.value(line, value(separator, line, &names, cells));
        rows.push(TableRow { line, file, value });
    }
    problems.checked()?;
    Ok(TargetTable { names, rows })
}

fn names(header: Vec<Cow<'_, str>>) -> Result<Vec<String>, TableProblem> {
    // A row has at least one cell.
    let (first, names) = (&header[0], &header[1..]);
    if first != FILE {
        return Err(TableProblem::NoHeader(first.to_string()));
    }
    if names.is_empty() {
        return Err(TableProblem::NoNames);
    }
    for (number, name) in names.iter().enumerate() {
        if name.is_empty() {
            return Err(TableProblem::EmptyName(number + 1));
        }
        if names[..number].contains(name) {
            return Err(TableProblem::DuplicateName(name.to_string()));
        }
    }
    Ok(names.iter().map(ToString::to_string).collect())
}

/// Returns a path without `./` at its start, if it stays below the folder that it is joined to and has names that a file system
/// takes.
pub(super) fn below(path: &str) -> Result<&str, TableProblem> {
    /// The most bytes of a name, on Linux.
    const LONGEST: usize = 255;
    let is_name = |part: Component<'_>| matches!(part, Component::Normal(name) if name.len() <= LONGEST);
    let inner = path.trim_start_matches("./");
    match !inner.is_empty() && Path::new(inner).components().all(is_name) {
        true => Ok(inner),
        false => Err(TableProblem::Path(path.to_owned())),
    }
}

#[cfg(test)]
mod tests;
