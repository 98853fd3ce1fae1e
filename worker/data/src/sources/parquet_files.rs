//! Parquet files: a row for each sample, with encoded images as bytes, as the library `datasets` of Hugging Face writes them.
//!
//! A column of images has bytes, or a group with bytes in its leaf `bytes`. Numbers of classes have the names that the
//! library writes into the footer. Samples are in the order of the files, and in a file in the order of its rows.

use std::path::PathBuf;
use std::sync::Arc;

use dtrain_recipe::{ColumnKind, FieldColumns};
use serde_json::Value;

use super::super::cache_folder;
use super::super::error::DataError;
use super::super::pack_problem::PackProblem;
use super::super::parquet_file::{Access, ParquetFile};
use super::super::paths::Listing;
use super::super::samples::{Files, Samples};
use super::super::stored::{Part, Parts};
use super::Request;
use super::packs::{self, Pack};
use dtrain_common::content::Content;

pub(super) fn list(request: &Request<'_>) -> Result<Samples, DataError> {
    let names = packs::files(request.root, request.set, "parquet")?;
    let open = |name: String| {
        let path = request.root.join(&name);
        let file = ParquetFile::open(&path).map_err(|error| match Content::of_file(&path) {
            Some(content) if content != Content::Parquet => {
                let remedy = content.remedy(&path).unwrap_or_else(|| "expected a Parquet file".to_owned());
                let problem = PackProblem::Foreign(content.to_string(), remedy);
                DataError::pack(path.clone(), problem)
            }
            _ if path.metadata().is_ok_and(|about| about.len() == 0) => {
                DataError::pack(path.clone(), PackProblem::Empty)
            }
            _ => DataError::pack(path.clone(), PackProblem::Parquet(error.to_string())),
        })?;
        match file.rows() {
            0 => Err(DataError::pack(path, PackProblem::NoSamples)),
            _ => Ok((name, Arc::new(file))),
        }
    };
    let files = names.into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
    packs::samples(&ParquetFiles { request, files }, request)
}

/// The files of a set, with their names below the folder of the data.
struct ParquetFiles<'a> {
    request: &'a Request<'a>,
    files: Vec<(String, Arc<ParquetFile>)>,
}

impl ParquetFiles<'_> {
    fn problem(&self, name: &str, problem: PackProblem) -> DataError {
        DataError::pack(self.request.root.join(name), problem)
    }

    /// Returns the field that a column is of, for messages.
    fn field(&self, column: &str) -> (String, &'static str) {
        let field =
            self.request.fields.iter().find(|field| field.columns.iter().any(|known| known == column));
        field.map_or_else(|| (column.to_owned(), "image"), |field| (field.field.clone(), field.kind.as_str()))
    }

    /// Returns the number of a column's leaf in a file: of this name, or its bytes.
    fn leaf(
        &self,
        (name, file): &(String, Arc<ParquetFile>),
        column: &str,
        is_taken: impl Fn(usize) -> bool,
        expected: &'static str,
    ) -> Result<usize, DataError> {
        let (field, kind) = self.field(column);
        let Some(leaf) = file.leaf(column).or_else(|| file.leaf(&format!("{column}.bytes"))) else {
            let (column, found) = (column.to_owned(), file.columns());
            return Err(self.problem(name, PackProblem::NoColumn { column, field, found }));
        };
        if !is_taken(leaf) {
            let (column, found) = (column.to_owned(), file.type_of(leaf));
            return Err(self.problem(name, PackProblem::ColumnType { column, found, kind, expected, field }));
        }
        match file.unknown_compression(leaf) {
            None => Ok(leaf),
            Some(codec) => Err(self.problem(name, PackProblem::Codec { column: column.to_owned(), codec })),
        }
    }

    /// Says how the cells of a column are read, and how much more than they need.
    fn report(&self, column: &str, access: &Access) {
        let set = self.request.set;
        if access.by_page > 0 {
            let each = access.by_page as f64 / access.pages.max(1) as f64;
            tracing::info!(
                "{} cells of `{column}` in {set} are read by their pages, which have {each:.1} cells: {each:.1} times what a sample needs",
                access.by_page
            );
        }
        if access.by_group > 0 {
            let each = access.by_group / access.groups.max(1);
            let folder = cache_folder::folder()
                .map_or_else(|| "(no folder)".to_owned(), |folder| folder.display().to_string());
            tracing::info!(
                "{} cells of `{column}` in {set} have no index of small pages: {} row groups of {each} cells, {:.1} MiB, are unpacked once into \
                 {folder}; without room there a sample would need {each} times what it has",
                access.by_group,
                access.groups,
                access.group_bytes as f64 / f64::from(1 << 20),
            );
        }
    }
}

