//! The rows of a prediction: one for each input, as CSV, JSON lines or NumPy arrays.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

/// The prediction of an input, as ranks write it into their parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    /// The number of the input.
    pub(super) at: u32,
    /// Why there is no prediction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    /// Empty with an error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) cells: Vec<Cell>,
    /// The shapes of numbers in order, if any has more than one dimension.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) shapes: Vec<Vec<usize>>,
}

impl Row {
    pub(super) fn of(at: u32, cells: Vec<Cell>) -> Self {
        Self { at, error: None, cells, shapes: Vec::new() }
    }

    /// Returns the row of an input without a prediction.
    pub(super) fn failed(at: u32, reason: String) -> Self {
        Self { error: Some(reason), ..Self::of(at, Vec::new()) }
    }
}

/// A value or some values of a row. NaN and infinities are null.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Cell {
    Text(String),
    Number(Option<f32>),
    Numbers(Vec<Option<f32>>),
}

impl Cell {
    pub(super) fn number(value: f32) -> Self {
        Self::Number(Some(value).filter(|value| value.is_finite()))
    }

    pub(super) fn numbers(values: &[f32]) -> Self {
        Self::Numbers(values.iter().map(|&value| Some(value).filter(|value| value.is_finite())).collect())
    }
}

/// A column of the table: the meaning of a cell.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Column {
    /// The name in JSON.
    pub(super) name: String,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// A text or a number.
    One,
    /// Numbers by name. The names follow `prefix` in CSV.
    Named { prefix: &'static str, names: Vec<String> },
    /// Numbers in order, for each input as many.
    Counted,
}

impl Column {
    pub(super) fn one(name: impl Into<String>) -> Self {
        Self { name: name.into(), kind: Kind::One }
    }

    pub(super) fn named(name: &str, prefix: &'static str, names: Vec<String>) -> Self {
        Self { name: name.to_owned(), kind: Kind::Named { prefix, names } }
    }

    pub(super) fn counted(name: &str) -> Self {
        Self { name: name.to_owned(), kind: Kind::Counted }
    }

    /// Returns the names in CSV. A cell of numbers in order has `count` of them.
    fn headings(&self, count: usize) -> Vec<String> {
        match &self.kind {
            Kind::One => vec![self.name.clone()],
            Kind::Named { prefix, names } => names.iter().map(|name| format!("{prefix}{name}")).collect(),
            Kind::Counted => (0..count).map(|number| format!("{}_{number}", self.name)).collect(),
        }
    }
}

