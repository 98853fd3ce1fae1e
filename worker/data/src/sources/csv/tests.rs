#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

type Read = Vec<(usize, Vec<String>)>;

fn all(text: &str) -> Result<Read, LineProblem> {
    let (header, rows) = read(text, "a,b", |_| true)?;
    let owned = |row: Row<'_>| (row.line, row.cells.iter().map(ToString::to_string).collect::<Vec<_>>());
    let mut found = vec![owned(header)];
    for row in rows {
        found.push(owned(row?));
    }
    Ok(found)
}

fn row(line: usize, cells: &[&str]) -> (usize, Vec<String>) {
    (line, cells.iter().map(|cell| (*cell).to_owned()).collect())
}

#[test]
fn rows_keep_the_numbers_of_their_lines() {
    let text = "\u{feff}a, b \r\n\r\n \"x, \"\"y\"\"\" ,1\r\n\"two\nlines\", \"2\"\t\n  \n3,\n,";
    let expected = [
        row(1, &["a", "b"]),
        row(3, &["x, \"y\"", "1"]),
        row(4, &["two\nlines", "2"]),
        row(7, &["3", ""]),
        row(8, &["", ""]),
    ];
    assert_eq!(all(text).unwrap(), expected);
    assert_eq!(all("\nsep=,\r\n\na\n").unwrap(), [row(4, &["a"])]);
    assert_eq!(all("a\"b,\"\"\n").unwrap(), [row(1, &["a\"b", ""])]);
}

#[test]
fn a_stray_quote_is_an_error_in_its_own_line() {
    for (text, line) in
        [("a,b\n1,\"2\n3,4\n", 2), ("a,b\n1,\"2\n3,\"4\"\n", 2), ("a,b\n1,2\n\"x\" y,4\n", 3), ("\"a,b\n", 1)]
    {
        assert_eq!(all(text).unwrap_err(), (line, TableProblem::Quote), "{text:?}");
    }
}

#[test]
fn other_separators_are_errors_unless_the_names_are_there() {
    let read = |text: &str| {
        read(text, "a,b", |cells| cells.iter().any(|cell| cell == "b")).map(|(row, _)| row.cells.len())
    };
    for (text, line, separator) in [
        ("sep=;\na;b\n", 1, ';'),
        ("\na\tb\n", 2, '\t'),
        ("\"a,\";\"b\"\n", 1, ';'),
        ("sep=|\na|b", 1, '|'),
        ("a;b,c\n", 1, ';'),
    ] {
        let problem = (line, TableProblem::Separator(separator, String::new()));
        assert_eq!(read(text).unwrap_err(), problem, "{text:?}");
    }
    for (text, cells) in [("a;c,b\n", 2), ("c,a;d\n", 2), ("\"a;b\"", 1), ("sep='\n", 1)] {
        assert_eq!(read(text).unwrap(), cells, "{text:?}");
    }
    assert_eq!(read(" \n\n").unwrap_err(), (1, TableProblem::Empty("a,b")));
}

proptest! {
    #[test]
    fn any_text_reads_or_is_an_error_in_a_line(text in "[\",;a \r\n\u{feff}]{0,40}") {
        match all(&text) {
            Ok(rows) => prop_assert!(rows.iter().all(|(_, cells)| !cells.is_empty())),
            Err((line, _)) => prop_assert!((1..=text.matches('\n').count() + 1).contains(&line)),
        }
    }

    #[test]
    fn written_rows_read(rows in prop::collection::vec(prop::collection::vec("[a\", \n]{0,4}", 2..4), 1..5)) {
        let quoted = |cell: &String| format!("\"{}\"", cell.replace('"', "\"\""));
        let lines = rows.iter().map(|row| row.iter().map(quoted).collect::<Vec<_>>().join(" , "));
        let text = lines.collect::<Vec<_>>().join("\r\n\n");
        let found: Vec<_> = all(&text).unwrap().into_iter().map(|(_, cells)| cells).collect();
        prop_assert_eq!(found, rows);
    }
}
