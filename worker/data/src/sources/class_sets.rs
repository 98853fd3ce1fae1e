//! Images under `root/split/` and any number of classes for each, in its table `classes.csv`.

use dtrain_recipe::{ColumnKind, FieldColumns};

use super::super::error::DataError;
use super::super::samples::Samples;
use super::super::table_problem::TableProblem;
use super::Request;
use super::row_fields::Table;
use super::rows::{Rows, classes_of};
use super::target_table::{self, Beside};

/// Lists the images below `root/set` by path, with their classes: the fields `image` and `label`. The header of the table is
/// `file,classes`; a cell has the names of classes with `|` between them, or nothing.
pub(super) fn list(request: &Request<'_>) -> Result<Samples, DataError> {
    let &Request { root, set, reading, .. } = request;
    let parse = |text: &str, example| {
        target_table::parse(text, reading.separator, example, |_, _, names, cells| match (names, cells) {
            ([_], [cell]) => Ok(classes_of(cell).map(str::to_owned).collect::<Vec<_>>()),
            _ => Err(TableProblem::OneColumn(names.to_vec())),
        })
    };
    let found = Beside::CLASSES.read(root, set, parse)?;
    let mut rows = Rows::new(1);
    for row in &found.rows {
        rows.add(&format!("{set}/{}", row.file));
        rows.end_cell();
        row.value.iter().for_each(|name| rows.add(name));
        rows.end_cell();
        rows.end_row(row.line);
    }
    let path = root.join(set).join(Beside::CLASSES.file);
    let table = Table { path: &path, root: root.to_owned(), set, rows, has_lines: true };
    let samples = table.samples(&fields(ColumnKind::Classes), reading)?;
    Ok(Samples { ignored: found.ignored, ..samples })
}

/// Returns the fields `image`, of one file, and `label`, of a kind of classes.
pub(super) fn fields(label: ColumnKind) -> [FieldColumns; 2] {
    let field =
        |name: &str, kind| FieldColumns { field: name.to_owned(), kind, columns: vec![name.to_owned()] };
    [field("image", ColumnKind::Image), field("label", label)]
}

#[cfg(test)]
mod tests;
