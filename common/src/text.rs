//! Plain text for the tables of the command line: aligned columns and readable numbers.

use std::fmt::Write;

use crate::units::ByteSize;

/// Alignment of a column's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Appends rows, indented by `indent` spaces, with two spaces between columns. No line ends in spaces.
pub fn columns(out: &mut String, indent: usize, align: &[Align], rows: &[Vec<String>]) {
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..align.len()).map(width).collect();
    for row in rows {
        let mut line = " ".repeat(indent);
        for (column, cell) in row.iter().enumerate() {
            if column > 0 {
                line.push_str("  ");
            }
            let blanks = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
            match align[column] {
                Align::Left => line.extend([cell.as_str(), &blanks]),
                Align::Right => line.extend([&blanks, cell.as_str()]),
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}

/// Writes a number as `26,214,400`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Writes a count as `1 rank` or `2 ranks`.
pub fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Writes a size with two decimals in the largest binary unit.
pub fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

/// Appends a paragraph, broken at 100 columns; lines after the first are indented by `indent`.
pub fn paragraph(out: &mut String, indent: usize, text: &str) {
    wrapped(out, 100, 0, indent, text);
}

/// Appends a paragraph, broken at `width` columns. The first line has `column` columns already; later ones
/// are indented by `indent`.
pub fn wrapped(out: &mut String, width: usize, mut column: usize, indent: usize, text: &str) {
    let mut is_first = true;
    for word in text.split(' ') {
        let length = word.chars().count();
        if !is_first && column + 1 + length > width {
            let _ = write!(out, "\n{}", " ".repeat(indent));
            column = indent;
        } else if !is_first {
            out.push(' ');
            column += 1;
        }
        is_first = false;
        out.push_str(word);
        column += length;
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_end_with_text() {
        let mut out = String::new();
        let rows = [["a", "1"], ["long", ""], ["b", "333"]].map(|row| row.map(str::to_owned).to_vec());
        columns(&mut out, 1, &[Align::Left, Align::Right], &rows);
        assert_eq!(out, " a       1\n long\n b     333\n");
    }

    #[test]
    fn numbers_and_paragraphs() {
        assert_eq!([0, 999, 1000, 26_214_400].map(grouped), ["0", "999", "1,000", "26,214,400"]);
        assert_eq!((counted(1, "rank"), counted(2, "rank")), ("1 rank".into(), "2 ranks".into()));
        let mut out = String::new();
        paragraph(&mut out, 2, "word ".repeat(30).trim_end());
        assert!(out.lines().all(|line| line.len() <= 100));
        assert!(out.lines().skip(1).all(|line| line.starts_with("  word")));
        assert_eq!(out.split_whitespace().count(), 30);
    }
}
