//! The rows of a set in a table or list, before they become fields.

use std::collections::{BTreeSet, HashMap};
use std::mem::discriminant;

use dtrain_recipe::{ColumnKind, FieldColumns};

use super::super::table_problem::TableProblem;
use super::csv::LineProblem;
use super::decimals::Decimals;

/// What stands between the classes of a text.
const BETWEEN: char = '|';

/// Rows of cells, each a list of texts: one, or any number in JSON and for several classes.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// The line of the columns' names.
    pub(super) header: usize,
    /// The line of each row, from 1.
    pub(super) lines: Vec<usize>,
    /// What ends a cell in the file.
    pub(super) separator: char,
    /// All texts, row by row.
    text: String,
    /// Where each text ends.
    texts: Vec<usize>,
    /// The number of texts up to the end of each cell.
    cells: Vec<usize>,
}

impl Rows {
    /// Returns no rows. `header` is the line of the columns' names.
    pub(super) fn new(header: usize) -> Self {
        Self { header, separator: ',', ..Self::default() }
    }

    /// Adds a text to the cell that is next.
    pub(super) fn add(&mut self, text: &str) {
        self.text.push_str(text);
        self.texts.push(self.text.len());
    }

    /// Adds a cell that is one text; a text may name several classes.
    pub(super) fn add_cell(&mut self, kind: ColumnKind, text: &str) {
        match kind {
            ColumnKind::Classes => classes_of(text).for_each(|name| self.add(name)),
            _ => self.add(text),
        }
        self.end_cell();
    }

    pub(super) fn end_cell(&mut self) {
        self.cells.push(self.texts.len());
    }

    /// Ends a row, which has as many cells as every other.
    pub(super) fn end_row(&mut self, line: usize) {
        self.lines.push(line);
    }

    /// Returns the texts of a cell.
    pub(super) fn cell(&self, row: usize, column: usize) -> impl ExactSizeIterator<Item = &str> + Clone {
        let at = row * (self.cells.len() / self.lines.len().max(1)) + column;
        let start = |ends: &[usize], at: usize| if at == 0 { 0 } else { ends[at - 1] };
        let of_cell = start(&self.cells, at)..self.cells[at];
        of_cell.map(move |text| &self.text[start(&self.texts, text)..self.texts[text]])
    }

    /// Returns a reader of the numbers.
    pub(super) fn decimals(&self) -> Decimals {
        Decimals::new(self.separator)
    }
}

/// Returns whether a row that is there twice is a slip.
pub(super) fn have_files(fields: &[FieldColumns]) -> bool {
    let is_file = |kind| matches!(kind, ColumnKind::Image | ColumnKind::Mask | ColumnKind::Map);
    fields.iter().any(|field| is_file(field.kind))
}

/// The remedy of a table without the column of the sets.
pub(super) const ADD_SPLIT: &str = "add it with the set of each line, such as train and test";

/// Returns the remedy of a field's column that is not there, in a training or in a prediction.
pub(super) fn name_one(field: &FieldColumns, is_training: bool) -> String {
    match is_training {
        true => format!("name one of them in data.fields.{}", field.field),
        false => format!("add it; the checkpoint's `{}` is made of it", field.field),
    }
}

/// Returns the names of classes in a text.
pub(super) fn classes_of(text: &str) -> impl Iterator<Item = &str> {
    text.split(BETWEEN).map(str::trim).filter(|name| !name.is_empty())
}

/// The choice of the rows of a set.
pub(super) struct Chosen<'a> {
    /// The column of the sets' names and the set; None: all rows.
    of: Option<[&'a str; 2]>,
    /// The line of each row by its hash, if equal rows are a slip.
    seen: Option<HashMap<blake3::Hash, usize>>,
    repeated: Problems,
    /// The names of other sets.
    others: BTreeSet<String>,
}

impl<'a> Chosen<'a> {
    /// Numbers may be equal; a file that is there twice is a slip.
    pub(super) fn new(of: Option<[&'a str; 2]>, has_files: bool) -> Self {
        let seen = (has_files && of.is_some()).then(HashMap::new);
        Self { of, seen, repeated: Problems::default(), others: BTreeSet::new() }
    }

    /// Returns whether a row with these `cells` is of the set, if its column of the sets is `split`.
    pub(super) fn takes<'c>(
        &mut self,
        line: usize,
        split: &str,
        cells: impl Iterator<Item = &'c str>,
    ) -> bool {
        if let Some(seen) = &mut self.seen {
            let mut hash = blake3::Hasher::new();
            for cell in cells {
                hash.update(&(cell.len() as u64).to_le_bytes()).update(cell.as_bytes());
            }
            if let Some(earlier) = seen.insert(hash.finalize(), line) {
                self.repeated.add(line, TableProblem::Repeated(earlier));
            }
        }
        let is_taken = self.of.is_none_or(|[_, set]| split == set);
        if !is_taken {
            self.others.insert(split.to_owned());
        }
        is_taken
    }

    /// Returns the `rows` of the set, at least one.
    pub(super) fn checked(self, rows: Rows) -> Result<Rows, LineProblem> {
        self.repeated.checked()?;
        match rows.lines.is_empty() {
            true => {
                let others = self.others.into_iter().collect();
                let problem = match self.of {
                    Some(of) => TableProblem::NoSplit(of.map(str::to_owned), others),
                    None => TableProblem::NoLines,
                };
                Err((rows.header, problem))
            }
            false => Ok(rows),
        }
    }
}

/// The first of all problems, and the number of further lines with a problem of its kind.
#[derive(Debug, Default)]
pub(super) struct Problems {
    first: Option<LineProblem>,
    /// The last line that was counted.
    last: usize,
    more: usize,
}

impl Problems {
    pub(super) fn add(&mut self, line: usize, problem: TableProblem) {
        match &self.first {
            None => (self.first, self.last) = (Some((line, problem)), line),
            Some((_, known)) if line != self.last && discriminant(known) == discriminant(&problem) => {
                (self.last, self.more) = (line, self.more + 1);
            }
            Some(_) => {}
        }
    }

    /// Returns the value, or what to use in its place until [`Problems::checked`] returns the error.
    pub(super) fn value<T: Default>(&mut self, line: usize, result: Result<T, TableProblem>) -> T {
        result.unwrap_or_else(|problem| {
            self.add(line, problem);
            T::default()
        })
    }

    pub(super) fn checked(self) -> Result<(), LineProblem> {
        match (self.first, self.more) {
            (None, _) => Ok(()),
            (Some(problem), 0) => Err(problem),
            (Some((line, problem)), more) => Err((line, TableProblem::Several(Box::new(problem), more))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_the_first_kind_of_problem_are_counted() {
        let mut problems = Problems::default();
        for (line, problem) in [
            (2, TableProblem::Repeated(1)),
            (2, TableProblem::Repeated(1)),
            (3, TableProblem::NoNames),
            (5, TableProblem::Repeated(1)),
            (5, TableProblem::Repeated(2)),
            (6, TableProblem::Repeated(1)),
        ] {
            problems.add(line, problem);
        }
        let several = TableProblem::Several(Box::new(TableProblem::Repeated(1)), 2);
        assert_eq!(problems.checked(), Err((2, several)));
        assert_eq!(Problems::default().checked(), Ok(()));
    }
}
