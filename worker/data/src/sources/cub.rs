//! A data set in the layout of CUB-200-2011: lists of numbered images and classes beside the folder `images`.
//!
//! | File | A line |
//! |---|---|
//! | `images.txt` | number of an image, its path below `images` |
//! | `classes.txt` | number of a class, its name |
//! | `image_class_labels.txt` | number of an image, number of its class |
//! | `train_test_split.txt` | number of an image, 1 for training or 0 for test |

use std::collections::HashMap;
use std::path::PathBuf;

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

const FORM: Form = Form {
    remedy: "set data.root to the folder that holds images.txt, classes.txt, image_class_labels.txt and train_test_split.txt",
    json: Json::Foreign,
};

/// Lists the images of the set `train` or `test`, in the order of `images.txt`: the fields `image` and `label`.
pub(super) fn list(request: &Request<'_>) -> Result<Samples, DataError> {
    let &Request { root, set, reading, .. } = request;
    let file = |name: &str| Numbered::read(root.join(name));
    let (images, classes) = (file("images.txt")?, file("classes.txt")?);
    let (labels, splits) = (file("image_class_labels.txt")?, file("train_test_split.txt")?);
    images.check_same_numbers(&labels)?;
    images.check_same_numbers(&splits)?;
    let wanted = match set {
        "train" => "1",
        "test" => "0",
        other => return Err(splits.error((0, TableProblem::OtherSet(other.to_owned())))),
    };
    splits.check(|flag| match flag {
        "0" | "1" => None,
        other => Some(TableProblem::NoFlag(other.to_owned())),
    })?;
    labels.check(|class| match classes.by_number.contains_key(class) {
        true => None,
        false => Some(TableProblem::NoClassNumber(class.to_owned())),
    })?;
    let mut rows = Rows::new(1);
    for (line, number, path) in &images.lines {
        if splits.text(number) == wanted {
            rows.add(&format!("images/{path}"));
            rows.end_cell();
            rows.add(classes.text(labels.text(number)));
            rows.end_cell();
            rows.end_row(*line);
        }
    }
    if rows.lines.is_empty() {
        return Err(splits.error((0, TableProblem::NoFlagged(set.to_owned(), wanted))));
    }
    let table = Table { path: &images.path, root: root.to_owned(), set, rows, has_lines: true };
    table.samples(&fields(ColumnKind::Class), reading)
}

/// A file with a number and a text in each line.
struct Numbered {
    path: PathBuf,
    /// The number of each line, from 1, its number and its text.
    lines: Vec<(usize, String, String)>,
    /// The place in `lines` of each number.
    by_number: HashMap<String, usize>,
}

impl Numbered {
    fn read(path: PathBuf) -> Result<Self, DataError> {
        let (lines, by_number) = table_file::read(&path, FORM, parse)?;
        Ok(Self { path, lines, by_number })
    }

    fn error(&self, (line, problem): LineProblem) -> DataError {
        DataError::Table(self.path.clone(), line, problem)
    }

    /// Returns the text of a number, which the checks found.
    fn text(&self, number: &str) -> &str {
        self.by_number.get(number).map_or("", |&at| &self.lines[at].2)
    }

    fn check(&self, problem_of: impl Fn(&str) -> Option<TableProblem>) -> Result<(), DataError> {
        let mut problems = Problems::default();
        for (line, _, text) in &self.lines {
            if let Some(problem) = problem_of(text) {
                problems.add(*line, problem);
            }
        }
        problems.checked().map_err(|problem| self.error(problem))
    }

    /// Checks that another file has the numbers of this one.
    fn check_same_numbers(&self, other: &Self) -> Result<(), DataError> {
        let without = |of: &Self, in_other: &Self| {
            let missing = of.lines.iter().filter(|(_, number, _)| !in_other.by_number.contains_key(number));
            missing.map(|(_, number, _)| number.clone()).collect::<Vec<_>>()
        };
        let (only_first, only_second) = (without(self, other), without(other, self));
        match only_first.is_empty() && only_second.is_empty() {
            true => Ok(()),
            false => {
                let files = Box::new([self.path.clone(), other.path.clone()]);
                Err(DataError::OtherNumbers(files, only_first, only_second))
            }
        }
    }
}

type Lines = (Vec<(usize, String, String)>, HashMap<String, usize>);

fn parse(text: &str) -> Result<Lines, LineProblem> {
    let (mut lines, mut by_number, mut problems) = (Vec::new(), HashMap::new(), Problems::default());
    for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
        let Some((number, rest)) = text.trim().split_once(char::is_whitespace) else {
            return Err((line, TableProblem::NoPair(text.trim().to_owned(), "NUMBER TEXT")));
        };
        if let Some(earlier) = by_number.insert(number.to_owned(), lines.len()) {
            let (earlier, ..): &(usize, String, String) = &lines[earlier];
            problems.add(line, TableProblem::Duplicate(number.to_owned(), *earlier));
        }
        lines.push((line, number.to_owned(), rest.trim().to_owned()));
    }
    problems.checked()?;
    Ok((lines, by_number))
}

#[cfg(test)]
mod tests;
