//! The table of numbers beside the images of a split: `targets.csv`.
//!
//! The first line is `file,NAME,...`. Each further line has the path of an image below the table's folder and
//! a number for each name. Fields may be quoted (RFC 4180), but have no line breaks. Empty lines are skipped.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Component, Path};

use super::ignored::is_image;

/// The name of the table.
pub const TARGETS: &str = "targets.csv";

/// A table as read.
#[derive(Debug, Clone, PartialEq)]
pub struct TargetTable {
    /// The names of the numbers.
    pub names: Vec<String>,
    pub rows: Vec<TableRow>,
}

/// A line of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct TableRow {
    /// From 1.
    pub line: usize,
    /// The path of the image, with `/` between names.
    pub file: String,
    pub numbers: Vec<f32>,
}

/// A problem with a line of a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableProblem {
    #[error("the table is empty; write the line `file,NAME,...` and a line for each image")]
    Empty,
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
    #[error("the name {0:?} occurs twice; give each number a different name")]
    DuplicateName(String),
    #[error("the line has {} fields, and the first line {}; write a path and one number for each name{}", .0, .1, match .0 > .1 {
        true => ", with decimal points: a comma ends a field",
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
}

impl TargetTable {
    /// Reads a table from its text; an error has the number of its line, from 1.
    pub fn parse(text: &str) -> Result<Self, (usize, TableProblem)> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
        let mut lines = lines.peekable();
        if let Some((line, first)) = lines.peek() {
            match separator(first) {
                Some(',') => drop(lines.next()),
                Some(other) => return Err((*line, TableProblem::Separator(other, String::new()))),
                None => {}
            }
        }
        let mut lines = lines.map(|(number, line)| (number, fields(line)));
        let Some((line, header)) = lines.next() else { return Err((1, TableProblem::Empty)) };
        let names = header.and_then(names).map_err(|problem| (line, problem))?;
        let (mut rows, mut seen) = (Vec::new(), HashMap::new());
        for (line, fields) in lines {
            let row =
                fields.and_then(|fields| row(line, &fields, &names)).map_err(|problem| (line, problem))?;
            if let Some(earlier) = seen.insert(row.file.clone(), line) {
                return Err((line, TableProblem::Duplicate(row.file, earlier)));
            }
            rows.push(row);
        }
        Ok(Self { names, rows })
    }
}

/// Splits a line into its fields, without spaces around them.
fn fields(line: &str) -> Result<Vec<Cow<'_, str>>, TableProblem> {
    let mut found = Vec::new();
    let mut rest = line;
    loop {
        let (field, after) = match rest.trim_start().strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                (Cow::Borrowed(rest[..end].trim()), &rest[end..])
            }
        };
        found.push(field);
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None => return Ok(found),
        }
    }
}

/// Returns a quoted field whose first quote is gone, and the text from the next comma on.
fn unquote(text: &str) -> Result<(Cow<'_, str>, &str), TableProblem> {
    let mut end = 0;
    loop {
        end += text[end..].find('"').ok_or(TableProblem::Quote)?;
        if !text[end + 1..].starts_with('"') {
            break;
        }
        end += 2;
    }
    let after = text[end + 1..].trim_start();
    match after.is_empty() || after.starts_with(',') {
        true => Ok((Cow::Owned(text[..end].replace("\"\"", "\"")), after)),
        false => Err(TableProblem::Quote),
    }
}

/// Returns the separator that a line `sep=;` of Excel states, or another one than commas after the name `file`.
fn separator(first: &str) -> Option<char> {
    if let Some(stated) = first.strip_prefix("sep=") {
        return stated.chars().next().filter(|stated| matches!(stated, ',' | ';' | '\t' | '|'));
    }
    let first = first.trim_start();
    let after = first.strip_prefix("\"file\"").or_else(|| first.strip_prefix("file"))?;
    after.trim_start_matches(' ').chars().next().filter(|next| matches!(next, ';' | '\t'))
}

fn names(header: Vec<Cow<'_, str>>) -> Result<Vec<String>, TableProblem> {
    let (first, names) = header.split_first().ok_or(TableProblem::Empty)?;
    if first != "file" {
        return Err(TableProblem::NoHeader(first.to_string()));
    }
    if names.is_empty() {
        return Err(TableProblem::NoNames);
    }
    for (number, name) in names.iter().enumerate() {
        if name.is_empty() {
            return Err(TableProblem::EmptyName(number + 1));
        }
        if names[..number].contains(name) {
            return Err(TableProblem::DuplicateName(name.to_string()));
        }
    }
    Ok(names.iter().map(ToString::to_string).collect())
}

/// Returns whether the comma of a number may separate thousands.
fn may_group(number: &str) -> bool {
    let groups = number.trim_start_matches(['+', '-']).split_once(',');
    groups.is_some_and(|(first, rest)| {
        (1..=3).contains(&first.len()) && !first.starts_with('0') && rest.len() == 3
    })
}

fn row(line: usize, fields: &[Cow<'_, str>], names: &[String]) -> Result<TableRow, TableProblem> {
    let (file, texts) = match fields {
        [file, texts @ ..] if texts.len() == names.len() => (file, texts),
        _ => return Err(TableProblem::Fields(fields.len(), names.len() + 1)),
    };
    let is_below =
        !file.is_empty() && Path::new(&**file).components().all(|part| matches!(part, Component::Normal(_)));
    if !is_below {
        return Err(TableProblem::Path(file.to_string()));
    }
    let number = |(name, text): (&String, &Cow<'_, str>)| {
        let number = text.parse().ok().filter(|number: &f32| number.is_finite());
        number.ok_or_else(|| TableProblem::NotANumber { name: name.clone(), text: text.to_string() })
    };
    let numbers = names.iter().zip(texts).map(number).collect::<Result<_, _>>()?;
    Ok(TableRow { line, file: file.to_string(), numbers })
}

#[cfg(test)]
mod tests;
