//! Reading of CSV (RFC 4180), strictly: a quote that does not end, or that text follows, is an error in its line.
//!
//! Cells end with commas. A cell in quotes may hold commas, line breaks, and quotes written twice. Spaces around cells and
//! empty lines do not count.

use std::borrow::Cow;

use super::super::table_problem::TableProblem;

/// A row of a table.
pub(super) struct Row<'a> {
    /// The number of its first line, from 1.
    pub(super) line: usize,
    pub(super) cells: Vec<Cow<'a, str>>,
}

/// The rows that are not read yet. An error has the number of its line and is the last item.
pub(super) struct Rows<'a> {
    rest: &'a str,
    /// The line at which `rest` begins, from 1.
    line: usize,
}

/// A problem, and the line that has it.
pub(super) type LineProblem = (usize, TableProblem);

/// Returns the row of names, for which `is_header`, and the rows after it. Returns the first row if it has no names, unless
/// its cells end with another character than commas. `example` is the first line of such a table. A line `sep=,`, which Excel
/// writes, is skipped.
pub(super) fn read<'a>(
    text: &'a str,
    example: &'static str,
    is_header: impl Fn(&[Cow<'_, str>]) -> bool,
) -> Result<(Row<'a>, Rows<'a>), LineProblem> {
    let mut rows = Rows { rest: text.strip_prefix('\u{feff}').unwrap_or(text), line: 1 };
    rows.skip_empty();
    let stated = rows.rest.strip_prefix("sep=").and_then(|stated| stated.chars().next());
    let stated = stated.filter(|&stated| is_separator(stated));
    if stated == Some(',') {
        rows.skip_line();
        rows.skip_empty();
    }
    let (line, first) = (rows.line, rows.first_line());
    let row = rows.next();
    if !matches!(&row, Some(Ok(row)) if is_header(&row.cells))
        && let Some(separator) = stated.or_else(|| separator(first)).filter(|&separator| separator != ',')
    {
        return Err((line, TableProblem::Separator(separator, String::new())));
    }
    let row = row.unwrap_or(Err((1, TableProblem::Empty(example))))?;
    Ok((row, rows))
}

fn is_separator(letter: char) -> bool {
    matches!(letter, ',' | ';' | '\t' | '|')
}

/// Returns the first separator outside of quotes.
fn separator(line: &str) -> Option<char> {
    let mut is_quoted = false;
    line.chars().find(|&letter| {
        is_quoted ^= letter == '"';
        !is_quoted && is_separator(letter)
    })
}

fn is_blank(letter: char) -> bool {
    letter.is_whitespace() && letter != '\n'
}

impl<'a> Rows<'a> {
    fn first_line(&self) -> &'a str {
        self.rest.split('\n').next().unwrap_or_default()
    }

    fn skip_line(&mut self) {
        self.rest = self.rest.split_once('\n').map_or("", |(_, rest)| rest);
        self.line += 1;
    }

    fn skip_empty(&mut self) {
        while !self.rest.is_empty() && self.first_line().trim().is_empty() {
            self.skip_line();
        }
    }

    fn cells(&mut self) -> Result<Vec<Cow<'a, str>>, TableProblem> {
        let mut cells = Vec::new();
        loop {
            match self.rest.trim_start_matches(is_blank).strip_prefix('"') {
                Some(quoted) => {
                    let (cell, after) = unquote(quoted)?;
                    self.line += cell.matches('\n').count();
                    cells.push(cell);
                    self.rest = after;
                }
                None => {
                    let end = self.rest.find([',', '\n']).unwrap_or(self.rest.len());
                    cells.push(Cow::Borrowed(self.rest[..end].trim()));
                    self.rest = &self.rest[end..];
                }
            }
            match self.rest.strip_prefix(',') {
                Some(next) => self.rest = next,
                None => {
                    self.skip_line();
                    return Ok(cells);
                }
            }
        }
    }
}

impl<'a> Iterator for Rows<'a> {
    type Item = Result<Row<'a>, LineProblem>;

    fn next(&mut self) -> Option<Self::Item> {
        self.skip_empty();
        if self.rest.is_empty() {
            return None;
        }
        let line = self.line;
        Some(match self.cells() {
            Ok(cells) => Ok(Row { line, cells }),
            Err(problem) => {
                self.rest = "";
                Err((line, problem))
            }
        })
    }
}

/// Returns a quoted cell whose first quote is gone, and the text from the comma or line break after it on.
fn unquote(text: &str) -> Result<(Cow<'_, str>, &str), TableProblem> {
    let mut end = 0;
    loop {
        end += text[end..].find('"').ok_or(TableProblem::Quote)?;
        if !text[end + 1..].starts_with('"') {
            break;
        }
        end += 2;
    }
    let after = text[end + 1..].trim_start_matches(is_blank);
    match after.is_empty() || after.starts_with([',', '\n']) {
        true => Ok((Cow::Owned(text[..end].replace("\"\"", "\"")), after)),
        false => Err(TableProblem::Quote),
    }
}

#[cfg(test)]
mod tests;
