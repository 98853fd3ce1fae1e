//! The columns of tables, and the parts of samples in archives and Parquet files: for a look at data without a recipe.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use dtrain_recipe::Separator;
use serde_json::{Map, Value};

use super::super::error::DataError;
use super::super::parquet_file::ParquetFile;
use super::super::table_problem::{SPLIT, TableProblem};
use super::csv;
use super::json_lines;
use super::table_file::{self, Form, Json};
use super::tar_index::TarIndex;

/// Rows that are kept.
const ROWS: usize = 1000;
/// Different texts of a column that are kept.
const DIFFERENT: usize = 65;

/// A table without a recipe.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preview {
    pub columns: Vec<String>,
    /// The first rows, with a cell for each column.
    pub rows: Vec<Vec<String>>,
    /// The different texts of each column in all rows, up to 65.
    pub different: Vec<BTreeSet<String>>,
    /// All rows.
    pub count: usize,
}

/// Reads the columns and the first rows of a table.
///
/// # Errors
/// A file that is no table.
pub fn table(path: &Path) -> Result<Preview, DataError> {
    match json_lines::is_file(path) {
        true => table_file::read(path, Form { json: Json::Expected, ..Form::SAMPLES }, of_json),
        false => table_file::read(path, Form::SAMPLES, |text| {
            let (header, rows) = csv::read(text, Separator::Auto, "image,label,split", |cells| {
                cells.iter().any(|cell| cell == SPLIT)
            })?;
            let columns: Vec<String> = header.cells.iter().map(ToString::to_string).collect();
            let mut preview = Preview { columns, ..Preview::default() };
            for row in rows {
                let cells = row?.cells;
                if cells.iter().any(|cell| !cell.is_empty()) {
                    preview.add(cells.iter().map(|cell| cell.to_string()).collect());
                }
            }
            Ok(preview)
        }),
    }
}

/// Reads objects, each in a line. The keys of objects within objects have dots.
fn of_json(text: &str) -> Result<Preview, csv::LineProblem> {
    let mut preview = Preview::default();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        // A training names the line that is no object.
        let Ok(Value::Object(object)) = serde_json::from_str::<Value>(line) else { continue };
        let mut cells = Vec::new();
        flatten("", &object, &mut cells);
        for (key, _) in &cells {
            if !preview.columns.contains(key) {
                preview.columns.push(key.clone());
            }
        }
        let cell = |column: &String| {
            let found = cells.iter().find(|(key, _)| key == column);
            found.map(|(_, text)| text.clone()).unwrap_or_default()
        };
        let row = preview.columns.iter().map(cell).collect();
        preview.add(row);
    }
    match preview.columns.is_empty() {
        true => Err((1, TableProblem::NoObjects)),
        false => Ok(preview),
    }
}

fn flatten(before: &str, object: &Map<String, Value>, cells: &mut Vec<(String, String)>) {
    for (key, value) in object {
        let key = format!("{before}{key}");
        match value {
            Value::Object(inner) => flatten(&format!("{key}."), inner, cells),
            Value::String(text) => cells.push((key, text.clone())),
            Value::Null => cells.push((key, String::new())),
            other => cells.push((key, other.to_string())),
        }
    }
}

impl Preview {
    fn add(&mut self, row: Vec<String>) {
        self.different.resize(self.columns.len(), BTreeSet::new());
        for (different, cell) in self.different.iter_mut().zip(&row) {
            if different.len() < DIFFERENT && !different.contains(cell) {
                different.insert(cell.clone());
            }
        }
        self.count += 1;
        if self.rows.len() < ROWS {
            self.rows.push(row);
        }
    }

    /// Returns the cells of a column in the first rows.
    pub fn cells(&self, column: usize) -> impl Iterator<Item = &str> {
        self.rows.iter().filter_map(move |row| row.get(column).map(String::as_str))
    }
}

/// Returns the endings of the members of a tar archive, the first of each with its text if it is short.
///
/// # Errors
/// A file that is no archive of samples.
pub fn shard(path: &Path) -> Result<Vec<(String, Option<String>)>, DataError> {
    let mut found: Vec<(String, Option<String>)> = Vec::new();
    for member in TarIndex::of(path)?.members {
        let name = member.name.rsplit('/').next().unwrap_or_default();
        let Some((_, ending)) = name.split_once('.').filter(|(key, _)| !key.is_empty()) else { continue };
        let ending = ending.to_ascii_lowercase();
        if !found.iter().any(|(known, _)| *known == ending) {
            found.push((ending, member.text));
        }
    }
    Ok(found)
}

/// Returns the columns of a Parquet file, each with whether its cells are bytes.
///
/// # Errors
/// A file that is no Parquet file.
pub fn parquet(path: &Path) -> io::Result<Vec<(String, bool)>> {
    let file = ParquetFile::open(path)?;
    let of = |(leaf, name): (usize, String)| (name, file.is_binary(leaf));
    Ok(file.columns().into_iter().enumerate().map(of).collect())
}
