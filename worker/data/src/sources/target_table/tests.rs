#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Result<TargetTable<Vec<f32>>, LineProblem> {
    numbers(text, Separator::Auto, "file,NAME,...")
}

#[test]
fn a_table_has_a_path_and_numbers_in_each_line() {
    let text = "file,age,\"a \"\"b\"\", c\"\r\n\r\na/1.png, 3 ,-1.5e3\n\"b,2.png\" ,0.1, 7\n\n";
    let excel = "sep=,\r\nfile,a\r\nx.png,1\r\n";
    assert_eq!(parse(excel).unwrap().rows[0].line, 3);
    for german in
        ["file;a\nx.png;1,5\n", "sep=;\n\"file\";\"a\"\n\"x.png\";1,5\n", "file\ta\nx.png\t\"1,5\"\n"]
    {
        assert_eq!(parse(german).unwrap().rows[0].value, [1.5], "{german:?}");
    }
    let table = parse(text).unwrap();
    assert_eq!(table.names, ["age", "a \"b\", c"]);
    let row =
        |line, file: &str, numbers: [f32; 2]| TableRow { line, file: file.into(), value: numbers.into() };
    assert_eq!(table.rows, [row(3, "a/1.png", [3.0, -1500.0]), row(4, "b,2.png", [0.1, 7.0])]);
}

#[test]
fn errors_name_the_line_and_the_field() {
    for (text, line, part) in [
        ("", 1, "the table is empty"),
        ("\n \n", 1, "the table is empty"),
        ("\na.png,1\n", 2, "but it begins with \"a.png\""),
        ("\na.png,1\n", 2, "; add such a line"),
        ("image,a\n", 1, "begins with \"image\"; name the column of paths `file`"),
        ("sep=,\nimage,a\n", 2, "begins with \"image\""),
        ("files,a\n", 1, "begins with \"files\""),
        ("file,a\nx.png,\"1,500\"\n", 2, "write 1500, or 1.5 if the comma is a decimal point"),
        ("file,a\nx.png,\"0,500\"\n", 2, "write 0.5, with a point"),
        ("file\n", 1, "the table has no numbers"),
        ("file,a,\n", 1, "the name of number 2 is empty"),
        ("file,a,b,a\n", 1, "the name \"a\" occurs twice"),
        ("file,a\nx.png\n", 2, "the line has 1 fields, and the first line 2"),
        ("file,a\nx.png,1,2\n", 2, "the line has 3 fields"),
        ("file,a\nx.png,1,2\n", 2, "with decimal points: a comma ends a field, except in quotes"),
        ("file,a\nx.png,\"1,5\"\n", 2, "a is \"1,5\", which is not a finite number; write 1.5, with a point"),
        ("file,a\nx.png,1\n\ny.png,one\n", 4, "a is \"one\", which is not a finite number"),
        ("file,a\nx.png,\n", 2, "a is \"\""),
        ("file,a\nx.png,nan\n", 2, "a is \"nan\""),
        ("file,a\nx.png,1e99\n", 2, "a is \"1e99\""),
        ("file,a\n\"x.png,1\n", 2, "a quote does not end"),
        ("file,a\n\"x\".png,1\n", 2, "text follows it"),
        (
            "file,a\nx.png,nan\ny.png,1\nz.png,\n",
            2,
            "or remove the line and its image; 1 more line has this problem",
        ),
        ("file;a\nx.png;1,5\ny.png;2.5\n", 3, "with another decimal mark than the numbers since line 2"),
        (
            "file;a\nx.png;1;5\n",
            2,
            "the line has 3 fields, and the first line 2; write one field for each name: a separator ends",
        ),
        ("files;a,b\n", 1, "set data.separator to the one that ends fields"),
        ("file,a\n../x.png,1\n", 2, "\"../x.png\" is not a path below the folder"),
        ("file,a\n/x.png,1\n", 2, "is not a path below"),
        ("file,a\n,1\n", 2, "\"\" is not a path below"),
        ("file,a\nx.png,1\ny.png,1\nx.png,2\n", 4, "\"x.png\" is also in line 2"),
    ] {
        let (found, problem) = parse(text).unwrap_err();
        assert_eq!(found, line, "{text:?}: {problem}");
        assert!(problem.to_string().contains(part), "{text:?}: {problem}");
    }
}

proptest! {
    #[test]
    fn any_text_reads_or_is_an_error_in_a_line(text: String, rows in "(file,a\n)?([\",a-c. 0-9\n]{0,40})") {
        for text in [text, rows] {
            match parse(&text) {
                Ok(table) => for row in table.rows {
                    prop_assert_eq!(row.value.len(), table.names.len());
                    prop_assert!(row.value.iter().all(|number| number.is_finite()));
                },
                Err((line, _)) => prop_assert!((1..=text.lines().count().max(1)).contains(&line)),
            }
        }
    }

    #[test]
    fn written_tables_read(rows in proptest::collection::btree_map("[a-z\", ]{1,5}x", any::<[i32; 2]>(), 0..6)) {
        let mut text = "file,a,b\n".to_owned();
        for (file, [a, b]) in &rows {
            text += &format!("\"{}\",{a},{b}\n", file.replace('"', "\"\""));
        }
        let table = parse(&text).unwrap();
        let expected: Vec<_> = rows.iter().map(|(file, numbers)| (file.clone(), numbers.map(|it| it as f32).to_vec())).collect();
        let found: Vec<_> = table.rows.into_iter().map(|row| (row.file, row.value)).collect();
        prop_assert_eq!(found, expected);
    }
}
