//! Rows of a table or list as the fields of samples.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

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
use super::Reading;
use super::csv::LineProblem;
use super::rows::{Problems, Rows};
use super::target_table::below;

/// The rows of a set. Their cells are the columns of all fields, in the order of the fields.
pub(super) struct Table<'a> {
    /// The file that has the rows.
    pub(super) path: &'a Path,
    /// The folder that their paths are below.
    pub(super) root: PathBuf,
    pub(super) set: &'a str,
    pub(super) rows: Rows,
    /// Whether the numbers of rows are those of lines, else those of the entries of lists.
    pub(super) has_lines: bool,
}

/// A field with the number of its first column.
struct Columns<'a> {
    field: &'a FieldColumns,
    first: usize,
}

impl Table<'_> {
    /// Returns the samples with these fields.
    pub(super) fn samples(
        &self,
        fields: &[FieldColumns],
        reading: Reading<'_>,
    ) -> Result<Samples, DataError> {
        let mut first = 0;
        let list = |field: &FieldColumns| {
            let columns = Columns { field, first };
            first += field.columns.len();
            self.list(&columns, reading)
        };
        self.with_lists(fields.iter().map(list).collect::<Result<_, _>>()?)
    }

    /// Returns the samples of a prediction, with these fields of images, numbers and texts.
    pub(super) fn inputs(&self, fields: &[FieldColumns]) -> Result<Samples, DataError> {
        let mut first = 0;
        let list = |field: &FieldColumns| {
            let columns = Columns { field, first };
            first += field.columns.len();
            let values = match field.kind {
                ColumnKind::Image => ListValues::Images(self.images(&columns, None)?),
                ColumnKind::Text | ColumnKind::Chat => self.texts(&columns)?,
                _ => self.numbers(&columns, None)?,
            };
            Ok(List::new(&field.field, values))
        };
        self.with_lists(fields.iter().map(list).collect::<Result<_, DataError>>()?)
    }

    /// Returns the only field of the rows.
    pub(super) fn only(&self, field: &FieldColumns, reading: Reading<'_>) -> Result<List, DataError> {
        self.list(&Columns { field, first: 0 }, reading)
    }

    fn with_lists(&self, lists: Vec<List>) -> Result<Samples, DataError> {
        let lines = Packed::write(self.rows.lines.iter().map(|&line| line as u32))?;
        Ok(Samples {
            root: self.root.clone(),
            set: self.set.to_owned(),
            table: self.has_lines.then(|| TableLines { path: self.path.to_owned(), lines }),
            sources: Vec::new(),
            lists,
            size: None,
            ignored: Ignored::default(),
        })
    }

    fn error(&self, (line, problem): LineProblem) -> DataError {
        let (line, problem) = match self.has_lines {
            true => (line, problem),
            false => (0, TableProblem::Entry(line, Box::new(problem))),
        };
        DataError::Table(self.path.to_owned(), line, problem)
    }

    fn list(&self, columns: &Columns<'_>, reading: Reading<'_>) -> Result<List, DataError> {
        let name = &columns.field.field;
        let train = reading.train.and_then(|train| train.lists.iter().find(|list| list.field == *name));
        let train = train.map(|list| &list.values);
        let values = match columns.field.kind {
            ColumnKind::Image => ListValues::Images(self.images(columns, train)?),
            ColumnKind::Mask => ListValues::Pixels(self.file(columns)?, reading.mask.clone().into()),
            ColumnKind::Map => ListValues::Pixels(self.file(columns)?, reading.map.into()),
            ColumnKind::Class => self.classes(columns, train)?,
            ColumnKind::Classes => self.sets_of_classes(columns, train)?,
            ColumnKind::Numbers => self.numbers(columns, train)?,
            ColumnKind::Text | ColumnKind::Chat => self.texts(columns)?,
        };
        Ok(List::new(name, values))
    }

    /// Returns the texts of a column's cells with the numbers of their lines.
    fn cells(
        &self,
        column: usize,
    ) -> impl Iterator<Item = (usize, impl ExactSizeIterator<Item = &str> + Clone)> + Clone {
        self.rows.lines.iter().enumerate().map(move |(row, line)| (*line, self.rows.cell(row, column)))
    }

    /// Returns the number of texts in each cell of a column, which all rows have.
    fn count(&self, columns: &Columns<'_>, at: usize, expected: Option<usize>) -> Result<usize, DataError> {
        let mut counts = self.cells(columns.first + at).map(|(line, texts)| (line, texts.len()));
        let first = counts.clone().next().map_or(0, |(_, count)| count);
        let expected = expected.unwrap_or(first);
        match counts.find(|(_, count)| *count != expected || *count == 0) {
            None => Ok(expected),
            Some((line, found)) => {
                let column = columns.field.columns[at].clone();
                Err(self.error((line, TableProblem::Values { column, found, expected })))
            }
        }
    }

    /// Returns the only text of each cell of a field's only column, with the number of its line.
    fn single(
        &self,
        columns: &Columns<'_>,
    ) -> Result<impl Iterator<Item = (usize, &str)> + Clone, DataError> {
        self.count(columns, 0, Some(1))?;
        Ok(self.cells(columns.first).flat_map(|(line, texts)| texts.map(move |text| (line, text))))
    }

    /// Checks that a field has as many values as in the training samples.
    fn check_train(
        &self,
        columns: &Columns<'_>,
        found: usize,
        train: Option<usize>,
    ) -> Result<(), DataError> {
        match train.filter(|train| *train != found) {
            None => Ok(()),
            Some(expected) => {
                let column = columns.field.columns.join(", ");
                Err(self.error((self.rows.lines[0], TableProblem::Values { column, found, expected })))
            }
        }
    }

    fn images(&self, columns: &Columns<'_>, train: Option<&ListValues>) -> Result<Vec<Files>, DataError> {
        let mut images = Vec::new();
        for at in 0..columns.field.columns.len() {
            for number in 0..self.count(columns, at, None)? {
                let of_number = self.cells(columns.first + at);
                images.push(
                    self.files(of_number.filter_map(|(line, mut texts)| Some((line, texts.nth(number)?))))?,
                );
            }
        }
        let of_train =
            train.map(|train| if let ListValues::Images(images) = train { images.len() } else { 0 });
        self.check_train(columns, images.len(), of_train)?;
        Ok(images)
    }

    fn file(&self, columns: &Columns<'_>) -> Result<Files, DataError> {
        self.files(self.single(columns)?)
    }

    fn files<'c>(&self, cells: impl Iterator<Item = (usize, &'c str)>) -> Result<Files, DataError> {
        let (mut paths, mut numbers, mut problems) =
            (Listing::default(), HashMap::new(), Problems::default());
        for (line, path) in cells {
            let path = problems.value(line, below(path));
            let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
            let folder = *numbers.entry(folder).or_insert_with(|| paths.folder(folder));
            paths.add_in(folder, name);
        }
        problems.checked().map_err(|problem| self.error(problem))?;
        Ok(Files::new("", paths.pack()?))
    }

    fn classes(&self, columns: &Columns<'_>, train: Option<&ListValues>) -> Result<ListValues, DataError> {
        let (cells, mut problems) = (self.single(columns)?, Problems::default());
        for (line, _) in cells.clone().filter(|(_, name)| name.is_empty()) {
            problems.add(line, TableProblem::EmptyCell(columns.field.columns[0].clone()));
        }
        problems.checked().map_err(|problem| self.error(problem))?;
        let names = self.names(columns, train, cells.clone())?;
        let numbers = Packed::write(cells.map(|(_, name)| names.get(name).copied().unwrap_or_default()))?;
        Ok(ListValues::Classes { numbers, names: numbered(names) })
    }

    /// Reads any number of classes of a sample.
    fn sets_of_classes(
        &self,
        columns: &Columns<'_>,
        train: Option<&ListValues>,
    ) -> Result<ListValues, DataError> {
        let cells = self.cells(columns.first);
        let found = cells.clone().flat_map(|(line, names)| names.map(move |name| (line, name)));
        let names = self.names(columns, train, found)?;
        if names.is_empty() {
            let problem = TableProblem::NoClasses(columns.field.columns[0].clone());
            return Err(self.error((self.rows.header, problem)));
        }
        let sets = cells.map(|(_, of_sample)| of_sample.filter_map(|name| names.get(name).copied()));
        Ok(ListValues::ClassSets { sets: ClassSets::write(sets)?, names: numbered(names) })
    }

    /// Returns the names of the classes with their numbers: those of the training samples, which must have all.
    fn names<'n>(
        &'n self,
        columns: &Columns<'_>,
        train: Option<&'n ListValues>,
        found: impl Iterator<Item = (usize, &'n str)>,
    ) -> Result<BTreeMap<&'n str, u32>, DataError> {
        let Some(train) = train else {
            let names: BTreeSet<&str> = found.map(|(_, name)| name).collect();
            return Ok(names.into_iter().zip(0..).collect());
        };
        let names = match train {
            ListValues::Classes { names, .. } | ListValues::ClassSets { names, .. } => names.as_slice(),
            _ => &[],
        };
        let names: BTreeMap<_, _> = names.iter().map(String::as_str).zip(0..).collect();
        let mut problems = Problems::default();
        for (line, name) in found.filter(|(_, name)| !names.contains_key(name)) {
            problems.add(line, TableProblem::UnknownClass(columns.field.columns[0].clone(), name.to_owned()));
        }
        problems.checked().map_err(|problem| self.error(problem))?;
        Ok(names)
    }

    fn numbers(&self, columns: &Columns<'_>, train: Option<&ListValues>) -> Result<ListValues, DataError> {
        let mut names = Vec::new();
        for (at, column) in columns.field.columns.iter().enumerate() {
            match self.count(columns, at, None)? {
                1 => names.push(column.clone()),
                count => names.extend((0..count).map(|number| format!("{column}.{number}"))),
            }
        }
        let of_train =
            train.map(|train| if let ListValues::Numbers { names, .. } = train { names.len() } else { 0 });
        self.check_train(columns, names.len(), of_train)?;
        let (mut decimals, mut problems) = (self.rows.decimals(), Problems::default());
        let mut values = Vec::with_capacity(names.len() * self.rows.lines.len());
        for (row, &line) in self.rows.lines.iter().enumerate() {
            let of_row =
                (0..columns.field.columns.len()).flat_map(|at| self.rows.cell(row, columns.first + at));
            for (name, text) in names.iter().zip(of_row) {
                values.push(problems.value(line, decimals.read(line, name, text)));
            }
        }
        let checked = problems.checked().and_then(|()| decimals.checked());
        checked.map_err(|problem| self.error(problem))?;
        Ok(ListValues::Numbers { names, values: Packed::write(values)? })
    }

    fn texts(&self, columns: &Columns<'_>) -> Result<ListValues, DataError> {
        let form = match columns.field.kind {
            ColumnKind::Chat => TextForm::Chat,
            _ if columns.field.columns.len() > 1 => TextForm::Answer,
            _ => TextForm::Text,
        };
        let texts = |at: usize| {
            self.count(columns, at, Some(1))?;
            let cells = self.cells(columns.first + at).flat_map(|(_, texts)| texts);
            Ok::<_, DataError>(Texts::write(cells)?)
        };
        let texts = (0..columns.field.columns.len()).map(texts);
        Ok(ListValues::Texts(texts.collect::<Result<_, _>>()?, form))
    }
}

/// Returns the names in the order of their numbers, which is that of the training samples.
fn numbered(names: BTreeMap<&str, u32>) -> Vec<String> {
    let mut all: Vec<_> = names.into_iter().collect();
    all.sort_unstable_by_key(|(_, number)| *number);
    all.into_iter().map(|(name, _)| name.to_owned()).collect()
}
