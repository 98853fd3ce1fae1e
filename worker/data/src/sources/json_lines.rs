//! A table with a JSON object in each line. Its keys are the columns; `a.b` is the key `b` of the object at `a`.

use std::collections::BTreeMap;
use std::path::Path;

use dtrain_recipe::{ColumnKind, FieldColumns};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::super::table_problem::TableProblem;
use super::csv::LineProblem;
use super::rows::{ADD_SPLIT, Chosen, Rows, have_files, name_one};

/// Returns whether a table has JSON lines, by its ending.
pub(super) fn is_file(path: &Path) -> bool {
    path.extension()
        .is_some_and(|ending| ["jsonl", "ndjson"].iter().any(|known| ending.eq_ignore_ascii_case(known)))
}

/// Reads the rows of a set, which the key `split` names; None: of all sets, without that key. A key that a line lacks is an empty text.
pub(super) fn parse(text: &str, of: Option<[&str; 2]>, fields: &[FieldColumns]) -> Result<Rows, LineProblem> {
    let columns: Vec<_> =
        fields.iter().flat_map(|field| field.columns.iter().map(move |it| (it, field))).collect();
    let mut found = vec![false; columns.len()];
    let (mut kept, mut chosen) = (Rows::new(1), Chosen::new(of, have_files(fields)));
    let mut first_keys = None;
    for (line, text) in (1..).zip(text.split('\n')).filter(|(_, text)| !text.trim().is_empty()) {
        let object = object(text.trim()).map_err(|problem| (line, problem))?;
        let keys = || object.keys().cloned().collect::<Vec<_>>();
        first_keys.get_or_insert_with(keys);
        let of_split = match of.map(|[split, _]| (split, value(&object, split))) {
            None => "",
            Some((_, Some(Value::String(of_split)))) => of_split,
            Some((split, Some(other))) => return Err((line, unfit(split, other))),
            Some((split, None)) => {
                return Err((line, TableProblem::NoColumn(split.to_owned(), keys(), ADD_SPLIT.to_owned())));
            }
        };
        let is_taken = chosen.takes(line, of_split, [text.trim()].into_iter());
        for (found, &(column, field)) in found.iter_mut().zip(&columns) {
            let value = value(&object, column);
            *found |= value.is_some();
            if !is_taken {
                continue;
            }
            match value {
                // Messages stay JSON, with their keys in this order: a template may write them.
                Some(chat) if field.kind == ColumnKind::Chat && !chat.is_string() => {
                    kept.add_cell(field.kind, &ordered(text, column).unwrap_or_else(|| chat.to_string()));
                }
                value => {
                    add_value(&mut kept, field.kind, column, value).map_err(|problem| (line, problem))?
                }
            }
        }
        if is_taken {
            kept.end_row(line);
        }
    }
    let keys = first_keys.ok_or((1, TableProblem::NoObjects))?;
    match columns.iter().zip(found).find(|(_, is_found)| !is_found) {
        Some(((column, field), _)) => {
            Err((1, TableProblem::NoColumn((*column).clone(), keys, name_one(field, of.is_some()))))
        }
        None => chosen.checked(kept),
    }
}

/// Returns the object of a line.
fn object(text: &str) -> Result<Map<String, Value>, TableProblem> {
    serde_json::from_str(text).map_err(|error| {
        let at = error.column().saturating_sub(1);
        let word = text.get(at..).unwrap_or_default();
        let not_finite = ["NaN", "Infinity", "-Infinity"].into_iter().find(|name| {
            // The parser stops at or after the letter that it does not know.
            word.starts_with(name)
                || text.get(at.saturating_sub(1)..).is_some_and(|word| word.starts_with(name))
        });
        match not_finite {
            Some(name) => TableProblem::NoJsonNumber(name),
            None => TableProblem::NoObject(format!("column {}: {}", error.column(), reason(&error))),
        }
    })
}

/// Returns the message of an error without its place.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}

/// Returns the value of a column. A whole key goes before a path of keys.
fn value<'v>(object: &'v Map<String, Value>, column: &str) -> Option<&'v Value> {
    let own = object.get(column).or_else(|| {
        let (key, rest) = column.split_once('.')?;
        value(object.get(key)?.as_object()?, rest)
    });
    own.filter(|value| !value.is_null())
}

/// Returns the JSON of a column with its keys in their order.
pub(super) fn ordered(text: &str, column: &str) -> Option<String> {
    let whole: BTreeMap<String, &RawValue> = serde_json::from_str(text.trim()).ok()?;
    match whole.get(column) {
        Some(value) => Some(value.get().to_owned()),
        None => {
            let (key, rest) = column.split_once('.')?;
            ordered(whole.get(key)?.get(), rest)
        }
    }
}

fn add_value(
    rows: &mut Rows,
    kind: ColumnKind,
    column: &str,
    value: Option<&Value>,
) -> Result<(), TableProblem> {
    let list = match value {
        Some(Value::Array(list)) => list.as_slice(),
        None => {
            rows.add_cell(kind, "");
            return Ok(());
        }
        Some(one) => {
            rows.add_cell(kind, &text_of(one).ok_or_else(|| unfit(column, one))?);
            return Ok(());
        }
    };
    for one in list {
        let text = text_of(one).ok_or_else(|| unfit(column, one))?;
        match kind {
            ColumnKind::Classes if text.trim().is_empty() => {}
            ColumnKind::Classes => rows.add(text.trim()),
            _ => rows.add(&text),
        }
    }
    rows.end_cell();
    Ok(())
}

/// Returns a text, a number or a truth value as the text of a cell.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn unfit(column: &str, value: &Value) -> TableProblem {
    let what = match value {
        Value::Null => "null in a list",
        Value::Array(_) => "a list in a list",
        Value::Object(_) => "an object",
        _ => "no text",
    };
    TableProblem::Unfit { column: column.to_owned(), what }
}

#[cfg(test)]
mod tests;
