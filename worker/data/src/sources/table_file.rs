//! The file of a table, and the commands that convert other files to tables.

use std::path::Path;

use dtrain_common::content::{Content, shell_word};
use dtrain_common::files::unused;

use super::super::error::DataError;
use super::super::regular;
use super::super::table_problem::TableProblem;
use super::csv::LineProblem;

/// What a table holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A path and numbers in each line.
    Targets,
    /// Anything.
    Samples,
}

/// Reads the table at `path` by `parse`.
pub(super) fn read<T>(
    path: &Path,
    form: Form,
    parse: impl FnOnce(&str) -> Result<T, LineProblem>,
) -> Result<T, DataError> {
    let mut bytes = Vec::new();
    if let Err(source) = regular::read(path, &mut bytes) {
        let remedy = match form {
            Form::Targets => "write a line `file,NAME,...` and a line for each image into it",
            Form::Samples => "set data.root to the file of the table",
        };
        return Err(DataError::UnreadableTable(path.to_owned(), source, remedy));
    }
    let parsed = match std::str::from_utf8(&bytes) {
        Ok(text) => parse(text),
        Err(error) => {
            let before = &bytes[..error.valid_up_to()];
            let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
            Err((line, TableProblem::Foreign(not_utf8(path, &bytes))))
        }
    };
    parsed.map_err(|(line, problem)| {
        let problem = match problem {
            TableProblem::Separator(separator, _) => {
                TableProblem::Separator(separator, with_commas(path, separator, form))
            }
            TableProblem::Foreign(_) => problem,
            other => match Content::of(&bytes, &bytes) {
                Some(content) => TableProblem::Foreign(foreign(content, path)),
                None => other,
            },
        };
        DataError::Table(path.to_owned(), line, problem)
    })
}

/// Returns a command that writes the table with commas between fields. With semicolons, commas in numbers become decimal
/// points.
fn with_commas(path: &Path, separator: char, form: Form) -> String {
    let fields = match (separator, form) {
        (';', Form::Targets) => "r[:1] + [f.replace(\",\", \".\") for f in r[1:]]",
        (';', Form::Samples) => "[re.sub(r\"^([+-]?\\d+),(\\d+)$\", r\"\\1.\\2\", f) for f in r]",
        _ => "r",
    };
    rewrite(path, |from, to| {
        format!(
            "python3 -c 'import csv, re, sys; csv.writer(open(sys.argv[2], \"x\", newline=\"\", encoding=\"utf-8\")).writerows({fields} \
             for r in csv.reader(open(sys.argv[1], newline=\"\", encoding=\"utf-8-sig\"), delimiter=\"{}\") if r and not \
             r[0].startswith(\"sep=\"))' {from} {to}",
            separator.escape_default()
        )
    })
}

/// Returns a command that replaces the table by what the command of `convert` writes from one file to another. The old
/// file stays under another name, and keeps its own if the conversion fails.
fn rewrite(path: &Path, convert: impl FnOnce(&str, &str) -> String) -> String {
    let free = |ending: &str| word(&unused(&path.with_extension(ending)));
    let (table, old, new) = (word(path), free("old.csv"), free("new.csv"));
    format!("{} && mv {table} {old} && mv {new} {table}", convert(&table, &new))
}

/// Says what a file that is not UTF-8 is, and how to convert it.
fn not_utf8(path: &Path, bytes: &[u8]) -> String {
    let content = Content::of(bytes, bytes);
    let from = match content {
        Some(Content::Utf16) => "UTF-16",
        // Of Western Windows; a wrong guess shows in the names of images only.
        None => "WINDOWS-1252",
        Some(content) => {
            return match content.unpacker() {
                Some(program) => {
                    let command = rewrite(path, |from, to| format!("{program} -dc < {from} > {to}"));
                    format!("{content}; unpack it with `{command}`")
                }
                None => foreign(content, path),
            };
        }
    };
    let command = rewrite(path, |old, new| format!("iconv -f {from} -t UTF-8 {old} > {new}"));
    format!("not UTF-8; convert it with `{command}`")
}

fn foreign(content: Content, path: &Path) -> String {
    format!("{content}; {}", content.remedy(path).unwrap_or_else(|| "save it as CSV in UTF-8".to_owned()))
}

fn word(path: &Path) -> String {
    shell_word(&path.to_string_lossy())
}
