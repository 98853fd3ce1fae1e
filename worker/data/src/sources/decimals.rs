//! Numbers in the cells of a table.

use super::super::table_problem::{TableProblem, may_group};
use super::csv::LineProblem;

/// Reads the numbers of a table, which have one decimal mark: a point or, where commas end no cell, a comma.
#[derive(Debug)]
pub(super) struct Decimals {
    /// What ends a cell.
    separator: char,
    /// The mark of the numbers so far, and the line of the first.
    mark: Option<(char, usize)>,
    /// Whether a number has a comma that separates no thousands.
    has_comma: bool,
    /// The first number whose comma may separate thousands, as in 1,234.
    doubtful: Option<LineProblem>,
}

impl Decimals {
    pub(super) fn new(separator: char) -> Self {
        Self { separator, mark: None, has_comma: false, doubtful: None }
    }

    /// Reads the finite number of the column `name`.
    pub(super) fn read(&mut self, line: usize, name: &str, text: &str) -> Result<f32, TableProblem> {
        let is_mark = |letter: &char| matches!(letter, '.' | ',');
        let mut marks = text.chars().filter(is_mark);
        let (mark, is_only) = (marks.next(), marks.next().is_none());
        let number = match mark {
            Some(',') if is_only && self.separator != ',' => text.replace(',', ".").parse(),
            _ => text.parse(),
        };
        let problem = || TableProblem::NotANumber { name: name.to_owned(), text: text.to_owned() };
        let number = number.ok().filter(|number: &f32| number.is_finite()).ok_or_else(problem)?;
        let Some(mark) = mark else { return Ok(number) };
        let (first, earlier) = *self.mark.get_or_insert((mark, line));
        if first != mark {
            return Err(TableProblem::TwoMarks { name: name.to_owned(), text: text.to_owned(), earlier });
        }
        match mark == ',' && may_group(text) {
            true => drop(self.doubtful.get_or_insert_with(|| (line, problem()))),
            false => self.has_comma |= mark == ',',
        }
        Ok(number)
    }

    /// Checks that commas are decimal points: semicolons end cells for their sake, or a number shows it.
    pub(super) fn checked(self) -> Result<(), LineProblem> {
        match self.doubtful {
            Some(problem) if self.separator != ';' && !self.has_comma => Err(problem),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_comma_is_a_decimal_point_where_it_ends_no_cell() {
        let mut german = Decimals::new(';');
        for (text, number) in [("1,5", 1.5), ("-0,25", -0.25), ("3", 3.0), ("1,234", 1.234), ("1,5e2", 150.0)]
        {
            assert_eq!(german.read(1, "a", text).unwrap(), number, "{text}");
        }
        let problem = german.read(7, "a", "1.5").unwrap_err();
        assert_eq!(
            problem,
            TableProblem::TwoMarks { name: "a".to_owned(), text: "1.5".to_owned(), earlier: 1 }
        );
        for text in ["1.234,5", "1,234,567", "", "nan", "1e99", "inf", "-"] {
            let problem = Decimals::new(';').read(1, "a", text).unwrap_err();
            assert!(matches!(problem, TableProblem::NotANumber { .. }), "{text}");
        }
        assert!(Decimals::new(',').read(1, "a", "1,5").is_err());
        assert_eq!(Decimals::new(',').read(1, "a", "1.5").unwrap(), 1.5);
    }

    #[test]
    fn commas_that_may_separate_thousands_are_an_error_unless_another_number_tells() {
        let of = |separator, texts: &[&str]| {
            let mut decimals = Decimals::new(separator);
            for (line, text) in (2..).zip(texts) {
                decimals.read(line, "a", text).unwrap();
            }
            decimals.checked()
        };
        let problem = TableProblem::NotANumber { name: "a".to_owned(), text: "1,234".to_owned() };
        assert_eq!(of('\t', &["7", "1,234", "12,500"]), Err((3, problem)));
        assert_eq!(of('\t', &["1,234", "12,5"]), Ok(()));
        assert_eq!(of('\t', &["0,234"]), Ok(()));
        assert_eq!(of(';', &["1,234"]), Ok(()));
    }
}
