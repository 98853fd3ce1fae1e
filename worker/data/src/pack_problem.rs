//! Problems of a file with many samples.

use std::io;

use super::names::listed;
use super::table_problem::TableProblem;

/// A problem of a file with many samples, such as a tar archive.
#[derive(Debug, thiserror::Error)]
pub enum PackProblem {
    #[error("the file does not exist{0}")]
    Missing(String),
    #[error("no file is named so: expected {0}; set {1} to the files, as in \"train-{{000..009}}.{2}\"")]
    NoFiles(String, &'static str, &'static str),
    #[error("{0:?} is not a pattern of names: {1}")]
    Pattern(String, String),
    #[error("of its {of} files {} missing: {}; copy or download them", if .names.len() == 1 { "one is" } else { "some are" }, listed(.names))]
    Gap { of: usize, names: Vec<String> },
    #[error("`{0}` and `{1}` are parts of two copies of the set; remove the files of the older copy")]
    Mixed(String, String),
    #[error("it cannot be read: {0}; copy or download it again")]
    Unreadable(#[source] io::Error),
    #[error("it is {0}; {1}")]
    Foreign(String, String),
    #[error("the file is empty; copy or download it again, or leave it out of the files of the set")]
    Empty,
    #[error("it has no samples; leave it out of the files of the set, or write it again")]
    NoSamples,
    #[error(
        "the file is cut in `{member}`, which needs {needed} bytes, and {there} are there; copy or download it again"
    )]
    Cut { member: String, needed: u64, there: u64 },
    #[error(
        "the file ends after `{0}` without the mark of an archive's end, so samples may be missing; copy or download it again. If it is whole, \
         add the mark: truncate -s +1024 FILE"
    )]
    NoEnd(String),
    #[error(
        "something follows the mark of the archive's end, which is after `{0}`: another archive, perhaps, whose samples would be missing; join archives with `tar --concatenate --file FIRST SECOND`"
    )]
    Joined(String),
    #[error("the member after `{0}` is damaged: {1}; copy or download the file again")]
    Damaged(String, String),
    #[error(
        "`{0}` is {1}, and has no content of its own; write the archive again with the files themselves (tar --dereference --hard-dereference)"
    )]
    Link(String, &'static str),
    #[error("`{0}` is not a path below the archive; write the archive again with relative paths")]
    Escapes(String),
    #[error("the name of a member is not UTF-8: {0:?}; write the archive again with other names")]
    NotUnicode(String),
    #[error(
        "the sample `{key}` has two members `{ending}`; a key names one sample of a file: rename one of the two"
    )]
    Twice { key: String, ending: String },
    #[error(
        "{} without `{ending}`: {}; add the members, or remove the other members of these keys",
        samples(keys.len()), listed(keys)
    )]
    Lonely { ending: String, keys: Vec<String> },
    #[error(
        "the sample `{key}` has several of `{endings}`: {}; name one of them in data.fields",
        listed(found)
    )]
    Several { key: String, endings: String, found: Vec<String> },
    #[error("no sample has `{ending}`, but {}; name one of them in data.fields.{field}, as in \"{kind}:{}\"", listed(found), found.first().map_or("ENDING", String::as_str))]
    NoEnding { ending: String, field: String, kind: &'static str, found: Vec<String> },
    #[error("`{0}` is not a text in UTF-8; name the members of the field in data.fields")]
    NotText(String),
    #[error(
        "`{0}` is {1} long, too long for a class or a number; name the members of the field in data.fields"
    )]
    LongText(String, String),
    #[error("`{0}` is not JSON: {1}; write it again")]
    NotJson(String, String),
    #[error("`{member}` has no text or number `{key}`{}; correct the key in data.fields", if .keys.is_empty() { String::new() } else { format!(", but {}", listed(.keys)) })]
    NoKey { member: String, key: String, keys: Vec<String> },
    #[error(
        "`{member}` has {count} values in `{key}`, and a field of the kind {kind} takes one; write one value, or name a field of the kind classes"
    )]
    ManyValues { member: String, key: String, count: usize, kind: &'static str },
    #[error("`{0}` has the class {1:?} in `{2}`, but `|` stands between names; rename the class")]
    Bar(String, String, String),
    #[error("{0}")]
    Parquet(String),
    #[error("it has no column `{column}`, but {}; name one of them in data.fields.{field}", listed(found))]
    NoColumn { column: String, field: String, found: Vec<String> },
    #[error(
        "the column `{column}` is of the type {found}, and a field of the kind {kind:?} takes {expected}; name another in data.fields.{field}"
    )]
    ColumnType { column: String, found: String, kind: &'static str, expected: &'static str, field: String },
    #[error(
        "the column `{column}` is compressed by {codec}, for which dtrain has no decoder; write the file again with compression=\"zstd\""
    )]
    Codec { column: String, codec: String },
    #[error("row {row}: `{column}` is {value}, but its names of classes go from 0 to {}; correct it, or remove the row", names.saturating_sub(1))]
    NoClassName { row: usize, column: String, value: String, names: usize },
    #[error(
        "its classes in `{column}` have other names than those of {first}; give all files of the set the same names"
    )]
    OtherNames { column: String, first: String },
    #[error("{sample}: {}", of_cell(.problem))]
    Cell { sample: String, problem: TableProblem },
}

fn samples(count: usize) -> String {
    format!("{count} sample{}", if count == 1 { "" } else { "s" })
}

/// Writes a problem of a cell, which is in no line.
fn of_cell(problem: &TableProblem) -> String {
    match problem {
        TableProblem::UnknownClass(column, name) => format!(
            "{column} is {name:?}, a class that no training sample has; correct it, or add training samples of this class"
        ),
        TableProblem::EmptyCell(column) => {
            format!("{column} is empty; write the name of a class, or remove the sample")
        }
        TableProblem::NotANumber { name, text } => {
            format!("{name} is {text:?}, which is not a finite number; correct it, or remove the sample")
        }
        TableProblem::NoClasses(column) => format!(
            "no training sample has a class in {column}; write names with `|` between them, or remove the field"
        ),
        other => other.to_string(),
    }
}
