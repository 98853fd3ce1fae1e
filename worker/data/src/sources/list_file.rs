//! The images of a set in a list: a path and a class in each line, as for the validation set of ImageNet.

use std::collections::HashMap;

use dtrain_recipe::ColumnKind;

use super::super::error::DataError;
use super::super::samples::Samples;
use super::super::table_problem::TableProblem;
use super::Request;
use super::class_sets::fields;
use super::csv::LineProblem;
use super::row_fields::Table;
use super::rows::{Problems, Rows};
use super::table_file::{self, Form, Json};

/// Lists the images of a set from the file `list` below the root: the fields `image` and `label`.
///
/// Paths are below the folder of the set; or below the root, if all of them begin with that folder. Classes are names. If all
/// are whole numbers and no training class has such a name, they count the training classes in their order, from 0.
pub(super) fn scan(request: &Request<'_>, list: &str) -> Result<Samples, DataError> {
    let &Request { root, set, reading, .. } = request;
    let path = root.join(list);
    let form = Form { remedy: "set data.lists to existing files below data.root", json: Json::Foreign };
    let classes = reading.train.and_then(Samples::labels).map(|(names, _)| names);
    let rows = table_file::read(&path, form, |text| {
        let mut lines = parse(text)?;
        if let Some(classes) = classes {
            name_classes(&mut lines, classes)?;
        }
        let inner = format!("{set}/");
        let above = if lines.iter().all(|line| line.path.starts_with(&inner)) { "" } else { inner.as_str() };
        let mut rows = Rows::new(1);
        for line in &lines {
            rows.add(&format!("{above}{}", line.path));
            rows.end_cell();
            rows.add(&line.class);
            rows.end_cell();
            rows.end_row(line.number);
        }
        Ok(rows)
    })?;
    let table = Table { path: &path, root: root.to_owned(), set, rows, has_lines: true };
    table.samples(&fields(ColumnKind::Class), reading)
}

/// An image in the list.
#[derive(Debug)]
struct Line {
    /// From 1.
    number: usize,
    path: String,
    class: String,
}

fn parse(text: &str) -> Result<Vec<Line>, LineProblem> {
    let (mut lines, mut seen, mut problems) = (Vec::new(), HashMap::new(), Problems::default());
    for (number, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
        let Some((path, class)) = text.trim().rsplit_once(char::is_whitespace) else {
            return Err((number, TableProblem::NoPair(text.trim().to_owned(), "PATH CLASS")));
        };
        let path = path.trim().trim_start_matches("./").to_owned();
        if let Some(earlier) = seen.insert(path.clone(), number) {
            problems.add(number, TableProblem::Duplicate(path.clone(), earlier));
        }
        lines.push(Line { number, path, class: class.to_owned() });
    }
    problems.checked()?;
    match lines.is_empty() {
        true => Err((1, TableProblem::EmptyList)),
        false => Ok(lines),
    }
}

/// Replaces numbers of classes by their names. If one name is a number, all are names.
fn name_classes(lines: &mut [Line], classes: &[String]) -> Result<(), LineProblem> {
    let are_names = classes.iter().any(|name| name.parse::<usize>().is_ok());
    let numbers: Option<Vec<usize>> = lines.iter().map(|line| line.class.parse().ok()).collect();
    let Some(numbers) = numbers.filter(|_| !are_names) else { return Ok(()) };
    let mut problems = Problems::default();
    for (line, number) in lines.iter_mut().zip(numbers) {
        match classes.get(number) {
            Some(name) => line.class.clone_from(name),
            None => problems.add(line.number, TableProblem::ClassNumber(number, classes.len())),
        }
    }
    problems.checked()
}

#[cfg(test)]
mod tests;
