#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::error::DataError;
use crate::samples::{ListValues, Samples};
use crate::sources::{Reading, table};
use crate::tests::READING;
use crate::tests::images::put;

fn scan_set(
    text: &str,
    set: &str,
    fields: &[(&str, &str)],
    reading: Reading<'_>,
) -> Result<Samples, DataError> {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("lines.jsonl");
    put(&path, text.as_bytes());
    let fields: Vec<_> =
        fields.iter().map(|(field, text)| FieldColumns::parse(field, text).unwrap()).collect();
    table::scan(&path, set, &fields, reading)
}

fn scan(text: &str, fields: &[(&str, &str)]) -> Result<Samples, DataError> {
    scan_set(text, "train", fields, READING)
}

#[test]
fn keys_are_columns_and_lists_are_several_values() {
    let text = "\u{feff}{\"views\": [\"a.png\", \"b.png\"], \"meta\": {\"tags\": [\"x|y\", \"z\"], \"size\": [1.5, -2]}, \"n\": 3, \"split\": \"train\"}\r\n\
        \n{\"split\": \"test\", \"views\": [\"c.png\", \"d.png\"], \"n\": 7, \"meta\": {\"size\": [0, 0], \"tags\": [\" z \", \"\"]}}\n\
        {\"split\": \"train\", \"views\": [\"e.png\", \"f.png\"], \"n\": 1e2, \"meta\": {\"size\": [4, 5]}, \"meta.name\": \"whole\"}";
    let fields = [
        ("image", "image:views"),
        ("tags", "classes:meta.tags"),
        ("targets", "numbers:n,meta.size"),
        ("name", "text:meta.name"),
    ];
    let train = scan(text, &fields[..3]).unwrap();
    let ListValues::Images(images) = &train.lists[0].values else { panic!("images") };
    assert_eq!((images.len(), images[1].paths.get(1)), (2, "f.png".to_owned()));
    let ListValues::ClassSets { names, sets } = &train.lists[1].values else { panic!("classes") };
    assert_eq!(
        (names.as_slice(), sets.of(0), sets.of(1)),
        (&["x|y".to_owned(), "z".to_owned()][..], &[0, 1][..], &[][..])
    );
    let names = ["n", "meta.size.0", "meta.size.1"].map(str::to_owned);
    assert_eq!(train.numbers(), (&names[..], &[3.0, 1.5, -2.0, 100.0, 4.0, 5.0][..]));
    assert_eq!(train.table.as_ref().unwrap().lines[..], [1, 4]);
    let test = scan_set(text, "test", &fields[..3], Reading { train: Some(&train), ..READING }).unwrap();
    let ListValues::ClassSets { sets, .. } = &test.lists[1].values else { panic!("classes") };
    assert_eq!((test.count(), sets.of(0)), (1, &[1][..]));
    let ListValues::Texts(names, _) = &scan(text, &fields).unwrap().lists[3].values else { panic!("texts") };
    assert_eq!((names[0].get(0), names[0].get(1)), ("", "whole"));
}

/// A template may write the keys of a message.
#[test]
fn chats_keep_the_order_of_their_keys() {
    let chat = r#"[{"role": "user", "content": "a", "also": {"z": 1, "b": 2}}]"#;
    for (column, line) in [
        ("chat", format!(r#"{{"split": "train", "chat": {chat}}}"#)),
        ("in.chat", format!(r#"{{"in": {{"n": 1, "chat": {chat}}}, "split": "train"}}"#)),
    ] {
        let samples = scan(&line, &[("tokens", &format!("chat:{column}"))]).unwrap();
        let ListValues::Texts(texts, _) = &samples.lists[0].values else { panic!("texts") };
        assert_eq!(texts[0].get(0), chat);
    }
}

#[test]
fn errors_name_the_line_and_the_remedy() {
    let image = [("image", "image:a"), ("label", "class:b")];
    let line = |a: &str, b: &str| format!("{{\"a\": {a}, \"b\": {b}, \"split\": \"train\"}}\n");
    let good = line("\"1.png\"", "\"x\"");
    for (text, part) in [
        (String::new(), "lines.jsonl:1: the table has no lines; write a JSON object for each sample"),
        (format!("{good}[1]\n"), "lines.jsonl:2: the line is no JSON object (column "),
        (format!("{good}{{\"a\": 1\n"), "lines.jsonl:2: the line is no JSON object (column "),
        (line("\"1.png\"", "NaN"), "lines.jsonl:1: NaN is no number of JSON, and no target either"),
        (line("\"1.png\"", "-Infinity"), "Infinity is no number of JSON"),
        (line("{}", "\"x\""), "lines.jsonl:1: a is an object; write a text"),
        (line("[[1]]", "\"x\""), "lines.jsonl:1: a is a list in a list"),
        (line("\"1.png\"", "[\"x\", \"y\"]"), "lines.jsonl:1: b has 2 values, and the field takes 1"),
        (
            format!("{good}{}", line("[\"1.png\", \"2.png\"]", "\"x\"")),
            "lines.jsonl:2: a has 2 values, and the field takes 1",
        ),
        (format!("{good}{}", line("[]", "\"x\"")), "lines.jsonl:2: a has 0 values"),
        (
            format!("{good}{good}{good}"),
            "lines.jsonl:2: the line is equal to line 1; remove one of the two; 1 more line has this problem",
        ),
        (
            format!("{good}{}", line("\"2.png\"", "null")),
            "lines.jsonl:2: b is empty; write the name of a class",
        ),
        (
            "{\"a\": \"1.png\", \"split\": \"train\"}\n".to_owned(),
            "has no column `b`, but `a`, `split`; name one of them in data.fields.label",
        ),
        (
            "{\"a\": \"1.png\", \"b\": \"x\"}\n".to_owned(),
            "lines.jsonl:1: the table has no column `split`, but `a`, `b`; add it",
        ),
        ("{\"a\": \"1.png\", \"b\": \"x\", \"split\": 1}\n".to_owned(), "split is no text"),
        (
            "{\"a\": \"1.png\", \"b\": \"x\", \"split\": \"val\"}\n".to_owned(),
            "no line has `train` in the column `split`, which has `val`",
        ),
        ("<html>".to_owned(), "the table is a web page"),
    ] {
        let found = scan(&text, &image).unwrap_err().to_string();
        assert!(found.contains(part), "{text:?}: {found}");
    }
    let train = scan(&good, &image).unwrap();
    let two = line("[\"1.png\", \"2.png\"]", "\"x\"").replace("train", "test");
    let found =
        scan_set(&two, "test", &image, Reading { train: Some(&train), ..READING }).unwrap_err().to_string();
    assert!(found.contains("a has 2 values, and the field takes 1"), "{found}");
}

proptest! {
    #[test]
    fn any_text_reads_or_is_an_error_in_a_line(text in "([{}\\[\\],:\"ab.0-9 \n-]|\"split\":\"train\"|null|NaN|\"a\":){0,20}") {
        let fields = [FieldColumns::parse("a", "numbers:a,a.b").unwrap()];
        match parse(&text, Some(["split", "train"]), &fields) {
            Ok(rows) => prop_assert!(!rows.lines.is_empty()),
            Err((line, _)) => prop_assert!((1..=text.matches('\n').count() + 1).contains(&line)),
        }
    }
}
