//! A table of samples: a CSV file with a line for each sample, whose paths are below the table's folder.
//!
//! The first line names the columns. The column `split` states to which set a sample belongs.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use dtrain_recipe::{ColumnKind, FieldColumns};

use super::super::error::DataError;
use super::super::ignored::Ignored;
use super::super::origin::TableLines;
use super::super::packed::Packed;
use super::super::paths::Listing;
use super::super::samples::{ClassSets, Files, List, ListValues, Samples};
use super::super::table_problem::TableProblem;
use super::super::texts::Texts;
use super::super::token_lists::TextForm;
use super::csv::{self, LineProblem, Row};
use super::table_file::{self, Form};
use super::target_table::{below, number};
use super::{Reading, Request};

/// The usual column of the sets' names.
pub const SPLIT: &str = "split";

/// What stands between the classes of a cell.
const BETWEEN: char = '|';

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
    let rows =
        table_file::read(path, Form::Samples, |text| Rows::parse(text, Some([reading.split, set]), fields))?;
    let table = Table { path, rows };
    let lists = fields.iter().map(|field| table.list(field, reading)).collect::<Result<_, _>>()?;
    table.samples(set, lists)
}

/// Reads all lines of the table at `path` as inputs of a prediction, whatever their set: the images of `fields`, and the numbers
/// whose columns the table has.
pub(super) fn scan_inputs(path: &Path, fields: &[FieldColumns]) -> Result<Samples, DataError> {
    let is_input = |kind| matches!(kind, ColumnKind::Image | ColumnKind::Numbers);
    let mut wanted: Vec<FieldColumns> = fields.iter().filter(|field| is_input(field.kind)).cloned().collect();
    let first = wanted.first().map_or(Vec::new(), |field| field.columns.clone());
    let names = table_file::read(path, Form::Samples, |text| {
        let (header, _) =
            csv::read(text, "image", |cells| first.iter().all(|name| cells.contains(&Cow::Borrowed(name))))?;
        Ok(header.cells.iter().map(ToString::to_string).collect::<Vec<_>>())
    })?;
    let is_there = |field: &FieldColumns| field.columns.iter().all(|column| names.contains(column));
    wanted.retain(|field| field.kind == ColumnKind::Image || is_there(field));
    let rows = table_file::read(path, Form::Samples, |text| Rows::parse(text, None, &wanted))?;
    let table = Table { path, rows };
    let list = |field: &FieldColumns| match field.kind {
        ColumnKind::Image => {
            let images = field.columns.iter().map(|column| table.files(column));
            Ok(List::new(&field.field, ListValues::Images(images.collect::<Result<_, _>>()?)))
        }
        _ => Ok(List::new(&field.field, table.numbers(&field.columns)?)),
    };
    let lists = wanted.iter().map(list).collect::<Result<_, DataError>>()?;
    table.samples("the input", lists)
}

impl Table<'_> {
    /// Returns the samples with these fields.
    fn samples(self, set: &str, lists: Vec<List>) -> Result<Samples, DataError> {
        let Self { path, rows } = self;
        let root = path.parent().unwrap_or(Path::new("")).to_owned();
        let lines = Packed::write(rows.lines.iter().map(|&line| line as u32))?;
        let table = Some(TableLines { path: path.to_owned(), lines });
        Ok(Samples {
            root,
            set: set.to_owned(),
            table,
            sources: Vec::new(),
            lists,
            size: None,
            ignored: Ignored::default(),
        })
    }
}

/// The rows of a set, with the columns of its fields.
#[derive(Debug, Default)]
struct Rows {
    /// The line of the columns' names.
    header: usize,
    columns: Vec<String>,
    /// The line of each row.
    lines: Vec<usize>,
    /// The text of all cells, row by row.
    text: String,
    /// Where each cell ends.
    ends: Vec<usize>,
}

