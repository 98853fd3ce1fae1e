//! The file of a table, and the commands that convert files in other encodings.

use std::path::Path;

use dtrain_common::content::{Content, shell_word};
use dtrain_common::files::unused;

use super::super::error::DataError;
use super::super::regular;
use super::super::table_problem::TableProblem;
use super::csv::LineProblem;
use super::encoding::{self, NoText};

/// What a table holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    /// The remedy of a missing file.
    pub(super) remedy: &'static str,
    pub(super) json: Json,
}

/// The kind of JSON that is given as a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Json {
    Expected,
    /// A table under a wrong name.
    Misnamed,
    Foreign,
}

impl Form {
    /// Any columns.
    pub(super) const SAMPLES: Self =
        Self { remedy: "set data.root to the file of the table", json: Json::Misnamed };
}

/// Reads the table at `path` by `parse`.
pub(super) fn read<T>(
    path: &Path,
    form: Form,
    parse: impl FnOnce(&str) -> Result<T, LineProblem>,
) -> Result<T, DataError> {
    let mut bytes = Vec::new();
    regular::read(path, &mut bytes)
        .map_err(|source| DataError::UnreadableTable(path.to_owned(), source, form.remedy))?;
    let parsed = encoding::decode(&bytes).map_err(|(line, problem)| {
        let content = Content::of(&bytes, &bytes);
        (line, TableProblem::Foreign(no_text(problem, content, path, form)))
    });
    parsed.and_then(|text| parse(&text)).map_err(|(line, problem)| {
        let problem = match (problem, Content::of(&bytes, &bytes)) {
            (problem @ TableProblem::Foreign(_), _) | (problem, None | Some(Content::Utf16)) => problem,
            (problem, Some(Content::Json)) if form.json == Json::Expected => problem,
            (_, Some(content)) => TableProblem::Foreign(foreign(content, path, form)),
        };
        DataError::Table(path.to_owned(), line, problem)
    })
}

/// Returns a command that replaces the table by what the command of `convert` writes from one file to another. The old
/// file stays under another name, and keeps its own if the conversion fails.
fn rewrite(path: &Path, convert: &dyn Fn(&str, &str) -> String) -> String {
    let free = |ending: &str| word(&unused(&path.with_extension(ending)));
    let (table, old, new) = (word(path), free("old.csv"), free("new.csv"));
    format!("{} && mv {table} {old} && mv {new} {table}", convert(&table, &new))
}

/// Says what a file without a text is, and how to convert it.
fn no_text(problem: NoText, content: Option<Content>, path: &Path, form: Form) -> String {
    let iconv = |name: &str| rewrite(path, &|old, new| format!("iconv -f {name} -t UTF-8 {old} > {new}"));
    match (problem, content) {
        (NoText::Unmarked(name), _) => {
            format!("a text in UTF-16 without a byte order mark; convert it with `{}`", iconv(name))
        }
        (NoText::DamagedUtf16, _) => {
            "damaged: it begins as UTF-16 and has other bytes from this line on; export it again".to_owned()
        }
        // Of Western Windows; a wrong guess shows in the names of images only.
        (NoText::NotUtf8, None) => format!("not UTF-8; convert it with `{}`", iconv("WINDOWS-1252")),
        (NoText::NotUtf8, Some(content)) => unpacked(content, path, form),
    }
}

/// Says what a file is, and how to unpack it if it is packed.
fn unpacked(content: Content, path: &Path, form: Form) -> String {
    match content.unpacker() {
        Some(program) => {
            let command = rewrite(path, &|from, to| format!("{program} -dc < {from} > {to}"));
            format!("{content}; unpack it with `{command}`")
        }
        None => foreign(content, path, form),
    }
}

fn foreign(content: Content, path: &Path, form: Form) -> String {
    let usual = match content {
        Content::Json if form.json == Json::Misnamed => {
            "name it .jsonl if it has an object in each line, else save it as CSV"
        }
        _ => "save it as CSV in UTF-8",
    };
    format!("{content}; {}", content.remedy(path).unwrap_or_else(|| usual.to_owned()))
}

fn word(path: &Path) -> String {
    shell_word(&path.to_string_lossy())
}