impl Pack for ParquetFiles<'_> {
    fn count(&self) -> usize {
        self.files.iter().map(|(_, file)| file.rows() as usize).sum()
    }

    fn files(&self, column: &str) -> Result<Files, DataError> {
        let (mut paths, mut parts) = (Listing::default(), Vec::new());
        let mut access = Access::default();
        for of in &self.files {
            let (name, file) = of;
            let expected = "bytes of encoded images, or a group with a leaf `bytes`";
            let leaf = self.leaf(of, column, |leaf| file.is_binary(leaf), expected)?;
            let folder = paths.folder(name);
            for row in 0..file.rows() {
                paths.add_in(folder, &format!("row {row}"));
                parts.push(Part::Cell { row, leaf });
            }
            access.add(file.access(leaf));
        }
        self.report(column, &access);
        Ok(Files { parts: Some(Parts::write(parts)?), ..Files::new("", paths.pack()?) })
    }

    fn texts(&self, field: &FieldColumns, column: &str) -> Result<Vec<String>, DataError> {
        let mut all = Vec::new();
        let mut names: Option<(&str, Option<Vec<String>>)> = None;
        for of in &self.files {
            let (name, file) = of;
            let leaf = self.leaf(
                of,
                column,
                |leaf| file.is_plain(leaf),
                "texts, whole numbers, floats or booleans",
            )?;
            let read = file.texts(leaf);
            let mut texts =
                read.map_err(|error| self.problem(name, PackProblem::Parquet(error.to_string())))?;
            if field.kind == ColumnKind::Class {
                let own = class_names(file, column);
                let (first, wanted) = names.get_or_insert_with(|| (name, own.clone()));
                if *wanted != own {
                    let (column, first) = (column.to_owned(), (*first).to_owned());
                    return Err(self.problem(name, PackProblem::OtherNames { column, first }));
                }
                let own = own.unwrap_or_default();
                let is_text = file.is_text(leaf);
                for (row, text) in texts.iter_mut().enumerate().filter(|_| !own.is_empty()) {
                    let number = text.parse::<usize>().ok().filter(|_| !is_text);
                    match number.and_then(|number| own.get(number)) {
                        Some(class) => *text = class.clone(),
                        // Texts are the names themselves.
                        None if is_text && own.contains(text) => {}
                        None => {
                            let (column, value) = (
                                column.to_owned(),
                                if text.is_empty() { "empty".to_owned() } else { text.clone() },
                            );
                            let problem = PackProblem::NoClassName { row, column, value, names: own.len() };
                            return Err(self.problem(name, problem));
                        }
                    }
                }
            }
            all.append(&mut texts);
        }
        Ok(all)
    }

    fn place(&self, mut sample: usize) -> (PathBuf, String) {
        for (name, file) in &self.files {
            match file.rows() as usize {
                rows if sample >= rows => sample -= rows,
                _ => return (self.request.root.join(name), format!("row {sample}")),
            }
        }
        (self.request.root.to_owned(), String::new())
    }

    fn class_names(&self, column: &str) -> Option<Vec<String>> {
        class_names(&self.files.first()?.1, column)
    }
}

/// Returns the names of a column's classes in the order of their numbers, as the library `datasets` writes them.
fn class_names(file: &ParquetFile, column: &str) -> Option<Vec<String>> {
    let note: Value = serde_json::from_str(file.note("huggingface")?).ok()?;
    let names = note.get("info")?.get("features")?.get(column)?.get("names")?.as_array()?;
    names.iter().map(|name| name.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests;
