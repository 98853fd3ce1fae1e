//! The inputs of a prediction: an image, a folder of images, a table, or texts.

use std::collections::HashSet;
use std::path::Path;

use dtrain_recipe::{ColumnKind, FieldColumns};

use super::super::error::DataError;
use super::super::ignored::{Ignored, is_image};
use super::super::origin::TableLines;
use super::super::packed::Packed;
use super::super::paths::Listing;
use super::super::samples::{Files, List, ListValues, Samples};
use super::super::texts::Texts;
use super::super::token_lists::TextForm;
use super::listing::{list as entries, list_images};
use super::{json_lines, table};

/// The ending of a table.
const TABLE: &str = "csv";

/// Returns whether a path of inputs is a table, by its ending.
pub fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case(TABLE)) || json_lines::is_file(path)
}

/// Lists the inputs at `path`: the image, all images below the folder by path, or the lines of the table. `fields` are those of
/// a sample; columns of numbers and texts that the table lacks are left out, but not all columns.
pub fn list(path: &Path, fields: &[FieldColumns]) -> Result<Samples, DataError> {
    if path.is_dir() {
        let (mut images, mut ignored) = (Listing::default(), Ignored::default());
        list_images(path, "", is_image, &mut HashSet::new(), &mut images, &mut ignored)?;
        if images.len() == 0 {
            return Err(DataError::NoInputs(path.to_owned(), Box::new(ignored)));
        }
        images.sort(0);
        return samples(path, images, ignored, fields);
    }
    if is_table(path) {
        return table::scan_inputs(path, fields);
    }
    let name = path.file_name().ok_or_else(|| DataError::NotUnicode(path.to_owned()))?;
    let name = name.to_str().ok_or_else(|| DataError::NotUnicode(path.to_owned()))?;
    let mut image = Listing::default();
    image.enter("");
    image.add(name);
    samples(path.parent().unwrap_or(Path::new("")), image, Ignored::default(), fields)
}

fn samples(
    root: &Path,
    images: Listing,
    ignored: Ignored,
    fields: &[FieldColumns],
) -> Result<Samples, DataError> {
    let mut needed = fields.iter().filter(|field| field.kind == ColumnKind::Image);
    let field = match (needed.next(), needed.next()) {
        (Some(field), None) if field.columns.len() == 1 => &field.field,
        _ => {
            let inputs = fields.iter().filter(|field| field.kind.is_input());
            let columns: Vec<&str> =
                inputs.flat_map(|field| field.columns.iter().map(String::as_str)).collect();
            return Err(DataError::NeedsTable(root.to_owned(), columns.join(",")));
        }
    };
    let files = Files::new("", images.pack()?);
    Ok(Samples {
        root: root.to_owned(),
        set: "the input".to_owned(),
        table: None,
        sources: Vec::new(),
        lists: vec![List::new(field, ListValues::Images(vec![files]))],
        size: None,
        ignored,
    })
}

/// Lists texts, one in each of the `lines` of `path`, as the only field of inputs.
pub fn of_lines(path: &Path, field: &str, lines: &[String]) -> Result<Samples, DataError> {
    let texts = Texts::write(lines.iter().map(String::as_str))?;
    let numbers = Packed::write((1..).take(lines.len()))?;
    Ok(Samples {
        root: path.parent().unwrap_or(Path::new("")).to_owned(),
        set: "the input".to_owned(),
        table: Some(TableLines { path: path.to_owned(), lines: numbers }),
        sources: Vec::new(),
        lists: vec![List::new(field, ListValues::Texts(vec![texts], TextForm::Text))],
        size: None,
        ignored: Ignored::default(),
    })
}

/// Returns the folders directly below `path` that are no class of `classes`, if `path` is a folder of class folders: it holds
/// no image itself.
pub fn unknown_classes(path: &Path, classes: &[String]) -> Result<Vec<String>, DataError> {
    if classes.is_empty() || !path.is_dir() {
        return Ok(Vec::new());
    }
    let entries = entries(path)?;
    if entries.iter().any(|entry| entry.is_image()) {
        return Ok(Vec::new());
    }
    let folders = entries.into_iter().filter(|entry| entry.is_folder).map(|entry| entry.name);
    Ok(folders.filter(|name| !classes.contains(name)).collect())
}

#[cfg(test)]
mod tests;
