//! Reading of CSV (RFC 4180), strictly: a quote that does not end, or that text follows, is an error in its line.
//!
//! Cells end with commas, semicolons, tabs or bars. A cell in quotes may hold these, line breaks, and quotes written twice.
//! Spaces around cells and empty lines do not count.

use std::borrow::Cow;

use dtrain_recipe::Separator;

use super::super::table_problem::TableProblem;

/// A row of a table.
pub(super) struct Row<'a> {
    /// The number of its first line, from 1.
    pub(super) line: usize,
    pub(super) cells: Vec<Cow<'a, str>>,
}

/// The rows that are not read yet. An error has the number of its line and is the last item.
#[derive(Clone)]
pub(super) struct Rows<'a> {
    rest: &'a str,
    /// The line at which `rest` begins, from 1.
    line: usize,
    separator: char,
}

/// A problem, and the line that has it.
pub(super) type LineProblem = (usize, TableProblem);

/// Returns the row of names and the rows after it. `stated` or a line `sep=;`, which Excel writes, names what ends a cell; else
/// the only separator in the row of names does, or of several the one that makes names for which `is_header`. `example` is the
/// first line of such a table.
pub(super) fn read<'a>(
    text: &'a str,
    stated: Separator,
    example: &'static str,
    is_header: impl Fn(&[Cow<'_, str>]) -> bool,
) -> Result<(Row<'a>, Rows<'a>), LineProblem> {
    let mut rows = Rows { rest: text, line: 1, separator: ',' };
    rows.skip_empty();
    let of_line = rows.rest.strip_prefix("sep=").and_then(|rest| rest.chars().next());
    let of_line = of_line.filter(|&letter| Separator::ALL.iter().any(|it| it.letter() == Some(letter)));
    if of_line.is_some() {
        rows.skip_line();
        rows.skip_empty();
    }
    rows.separator = match stated.letter().or(of_line) {
        Some(separator) => separator,
        None => rows.found_separator(is_header)?,
    };
    let row = rows.next().unwrap_or(Err((1, TableProblem::Empty(example))))?;
    Ok((row, rows))
}

impl<'a> Rows<'a> {
    /// Returns what ends a cell.
    pub(super) fn separator(&self) -> char {
        self.separator
    }

    /// Returns the separator of the row of names, which is next.
    fn found_separator(&self, is_header: impl Fn(&[Cow<'_, str>]) -> bool) -> Result<char, LineProblem> {
        let mut is_quoted = false;
        let outside = self.rest.chars().filter(|letter| {
            is_quoted ^= *letter == '"';
            !is_quoted
        });
        let outside: String = outside.take_while(|letter| *letter != '\n').collect();
        let all = Separator::ALL.iter().filter_map(|separator| separator.letter());
        let found: Vec<char> = all.filter(|&separator| outside.contains(separator)).collect();
        let makes_header = |separator: &&char| {
            let row = Rows { separator: **separator, ..self.clone() }.next();
            matches!(row, Some(Ok(row)) if is_header(&row.cells))
        };
        match found.as_slice() {
            [] => Ok(','),
            [only] => Ok(*only),
            several => match several.iter().find(makes_header) {
                Some(separator) => Ok(*separator),
                None => Err((self.line, TableProblem::Separators(several.to_vec()))),
            },
        }
    }

    fn is_blank(&self, letter: char) -> bool {
        letter.is_whitespace() && letter != '\n' && letter != self.separator
    }

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
            match self.rest.trim_start_matches(|letter| self.is_blank(letter)).strip_prefix('"') {
                Some(quoted) => {
                    let (cell, after) = self.unquote(quoted)?;
                    self.line += cell.matches('\n').count();
                    cells.push(cell);
                    self.rest = after;
                }
                None => {
                    let end = self.rest.find([self.separator, '\n']).unwrap_or(self.rest.len());
                    cells.push(Cow::Borrowed(self.rest[..end].trim()));
                    self.rest = &self.rest[end..];
                }
            }
            match self.rest.strip_prefix(self.separator) {
                Some(next) => self.rest = next,
                None => {
                    self.skip_line();
                    return Ok(cells);
                }
            }
        }
    }

    /// Returns a quoted cell whose first quote is gone, and the text from the separator or line break after it on.
    fn unquote<'t>(&self, text: &'t str) -> Result<(Cow<'t, str>, &'t str), TableProblem> {
        let mut end = 0;
        loop {
            end += text[end..].find('"').ok_or(TableProblem::Quote)?;
            if !text[end + 1..].starts_with('"') {
                break;
            }
            end += 2;
        }
        let after = text[end + 1..].trim_start_matches(|letter| self.is_blank(letter));
        match after.is_empty() || after.starts_with([self.separator, '\n']) {
            true => Ok((Cow::Owned(text[..end].replace("\"\"", "\"")), after)),
            false => Err(TableProblem::Quote),
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

#[cfg(test)]
mod tests;
