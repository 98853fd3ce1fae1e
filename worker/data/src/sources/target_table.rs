//! The table of numbers beside the images of a split: `targets.csv`.
//!
//! The first line is `file,NAME,...`. Each further line has the path of an image below the table's folder and
//! a number for each name.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Component, Path};

use super::super::table_problem::TableProblem;
use super::csv::{self, Row};

/// The name of the first column.
const FILE: &str = "file";

/// A table as read.
#[derive(Debug, Clone, PartialEq)]
pub struct TargetTable {
    /// The names of the numbers.
    pub names: Vec<String>,
    pub rows: Vec<TableRow>,
}

/// A line of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct TableRow {
    /// From 1.
    pub line: usize,
    /// The path of the image, with `/` between names.
    pub file: String,
    pub numbers: Vec<f32>,
}

impl TargetTable {
    /// Reads a table from its text; an error has the number of its line, from 1.
    pub fn parse(text: &str) -> Result<Self, (usize, TableProblem)> {
        let (header, lines) = csv::read(text, "file,NAME,...", |cells| cells[0] == FILE)?;
        let names = names(header.cells).map_err(|problem| (header.line, problem))?;
        let (mut rows, mut seen) = (Vec::new(), HashMap::new());
        for read in lines {
            let Row { line, cells } = read?;
            let row = row(line, &cells, &names).map_err(|problem| (line, problem))?;
            if let Some(earlier) = seen.insert(row.file.clone(), line) {
                return Err((line, TableProblem::Duplicate(row.file, earlier)));
            }
            rows.push(row);
        }
        Ok(Self { names, rows })
    }
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

fn row(line: usize, fields: &[Cow<'_, str>], names: &[String]) -> Result<TableRow, TableProblem> {
    let (file, texts) = match fields {
        [file, texts @ ..] if texts.len() == names.len() => (file, texts),
        _ => return Err(TableProblem::Fields(fields.len(), names.len() + 1)),
    };
    let file = below(file)?;
    let numbers = names.iter().zip(texts).map(|(name, text)| number(name, text)).collect::<Result<_, _>>()?;
    Ok(TableRow { line, file: file.to_string(), numbers })
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

/// Reads the finite number of the column `name`.
pub(super) fn number(name: &str, text: &str) -> Result<f32, TableProblem> {
    let number = text.parse().ok().filter(|number: &f32| number.is_finite());
    number.ok_or_else(|| TableProblem::NotANumber { name: name.to_owned(), text: text.to_owned() })
}

#[cfg(test)]
mod tests;
