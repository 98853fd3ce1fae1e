#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

type Read = Vec<(usize, Vec<String>)>;

fn all(text: &str) -> Result<Read, LineProblem> {
    let (header, rows) = read(text, Separator::Auto, "a,b", |_| true)?;
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
    let text = "a, b \r\n\r\n \"x, \"\"y\"\"\" ,1\r\n\"two\nlines\", \"2\"\t\n  \n3,\n,";
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
fn the_line_of_names_tells_the_separator() {
    let read = |text: &str, stated| {
        let found = read(text, stated, "a,b", |cells| cells.iter().any(|cell| cell == "b"));
        found.map(|(row, rest)| (row.cells.len(), rest.separator))
    };
    for (text, cells, separator) in [
        ("sep=;\na;b\n", 2, ';'),
        ("sep=;\na,b\n", 1, ';'),
        ("\na\tb\n", 2, '\t'),
        ("\"a,\";\"b\"\n", 2, ';'),
        ("sep=|\na|b", 2, '|'),
        // Of several, the one that gives a wanted name.
        ("a;b,c\n", 0, ' '),
        ("a;c,b\n", 2, ','),
        ("\t,b\n", 2, ','),
        ("\"a;b\"", 1, ','),
        ("sep='\n", 1, ','),
        ("c;a\n", 2, ';'),
    ] {
        let expected = match text {
            // Neither `b,c` nor `a;b` is wanted.
            "a;b,c\n" => Err((1, TableProblem::Separators(vec![',', ';']))),
            _ => Ok((cells, separator)),
        };
        assert_eq!(read(text, Separator::Auto), expected, "{text:?}");
    }
    assert_eq!(read("sep=,\na;b,c\n", Separator::Semicolon), Ok((2, ';')), "a stated separator goes first");
    assert_eq!(read(" \n\n", Separator::Auto), Err((1, TableProblem::Empty("a,b"))));
}

#[test]
fn tabs_are_no_blanks_where_they_end_cells() {
    let (_, rows) = read("a\tb\tc\n\t \"x\ty\" \t\n", Separator::Auto, "a", |_| true).unwrap();
    let cells: Vec<Vec<String>> =
        rows.map(|row| row.unwrap().cells.iter().map(ToString::to_string).collect()).collect();
    assert_eq!(cells, [["", "x\ty", ""]]);
}

proptest! {
    #[test]
    fn any_text_reads_or_is_an_error_in_a_line(text in "(sep=[,;|])?[\",;|\ta \r\n\u{feff}]{0,40}") {
        match all(&text) {
            Ok(rows) => prop_assert!(rows.iter().all(|(_, cells)| !cells.is_empty())),
            Err((line, _)) => prop_assert!((1..=text.matches('\n').count() + 1).contains(&line)),
        }
    }

    #[test]
    fn written_rows_read(
        rows in prop::collection::vec(prop::collection::vec("[a\", ;|\t\n]{0,4}", 2..4), 1..5),
        separator in prop::sample::select(vec![",", ";", "\t", "|"]),
    ) {
        let quoted = |cell: &String| format!("\"{}\"", cell.replace('"', "\"\""));
        let lines = rows.iter().map(|row| row.iter().map(quoted).collect::<Vec<_>>().join(&format!(" {separator} ")));
        let text = lines.collect::<Vec<_>>().join("\r\n\n");
        let found: Vec<_> = all(&text).unwrap().into_iter().map(|(_, cells)| cells).collect();
        prop_assert_eq!(found, rows);
    }
}
