//! A table of samples: a file with a line for each sample, whose paths are below the table's folder. It is a CSV file, or has
//! a JSON object in each line.
//!
//! The first line of a CSV file names the columns. The column `split` states to which set a sample belongs.

use std::borrow::Cow;
use std::path::Path;

use dtrain_recipe::{ColumnKind, FieldColumns, Separator};

use super::super::error::DataError;
use super::super::samples::{List, ListValues, Samples};
pub use super::super::table_problem::SPLIT;
use super::super::table_problem::TableProblem;
use super::super::token_lists::TextForm;
use super::csv::{self, LineProblem, Row};
use super::row_fields::Table;
use super::rows::{ADD_SPLIT, Chosen, Rows, have_files, name_one};
use super::table_file::{self, Form, Json};
use super::{Reading, Request, json_lines};

pub(super) fn list(request: &Request<'_>) -> Result<Samples, DataError> {
    scan(request.root, request.set, request.fields, request.reading)
}

/// Reads the samples of the set `set` from the table at `path`, in the table's order.
pub fn scan(
    path: &Path,
    set: &str,
    fields: &[FieldColumns],
    reading: Reading<'_>,
) -> Result<Samples, DataError> {
    let rows = match read(path, Some([reading.split, set]), fields, reading.separator) {
        Err(DataError::Table(_, _, TableProblem::NoColumn(missing, ..)))
            if reading.is_undivided && missing == reading.split =>
        {
            read(path, None, fields, reading.separator)
        }
        other => other,
    }?;
    of_file(path, set, rows).samples(fields, reading)
}

/// Reads all lines of the table at `path` as inputs of a prediction, whatever their set: the images of `fields`, and the numbers
/// and texts whose columns the table has, of a prompt and its answer the prompt at least. One field at least it must have.
pub(super) fn scan_inputs(path: &Path, fields: &[FieldColumns]) -> Result<Samples, DataError> {
    let mut fields: Vec<FieldColumns> =
        fields.iter().filter(|field| field.kind.is_input()).cloned().collect();
    let mut prompts = Vec::new();
    let rows = loop {
        let problem = match read(path, None, &fields, Separator::Auto) {
            Ok(rows) => break rows,
            Err(problem) => problem,
        };
        let DataError::Table(_, _, TableProblem::NoColumn(missing, ..)) = &problem else {
            return Err(problem);
        };
        let optional =
            |field: &FieldColumns| field.kind != ColumnKind::Image && field.columns.contains(missing);
        match fields.iter().position(optional) {
            Some(at) if fields[at].kind.is_text() && fields[at].columns[0] != *missing => {
                fields[at].columns.truncate(1);
                prompts.push(fields[at].field.clone());
            }
            Some(at) if fields.len() > 1 => drop(fields.remove(at)),
            _ => return Err(problem),
        }
    };
    let mut samples = of_file(path, "the input", rows).inputs(&fields)?;
    for List { field, values } in &mut samples.lists {
        if let (ListValues::Texts(_, form), true) = (values, prompts.contains(field)) {
            *form = TextForm::Prompt;
        }
    }
    Ok(samples)
}

fn of_file<'a>(path: &'a Path, set: &'a str, rows: Rows) -> Table<'a> {
    let root = path.parent().unwrap_or(Path::new("")).to_owned();
    Table { path, root, set, rows, has_lines: true }
}

/// Reads the rows of a set, which the column `split` names; None: of all sets, without that column.
fn read(
    path: &Path,
    of: Option<[&str; 2]>,
    fields: &[FieldColumns],
    separator: Separator,
) -> Result<Rows, DataError> {
    match json_lines::is_file(path) {
        true => {
            let form = Form { json: Json::Expected, ..Form::SAMPLES };
            table_file::read(path, form, |text| json_lines::parse(text, of, fields))
        }
        false => table_file::read(path, Form::SAMPLES, |text| parse(text, of, fields, separator)),
    }
}

fn parse(
    text: &str,
    of: Option<[&str; 2]>,
    fields: &[FieldColumns],
    separator: Separator,
) -> Result<Rows, LineProblem> {
    let known = match of {
        Some([split, _]) => split,
        None => fields.first().and_then(|field| field.columns.first()).map_or("", String::as_str),
    };
    let is_header = |cells: &[Cow<'_, str>]| cells.iter().any(|cell| cell == known);
    let (header, rows) = csv::read(text, separator, "image,label,split", is_header)?;
    let names: Vec<String> = header.cells.iter().map(ToString::to_string).collect();
    let repeated = |at: &usize| !names[*at].is_empty() && names[..*at].contains(&names[*at]);
    if let Some(at) = (0..names.len()).find(repeated) {
        return Err((header.line, TableProblem::DuplicateName(names[at].clone())));
    }
    let place = |column: &str, remedy: &dyn Fn() -> String| {
        names
            .iter()
            .position(|name| name == column)
            .ok_or_else(|| (header.line, TableProblem::NoColumn(column.to_owned(), names.clone(), remedy())))
    };
    let of_split = of.map(|[split, _]| place(split, &|| ADD_SPLIT.to_owned())).transpose()?;
    let mut places = Vec::new();
    for field in fields {
        for column in &field.columns {
            places.push((place(column, &|| name_one(field, of.is_some()))?, field.kind));
        }
    }
    let mut kept = Rows::new(header.line);
    kept.separator = rows.separator();
    let mut chosen = Chosen::new(of, have_files(fields));
    for row in rows {
        let Row { line, cells } = row?;
        // Spreadsheets write empty rows as commas.
        if cells.iter().all(|cell| cell.is_empty()) {
            continue;
        }
        if cells.len() != names.len() {
            return Err((line, TableProblem::Fields(cells.len(), names.len(), kept.separator == ',')));
        }
        let split = of_split.map_or("", |at| &*cells[at]);
        if !chosen.takes(line, split, cells.iter().map(|cell| &**cell)) {
            continue;
        }
        for &(place, kind) in &places {
            kept.add_cell(kind, &cells[place]);
        }
        kept.end_row(line);
    }
    chosen.checked(kept)
}

#[cfg(test)]
mod tests;