impl Rows {
    /// Parses the rows of a set, which the column `split` names; None: of all sets, without that column.
    fn parse(text: &str, of: Option<[&str; 2]>, fields: &[FieldColumns]) -> Result<Self, LineProblem> {
        let known = match of {
            Some([split, _]) => split,
            None => fields.first().and_then(|field| field.columns.first()).map_or("", String::as_str),
        };
        let (header, rows) =
            csv::read(text, "image,label,split", |cells| cells.iter().any(|cell| cell == known))?;
        let names: Vec<String> = header.cells.iter().map(ToString::to_string).collect();
        let repeated = |at: &usize| !names[*at].is_empty() && names[..*at].contains(&names[*at]);
        if let Some(at) = (0..names.len()).find(repeated) {
            return Err((header.line, TableProblem::DuplicateName(names[at].clone())));
        }
        let place = |column: &str, remedy: &dyn Fn() -> String| {
            names.iter().position(|name| name == column).ok_or_else(|| {
                (header.line, TableProblem::NoColumn(column.to_owned(), names.clone(), remedy()))
            })
        };
        let add = || "add it with the set of each line, such as train and test".to_owned();
        let of_split = of.map(|[split, set]| Ok((set, place(split, &add)?))).transpose()?;
        let mut kept = Self { header: header.line, ..Self::default() };
        let mut places = Vec::new();
        for field in fields {
            let remedy = || match of {
                Some(_) => format!("name one of them in data.fields.{}", field.field),
                None => format!("add it; the checkpoint's `{}` is made of it", field.field),
            };
            for column in &field.columns {
                places.push(place(column, &remedy)?);
                kept.columns.push(column.clone());
            }
        }
        // Numbers may be equal; a file that is there twice is a slip.
        let is_file = |field: &FieldColumns| {
            matches!(field.kind, ColumnKind::Image | ColumnKind::Mask | ColumnKind::Map)
        };
        let has_files = of.is_some() && fields.iter().any(is_file);
        let (mut seen, mut splits) = (HashMap::new(), BTreeSet::new());
        for row in rows {
            let Row { line, cells } = row?;
            // Spreadsheets write empty rows as commas.
            if cells.iter().all(|cell| cell.is_empty()) {
                continue;
            }
            if cells.len() != names.len() {
                return Err((line, TableProblem::Fields(cells.len(), names.len())));
            }
            if has_files {
                let mut hash = blake3::Hasher::new();
                for cell in &cells {
                    hash.update(&(cell.len() as u64).to_le_bytes()).update(cell.as_bytes());
                }
                if let Some(earlier) = seen.insert(hash.finalize(), line) {
                    return Err((line, TableProblem::Repeated(earlier)));
                }
            }
            if let Some((set, at)) = of_split
                && cells[at] != set
            {
                splits.insert(cells[at].to_string());
                continue;
            }
            kept.lines.push(line);
            for &place in &places {
                kept.text.push_str(&cells[place]);
                kept.ends.push(kept.text.len());
            }
        }
        match kept.lines.is_empty() {
            true => Err((
                header.line,
                match of {
                    Some(of) => TableProblem::NoSplit(of.map(str::to_owned), splits.into_iter().collect()),
                    None => TableProblem::NoLines,
                },
            )),
            false => Ok(kept),
        }
    }

    fn cell(&self, row: usize, column: usize) -> &str {
        let at = row * self.columns.len() + column;
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.text[start..self.ends[at]]
    }
}

struct Table<'a> {
    path: &'a Path,
    rows: Rows,
}

