//! Fits a table to the width of a terminal.

use dtrain_common::text::{Align, columns};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Spaces between two columns.
const GAP: usize = 2;

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) title: &'static str,
    pub(super) align: Align,
    /// Of the shown columns the one with the lowest importance is left out first.
    pub(super) importance: u8,
    /// The width to which longer texts may be cut.
    pub(super) least: usize,
}

/// Returns the title and the rows as lines of at most `width` columns. Texts are cut first, then columns are left out.
pub(super) fn lines(all: &[Column], rows: &[Vec<String>], width: usize) -> Vec<String> {
    let natural: Vec<usize> = (0..all.len())
        .map(|index| rows.iter().map(|row| row[index].width()).max().unwrap_or(0).max(all[index].title.len()))
        .collect();
    let mut shown: Vec<usize> = (0..all.len()).collect();
    let least = |index: &usize| natural[*index].min(all[*index].least.max(all[*index].title.len()));
    let gaps = |shown: &[usize]| GAP * shown.len().saturating_sub(1);
    while shown.len() > 1 && shown.iter().map(least).sum::<usize>() + gaps(&shown) > width {
        let lowest = shown.iter().enumerate().min_by_key(|(_, index)| all[**index].importance);
        let Some((place, _)) = lowest else { break };
        shown.remove(place);
    }
    let total: usize = shown.iter().map(|index| natural[*index]).sum::<usize>() + gaps(&shown);
    let mut excess = total.saturating_sub(width);
    let mut widths = natural.clone();
    // From the right: an explanation is cut before the name.
    for index in shown.iter().rev() {
        let spare = natural[*index] - least(index);
        let less = spare.min(excess);
        widths[*index] -= less;
        excess -= less;
    }
    if let [only] = shown[..] {
        widths[only] = natural[only].min(width);
    }
    let title = all.iter().map(|column| column.title.to_owned()).collect();
    let table: Vec<Vec<String>> = std::iter::once(&title)
        .chain(rows)
        .map(|row: &Vec<String>| {
            // The last parts of a path tell runs of a sweep apart.
            let fit = |index: &usize| match index {
                0 => cut_front(&row[0], widths[0]),
                index => cut(&row[*index], widths[*index]),
            };
            shown.iter().map(fit).collect()
        })
        .collect();
    let align: Vec<Align> = shown.iter().map(|index| all[*index].align).collect();
    let mut text = String::new();
    columns(&mut text, 0, &align, &table);
    text.lines().map(|line| cut(line, width)).collect()
}

/// Cuts the end of a longer text.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut used = 1;
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used > width {
            break;
        }
        out.push(c);
    }
    out.extend((width > 0).then_some('…'));
    out
}

/// Cuts the beginning of a longer text.
fn cut_front(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let backwards: String = text.chars().rev().collect();
    cut(&backwards, width).chars().rev().collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use dtrain_common::text::Align::{Left, Right};
    use proptest::prelude::*;

    const COLUMNS: [Column; 4] = [
        Column { title: "run", align: Left, importance: 9, least: 6 },
        Column { title: "job", align: Left, importance: 1, least: usize::MAX },
        Column { title: "step", align: Right, importance: 5, least: usize::MAX },
        Column { title: "about", align: Left, importance: 4, least: 8 },
    ];

    fn at(width: usize) -> Vec<String> {
        let row = |texts: [&str; 4]| texts.map(str::to_owned).to_vec();
        let rows = [row(["sweep/lr-1", "Slurm 7", "9/40", "on n1, since noon"]), row(["b", "-", "-", "why"])];
        lines(&COLUMNS, &rows, width)
    }

    #[test]
    fn texts_are_cut_before_columns_are_left_out() {
        assert_eq!(
            at(usize::MAX)[..2],
            ["run         job      step  about", "sweep/lr-1  Slurm 7  9/40  on n1, since noon"]
        );
        assert_eq!(at(44), at(usize::MAX));
        assert_eq!(at(36)[1], "sweep/lr-1  Slurm 7  9/40  on n1, s…");
        assert_eq!(at(31)[1], "…/lr-1  Slurm 7  9/40  on n1, …");
        assert_eq!(at(30)[1], "sweep/lr-1  9/40  on n1, sinc…");
        assert_eq!(at(18)[1], "sweep/lr-1  9/40");
        assert_eq!(at(5)[1], "…lr-1");
    }

    proptest! {
        #[test]
        fn no_line_wraps(
            texts in prop::collection::vec("[a-z表é ]{0,20}", 8), width in 0usize..60,
        ) {
            let rows: Vec<Vec<String>> = texts.chunks(4).map(<[String]>::to_vec).collect();
            for line in lines(&COLUMNS, &rows, width) {
                prop_assert!(line.width() <= width, "{line:?}");
            }
        }
    }
}
