//! What is wrong with a line of a table.

use super::ignored::is_image;
use super::names::listed;

/// The column of a table that names the set of a line.
pub const SPLIT: &str = "split";
/// The name of the table of numbers beside the images of a split.
pub(super) const TARGETS: &str = "targets.csv";
/// The name of the table of classes beside the images of a split.
pub(super) const CLASSES: &str = "classes.csv";

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
    #[error(
        "the first line has {}, and none of them gives the names of columns that are wanted; set data.separator to the one that \
         ends fields, or correct the names", .0.iter().map(|letter| format!("{letter:?}")).collect::<Vec<_>>().join(" and ")
    )]
    Separators(Vec<char>),
    #[error("the table has no numbers; name them after `file`, as in `file,NAME,...`")]
    NoNames,
    #[error("the table has the columns {}, and takes one after `file`, with all classes of an image; join them with `|`", listed(.0))]
    OneColumn(Vec<String>),
    #[error("the name of number {0} is empty; give each number a name")]
    EmptyName(usize),
    #[error("the name {0:?} occurs twice; give each column a different name")]
    DuplicateName(String),
    #[error("the line has {} fields, and the first line {}; write one field for each name{}", .0, .1, match (.0 > .1, .2) {
        (true, true) => ", with decimal points: a comma ends a field, except in quotes",
        (true, false) => ": a separator ends a field, except in quotes",
        (false, _) => "",
    })]
    Fields(usize, usize, bool),
    #[error("{name} is {text:?}, which is not a finite number; {}", match text.replace(',', ".").parse::<f32>() {
        Ok(number) if number.is_finite() && may_group(text) => {
            format!("write {}, or {number} if the comma is a decimal point", text.replace(',', ""))
        }
        Ok(number) if number.is_finite() => format!("write {number}, with a point"),
        _ => "write a number such as 1.5, or remove the line and its image".to_owned(),
    })]
    NotANumber { name: String, text: String },
    #[error(
        "{name} is {text:?}, with another decimal mark than the numbers since line {earlier}; write all numbers with a point, or all \
         with a comma"
    )]
    TwoMarks { name: String, text: String, earlier: usize },
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
        // `column:` in data.val takes this name alone.
        found if .0[1] == "val" && .0[0] != SPLIT => {
            format!(", which has {}; write `val` in the lines of the validation samples", listed(found))
        }
        found => {
            format!(", which has {}; set data.train, data.test, data.val and data.tests to names in it", listed(found))
        }
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
    #[error(
        "{column} has {found} values, and the field takes {expected}, as many for each line of training and test; correct the line"
    )]
    Values { column: String, found: usize, expected: usize },
    #[error("{column} is {what}; write a text, a number, or a list of these")]
    Unfit { column: String, what: &'static str },
    #[error("the line is no JSON object ({0}); write one object in each line")]
    NoObject(String),
    #[error("{0} is no number of JSON, and no target either; write a number, or remove the line")]
    NoJsonNumber(&'static str),
    #[error(
        "the table has no lines; write a JSON object for each sample, such as {{\"image\": \"a.png\", \"split\": \"train\"}}"
    )]
    NoObjects,
    #[error("{:?} is no line of the form `{}`; write one, or remove the line", .0, .1)]
    NoPair(String, &'static str),
    #[error("the list has no images; write a line `PATH CLASS` or an entry for each")]
    EmptyList,
    #[error(
        "{} is the number of no training class, which are 0 to {} in the order of their names; write the name of the class, or \
         subtract 1 from all numbers if they count from 1 in this order", .0, .1.saturating_sub(1)
    )]
    ClassNumber(usize, usize),
    #[error("the sets are train and test, and `{0}` is none; set data.train and data.test to these")]
    OtherSet(String),
    #[error("{0:?} is no set; write 1 for training or 0 for test")]
    NoFlag(String),
    #[error(
        "no image is of the set {0}, whose lines end with {1}; correct the lines, or download the data set again"
    )]
    NoFlagged(String, &'static str),
    #[error("classes.txt has no class {0:?}; correct the line, or download the data set again")]
    NoClassNumber(String),
    #[error(
        "the file is no list of images ({0}); write {{\"label_names\": [...], \"image_names\": [...], \"image_labels\": [...]}}"
    )]
    NoLists(String),
    #[error("image_names has {0} entries and image_labels {1}; give each image a label")]
    Lengths(usize, usize),
    #[error(
        "{0} is not below data.root, {1}; set data.root to a folder above all images and lists, or cut the beginning of the \
         paths in the list"
    )]
    NotBelow(String, String),
    #[error("{0:?} is also image_names[{1}]; remove one of the two")]
    DuplicateEntry(String, usize),
    #[error("image_labels is {0}, and label_names has {1} names, from 0; correct the number")]
    NoLabelName(usize, usize),
    #[error("image_names[{0}]: {1}")]
    Entry(usize, Box<TableProblem>),
    #[error("{}; {} more {}", .0, .1, if *.1 == 1 { "line has this problem" } else { "lines have this problem" })]
    Several(Box<TableProblem>, usize),
}

/// Returns whether the comma of a number may separate thousands.
pub(super) fn may_group(number: &str) -> bool {
    let groups = number.trim_start_matches(['+', '-']).split_once(',');
    groups.is_some_and(|(first, rest)| {
        (1..=3).contains(&first.len()) && !first.starts_with('0') && rest.len() == 3
    })
}
