//! What is wrong with a line of a table.

use super::ignored::is_image;
use super::names::listed;

/// The name of the table of numbers beside the images of a split.
pub(super) const TARGETS: &str = "targets.csv";

/// A problem with a line of a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableProblem {
    #[error("the table is empty; write the line `{0}` and a line for each image")]
    Empty(&'static str),
    #[error("the first line has to be `file,NAME,...`, but it begins with {:?}; {}", .0, match is_image(.0) {
        true => "add such a line",
        false => "name the column of paths `file` and put it first, or add such a line",
    })]
    NoHeader(String),
    #[error("fields end with {:?}{}, not with commas; convert the table with `{}`", .0, match .0 {
        ';' => ", as Excel writes in some languages",
        _ => "",
    }, .1)]
    Separator(char, String),
    #[error("the table has no numbers; name them after `file`, as in `file,NAME,...`")]
    NoNames,
    #[error("the name of number {0} is empty; give each number a name")]
    EmptyName(usize),
    #[error("the name {0:?} occurs twice; give each column a different name")]
    DuplicateName(String),
    #[error("the line has {} fields, and the first line {}; write one field for each name{}", .0, .1, match .0 > .1 {
        true => ", with decimal points: a comma ends a field, except in quotes",
        false => "",
    })]
    Fields(usize, usize),
    #[error("{name} is {text:?}, which is not a finite number; {}", match text.replace(',', ".").parse::<f32>() {
        Ok(number) if number.is_finite() && may_group(text) => {
            format!("write {}, or {number} if the comma is a decimal point", text.replace(',', ""))
        }
        Ok(number) if number.is_finite() => format!("write {number}, with a point"),
        _ => "write a number such as 1.5, or remove the line and its image".to_owned(),
    })]
    NotANumber { name: String, text: String },
    #[error("a quote does not end, or text follows it; write \"...\" with two quotes for a quote inside")]
    Quote,
    #[error("{0:?} is not a path below the folder of the table; write one such as a/0001.png")]
    Path(String),
    #[error("{0:?} is also in line {1}; remove one of the two")]
    Duplicate(String, usize),
    #[error(
        "there is no image {:?} in the folder of the table; {}", .0,
        .1.as_deref().unwrap_or("correct the path, or remove the line")
    )]
    NoImage(String, Option<String>),
    #[error("the table is {0}")]
    Foreign(String),
    #[error("the table has no column `{}`, but {}; {}", .0, listed(.1), .2)]
    NoColumn(String, Vec<String>, String),
    #[error("no line has `{}` in the column `{}`{}", .0[1], .0[0], match .1.as_slice() {
        [] => "; write a line for each sample".to_owned(),
        found => format!(", which has {}; set data.train, data.test and data.val to names in it", listed(found)),
    })]
    NoSplit([String; 2], Vec<String>),
    #[error("the table has no lines; write a line for each input")]
    NoLines,
    #[error("the line is equal to line {0}; remove one of the two")]
    Repeated(usize),
    #[error("{0} is empty; write the name of a class, or remove the line")]
    EmptyCell(String),
    #[error(
        "no training line has a class in the column `{0}`; write names with `|` between them, or remove the field"
    )]
    NoClasses(String),
    #[error(
        "{0} is {1:?}, a class that no training line has; correct the name, or add training lines of this class"
    )]
    UnknownClass(String, String),
}

/// Returns whether the comma of a number may separate thousands.
fn may_group(number: &str) -> bool {
    let groups = number.trim_start_matches(['+', '-']).split_once(',');
    groups.is_some_and(|(first, rest)| {
        (1..=3).contains(&first.len()) && !first.starts_with('0') && rest.len() == 3
    })
}