impl Table<'_> {
    fn error(&self, line: usize, problem: TableProblem) -> DataError {
        DataError::Table(self.path.to_owned(), line, problem)
    }

    /// Returns the cells of a field's column with the numbers of their lines.
    fn cells(&self, column: &str) -> impl Iterator<Item = (usize, &str)> + Clone {
        // The rows have all columns of the fields.
        let at = self.rows.columns.iter().position(|known| known == column).unwrap_or_default();
        self.rows.lines.iter().enumerate().map(move |(row, line)| (*line, self.rows.cell(row, at)))
    }

    fn list(&self, field: &FieldColumns, reading: Reading<'_>) -> Result<List, DataError> {
        let first = &field.columns[0];
        let values = match field.kind {
            ColumnKind::Image => {
                let images = field.columns.iter().map(|column| self.files(column));
                ListValues::Images(images.collect::<Result<_, _>>()?)
            }
            ColumnKind::Mask => ListValues::Pixels(self.files(first)?, reading.mask.into()),
            ColumnKind::Map => ListValues::Pixels(self.files(first)?, reading.map.into()),
            ColumnKind::Class => self.classes(field, reading.train)?,
            ColumnKind::Classes => self.sets_of_classes(field, reading.train)?,
            ColumnKind::Numbers => self.numbers(&field.columns)?,
            ColumnKind::Text => {
                let form = if field.columns.len() > 1 { TextForm::Answer } else { TextForm::Text };
                ListValues::Texts(self.texts(field)?, form)
            }
            ColumnKind::Chat => ListValues::Texts(self.texts(field)?, TextForm::Chat),
        };
        Ok(List::new(&field.field, values))
    }

    fn files(&self, column: &str) -> Result<Files, DataError> {
        let (mut paths, mut numbers) = (Listing::default(), HashMap::new());
        for (line, path) in self.cells(column) {
            let path = below(path).map_err(|problem| self.error(line, problem))?;
            let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
            let folder = *numbers.entry(folder).or_insert_with(|| paths.folder(folder));
            paths.add_in(folder, name);
        }
        Ok(Files { folder: String::new(), paths: paths.pack()? })
    }

    fn classes(&self, field: &FieldColumns, train: Option<&Samples>) -> Result<ListValues, DataError> {
        let column = &field.columns[0];
        let cells = self.cells(column);
        if let Some((line, _)) = cells.clone().find(|(_, name)| name.is_empty()) {
            return Err(self.error(line, TableProblem::EmptyCell(column.clone())));
        }
        let found = cells.clone().map(|(line, name)| Named { line, name });
        let names = self.names(field, train, found)?;
        let numbers = Packed::write(cells.map(|(_, name)| names.get(name).copied().unwrap_or_default()))?;
        Ok(ListValues::Classes { numbers, names: sorted(names) })
    }

    /// Reads any number of classes of a sample.
    fn sets_of_classes(
        &self,
        field: &FieldColumns,
        train: Option<&Samples>,
    ) -> Result<ListValues, DataError> {
        let cells = self.cells(&field.columns[0]);
        let found =
            cells.clone().flat_map(|(line, cell)| classes_of(cell).map(move |name| Named { line, name }));
        let names = self.names(field, train, found)?;
        if names.is_empty() {
            return Err(self.error(self.rows.header, TableProblem::NoClasses(field.columns[0].clone())));
        }
        let sets = cells.map(|(_, cell)| classes_of(cell).filter_map(|name| names.get(name).copied()));
        Ok(ListValues::ClassSets { sets: ClassSets::write(sets)?, names: sorted(names) })
    }

    /// Returns the names of the classes with their numbers: those of the training samples, which must have all.
    fn names<'n>(
        &'n self,
        field: &FieldColumns,
        train: Option<&'n Samples>,
        mut found: impl Iterator<Item = Named<'n>>,
    ) -> Result<BTreeMap<&'n str, u32>, DataError> {
        let list = train.and_then(|train| train.lists.iter().find(|list| list.field == field.field));
        let Some(list) = list else {
            let names: BTreeSet<&str> = found.map(|named| named.name).collect();
            return Ok(names.into_iter().zip(0..).collect());
        };
        let names = match &list.values {
            ListValues::Classes { names, .. } | ListValues::ClassSets { names, .. } => names.as_slice(),
            _ => &[],
        };
        let names: BTreeMap<_, _> = names.iter().map(String::as_str).zip(0..).collect();
        match found.find(|named| !names.contains_key(named.name)) {
            None => Ok(names),
            Some(Named { line, name }) => {
                let problem = TableProblem::UnknownClass(field.columns[0].clone(), name.to_owned());
                Err(self.error(line, problem))
            }
        }
    }

    fn texts(&self, field: &FieldColumns) -> Result<Vec<Texts>, DataError> {
        let texts = field.columns.iter().map(|column| Texts::write(self.cells(column).map(|(_, text)| text)));
        Ok(texts.collect::<Result<_, _>>()?)
    }

    fn numbers(&self, columns: &[String]) -> Result<ListValues, DataError> {
        let mut values = vec![0.0; columns.len() * self.rows.lines.len()];
        for (at, column) in columns.iter().enumerate() {
            for ((line, text), value) in
                self.cells(column).zip(values[at..].iter_mut().step_by(columns.len()))
            {
                *value = number(column, text).map_err(|problem| self.error(line, problem))?;
            }
        }
        Ok(ListValues::Numbers { names: columns.to_vec(), values: Packed::write(values)? })
    }
}

/// The name of a class in a line.
struct Named<'a> {
    line: usize,
    name: &'a str,
}

fn classes_of(cell: &str) -> impl Iterator<Item = &str> {
    cell.split(BETWEEN).map(str::trim).filter(|name| !name.is_empty())
}

fn sorted(names: BTreeMap<&str, u32>) -> Vec<String> {
    names.into_keys().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests;