fn format(value: Option<f32>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// Quotes a cell of CSV where it has to be.
fn quoted(cell: &str) -> String {
    match cell.contains([',', '"', '\n', '\r']) || cell.trim() != cell {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}

fn write_line(out: &mut dyn Write, cells: impl Iterator<Item = String>) -> io::Result<()> {
    let line: Vec<String> = cells.map(|cell| quoted(&cell)).collect();
    writeln!(out, "{}", line.join(","))
}

/// Returns a key of JSON with its value.
fn pair(key: &str, value: &impl Serialize) -> io::Result<String> {
    Ok(format!("{}:{}", serde_json::to_string(key)?, serde_json::to_string(value)?))
}

/// Writes rows one after the other.
pub(super) enum Writer<W> {
    /// With the number of values of each cell, which the header has.
    Csv(W, Vec<usize>),
    Jsonl(W),
}

impl<W: Write> Writer<W> {
    /// Begins a table of CSV. `input` is the name of the inputs; cells of numbers in order have `counts` numbers.
    pub(super) fn csv(mut out: W, input: &str, columns: &[Column], counts: Vec<usize>) -> io::Result<Self> {
        let headings = columns.iter().zip(&counts).flat_map(|(column, count)| column.headings(*count));
        let all = [input.to_owned()].into_iter().chain(headings).chain(["error".to_owned()]);
        write_line(&mut out, all)?;
        Ok(Self::Csv(out, counts))
    }

    pub(super) fn row(&mut self, input: (&str, &str), columns: &[Column], row: &Row) -> io::Result<()> {
        match self {
            Self::Csv(out, counts) => {
                let cells = columns.iter().zip(counts).enumerate().flat_map(|(at, (column, count))| {
                    let blank = || vec![String::new(); column.headings(*count).len()];
                    row.cells.get(at).map_or_else(blank, |cell| match cell {
                        Cell::Text(text) => vec![text.clone()],
                        Cell::Number(value) => vec![format(*value)],
                        Cell::Numbers(values) => values.iter().map(|value| format(*value)).collect(),
                    })
                });
                let error = row.error.clone().unwrap_or_default();
                write_line(out, [input.1.to_owned()].into_iter().chain(cells).chain([error]))
            }
            Self::Jsonl(out) => {
                // In order, and with the shortest decimals of float32.
                let mut pairs = vec![pair(input.0, &input.1)?];
                for (column, cell) in columns.iter().zip(&row.cells) {
                    pairs.push(match (&column.kind, cell) {
                        (Kind::Named { names, .. }, Cell::Numbers(values)) => {
                            let inner = names.iter().zip(values).map(|(name, value)| pair(name, value));
                            let inner = inner.collect::<io::Result<Vec<_>>>()?.join(",");
                            format!("{}:{{{inner}}}", serde_json::to_string(&column.name)?)
                        }
                        _ => pair(&column.name, cell)?,
                    });
                }
                pairs.extend(
                    row.error.iter().map(|error| pair("error", error)).collect::<io::Result<Vec<_>>>()?,
                );
                writeln!(out, "{{{}}}", pairs.join(","))
            }
        }
    }

    pub(super) fn finish(self) -> io::Result<()> {
        let (Self::Csv(mut out, _) | Self::Jsonl(mut out)) = self;
        out.flush()
    }
}

/// Returns the header of a file of NumPy (`.npy`, version 1.0) for float32 of this shape.
pub(super) fn npy_header(shape: &[usize]) -> Vec<u8> {
    /// The header ends at a multiple of it.
    const ALIGNMENT: usize = 64;
    let lengths: Vec<String> = shape.iter().map(usize::to_string).collect();
    let comma = if shape.len() == 1 { "," } else { "" };
    let text =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}{comma}), }}", lengths.join(", "));
    let before = b"\x93NUMPY\x01\x00".len() + 2;
    let length = (before + text.len() + 1).next_multiple_of(ALIGNMENT) - before;
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend((length as u16).to_le_bytes());
    header.extend(format!("{text:<width$}\n", width = length - 1).bytes());
    header
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::{Value, json};

    use super::*;

    fn columns() -> Vec<Column> {
        let names = ["cat", "a, b"].map(str::to_owned).to_vec();
        vec![Column::one("class"), Column::named("probabilities", "p:", names), Column::counted("z")]
    }

    fn rows() -> [Row; 2] {
        let cells =
            vec![Cell::Text("a, b".into()), Cell::numbers(&[0.1, 0.9]), Cell::numbers(&[1.5, f32::NAN])];
        let error = Some("is \"damaged\"".to_owned());
        [Row::of(0, cells), Row { error, ..Row::of(1, Vec::new()) }]
    }

    fn written(begin: impl FnOnce(Vec<u8>) -> Writer<Vec<u8>>) -> String {
        let mut writer = begin(Vec::new());
        for (row, name) in rows().iter().zip(["x.png", "y.png"]) {
            writer.row(("image", name), &columns(), row).unwrap();
        }
        let (Writer::Csv(out, _) | Writer::Jsonl(out)) = writer;
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn rows_are_csv_with_quotes_where_needed() {
        let text = written(|out| Writer::csv(out, "image", &columns(), vec![1, 2, 2]).unwrap());
        let expected = "image,class,p:cat,\"p:a, b\",z_0,z_1,error\nx.png,\"a, b\",0.1,0.9,1.5,,\n\
                        y.png,,,,,,\"is \"\"damaged\"\"\"\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn rows_are_json_lines() {
        let text = written(Writer::Jsonl);
        let lines: Vec<&str> = text.lines().collect();
        let first =
            r#"{"image":"x.png","class":"a, b","probabilities":{"cat":0.1,"a, b":0.9},"z":[1.5,null]}"#;
        assert_eq!(lines[0], first);
        let second: Value = serde_json::from_str(lines[1]).unwrap();
        assert_eq!(second, json!({"image": "y.png", "error": "is \"damaged\""}));
    }

    #[test]
    fn rows_read_back_from_parts() {
        for row in rows() {
            let text = serde_json::to_string(&row).unwrap();
            assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), row, "{text}");
        }
        let number = Row::of(7, vec![Cell::number(0.3), Cell::number(f32::INFINITY)]);
        let text = serde_json::to_string(&number).unwrap();
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), number, "{text}");
    }

    #[test]
    fn headers_of_numpy_are_aligned() {
        for shape in [&[3][..], &[10, 512], &[100_000, 3, 7, 7]] {
            let header = npy_header(shape);
            assert_eq!(header.len() % 64, 0);
            assert_eq!(header.len(), 10 + usize::from(u16::from_le_bytes([header[8], header[9]])));
            assert_eq!(header.last(), Some(&b'\n'));
        }
        let text = String::from_utf8_lossy(&npy_header(&[3])).into_owned();
        assert!(text.contains("'shape': (3,), }"), "{text}");
    }
}
