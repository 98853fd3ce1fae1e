//! Images under `root/split/` and the numbers in its table.

use std::collections::HashMap;
use std::path::Path;

use super::super::error::DataError;
use super::super::ignored::Ignored;
use super::super::packed::Packed;
use super::super::samples::{Files, List, ListValues, Samples};
use super::super::table_problem::{TARGETS, TableProblem};
use super::listing::{SPLITS, image_files};
use super::table_file::{self, Form};
use super::target_table::TargetTable;
use super::unicode_form;

/// Lists the images below `root/split` by path and reads `root/split/targets.csv`: the fields `image` and `targets`.
/// Every image needs a line and every line an image. `names` are those of the training split, which other splits
/// must have.
pub fn scan(root: &Path, split: &str, names: Option<&[String]>) -> Result<Samples, DataError> {
    let folder = root.join(split);
    let mut ignored = Ignored::default();
    let mut images = image_files(root, &folder, SPLITS, &mut ignored)?;
    images.sort(0);
    let table = table_file::read(&folder.join(TARGETS), Form::Targets, TargetTable::parse)?;
    if let Some(names) = names.filter(|names| *names != table.names) {
        return Err(DataError::OtherTargets(folder.join(TARGETS), table.names, names.to_vec()));
    }
    let mut rows: HashMap<_, _> = table.rows.into_iter().map(|row| (row.file.clone(), row)).collect();
    let (mut numbers, mut missing) = (Vec::new(), Vec::new());
    for path in (0..images.len()).map(|at| images.path(at)) {
        match rows.remove(&path) {
            Some(row) => numbers.extend(row.numbers),
            None => missing.push(path),
        }
    }
    if let Some(row) = rows.into_values().min_by_key(|row| row.line) {
        let remedy = unicode_form::remedy(&folder, &missing, [&row.file]);
        let problem = TableProblem::NoImage(row.file, remedy);
        return Err(DataError::Table(folder.join(TARGETS), row.line, problem));
    }
    if !missing.is_empty() {
        return Err(DataError::NoTargets(folder, missing));
    }
    let (paths, values) = (images.pack()?, Packed::write(numbers)?);
    let images = ListValues::Images(vec![Files { folder: split.to_owned(), paths }]);
    let targets = ListValues::Numbers { names: table.names, values };
    Ok(Samples {
        root: root.to_path_buf(),
        set: split.to_owned(),
        table: None,
        sources: Vec::new(),
        lists: vec![List::new("image", images), List::new("targets", targets)],
        size: None,
        ignored,
    })
}

#[cfg(test)]
mod tests;
