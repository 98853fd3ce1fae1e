//! Figures by class, for people.

use std::collections::BTreeSet;

use dtrain_parts::figures::OfClasses;

use crate::metrics::figure;

/// The most classes of a table, and of one with the counts of each target and prediction.
const MOST: usize = 20;
const MOST_OF_COUNTS: usize = 10;

/// Returns the lines of tables: for each list of classes one with a column for each figure, and one of counts.
pub(super) fn tables(all: &[OfClasses]) -> Vec<String> {
    let lists: BTreeSet<&[String]> = all.iter().map(|of| &of.classes[..]).collect();
    let mut lines = Vec::new();
    for classes in lists {
        let own: Vec<_> = all.iter().filter(|of| of.classes == classes).collect();
        if classes.len() > MOST {
            let names: Vec<_> = own.iter().map(|of| of.figure.as_str()).collect();
            lines.push(format!("  {} classes by {}: see --json", classes.len(), names.join(", ")));
            continue;
        }
        let cell = |of: &OfClasses, at: usize| match of.values[at] {
            value if value.is_nan() => "-".to_owned(),
            value => figure(&of.figure, value),
        };
        let head = own.iter().map(|of| heading(of)).collect();
        let rows = (0..classes.len()).map(|at| own.iter().map(|of| cell(of, at)).collect());
        lines.extend(table("class", head, classes, rows));
        for counts in own.iter().filter_map(|of| of.confusion.as_ref()) {
            if classes.len() <= MOST_OF_COUNTS {
                let rows = counts.iter().map(|row| row.iter().map(f64::to_string).collect());
                lines.extend(table("target \\ predicted", classes.to_vec(), classes, rows));
            }
        }
    }
    lines
}

/// Returns the heading of a figure's column: by class the kappa of all has the part that is right.
fn heading(of: &OfClasses) -> String {
    if of.confusion.is_some() { "right".to_owned() } else { of.figure.replace('_', " ") }
}

fn table(
    corner: &str,
    head: Vec<String>,
    names: &[String],
    rows: impl Iterator<Item = Vec<String>>,
) -> Vec<String> {
    let rows: Vec<_> =
        [(corner.to_owned(), head)].into_iter().chain(names.iter().cloned().zip(rows)).collect();
    let length = |text: &String| text.chars().count();
    let first = rows.iter().map(|(name, _)| length(name)).max().unwrap_or(0);
    let width = rows.iter().flat_map(|(_, cells)| cells.iter().map(length)).max().unwrap_or(0);
    let line = |(name, cells): &(String, Vec<String>)| {
        let cells: String = cells.iter().map(|cell| format!("  {cell:>width$}")).collect();
        format!("  {name:<first$}{cells}")
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_classes_are_a_table_and_many_a_line() {
        let of = |figure: &str, classes: usize, confusion| OfClasses {
            figure: figure.to_owned(),
            classes: (0..classes).map(|at| format!("class {at}")).collect(),
            values: (0..classes).map(|at| if at == 1 { f64::NAN } else { 0.5 }).collect(),
            confusion,
        };
        let counts = Some(vec![vec![3.0, 1.0], vec![0.0, 12.0]]);
        let lines = tables(&[of("recall", 2, None), of("kappa", 2, counts)]);
        let expected = [
            "  class    recall   right",
            "  class 0  0.5000  0.5000",
            "  class 1       -       -",
            "  target \\ predicted  class 0  class 1",
            "  class 0                   3        1",
            "  class 1                   0       12",
        ];
        assert_eq!(lines, expected);
        assert_eq!(tables(&[of("iou", 21, None)]), ["  21 classes by iou: see --json"]);
    }
}
