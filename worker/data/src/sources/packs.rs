//! Files with many samples each: which files a set has, and the fields of their samples.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use dtrain_recipe::{ColumnKind, FieldColumns};

use super::super::error::DataError;
use super::super::ignored::Ignored;
use super::super::names::listed;
use super::super::origin::TableLines;
use super::super::pack_problem::PackProblem;
use super::super::packed::Packed;
use super::super::samples::{Files, List, ListValues, Samples};
use super::Request;
use super::braces;
use super::row_fields::Table;
use super::rows::Rows;

/// Returns the files of a set below `root`, as paths with `/`, in the order of their samples. `set` is a pattern of
/// names with braces; each name is a file, a folder of files, or the beginning of names such as `train-00000-of-00005.tar`.
pub(super) fn files(root: &Path, set: &str, ending: &'static str) -> Result<Vec<String>, DataError> {
    let place = || root.join(set);
    let names = braces::expand(set)
        .map_err(|problem| DataError::pack(place(), PackProblem::Pattern(set.to_owned(), problem)))?;
    let is_one = names.len() == 1;
    let mut found = Vec::new();
    for name in names {
        let path = root.join(&name);
        let inner = match path.is_dir() {
            true => names_in(&path, |file| file.ends_with(&format!(".{ending}")))?,
            false => Vec::new(),
        };
        if !inner.is_empty() {
            found.extend(inner.into_iter().map(|file| format!("{name}/{file}")));
        } else if path.is_file() || !is_one {
            found.push(name);
        } else {
            found.extend(numbered(root, &name, ending)?);
        }
    }
    if found.is_empty() {
        let expected =
            format!("{set}, {set}.{ending}, files {set}-00000.{ending} or a folder with files .{ending}");
        return Err(DataError::pack(
            place(),
            PackProblem::NoFiles(expected, "data.train and data.test", ending),
        ));
    }
    let missing: Vec<_> = found.iter().filter(|name| !root.join(name).is_file()).cloned().collect();
    match missing.first() {
        None => Ok(found),
        Some(_) if missing.len() == found.len() => {
            let there = names_in(root, |_| true)?;
            let hint =
                format!("; {} has {}; correct data.train and data.test", root.display(), listed(&there));
            Err(DataError::pack(root.join(&missing[0]), PackProblem::Missing(hint)))
        }
        Some(_) => Err(DataError::pack(place(), PackProblem::Gap { of: found.len(), names: missing })),
    }
}

/// Returns the files `NAME.ENDING`, or `NAME-00000.ENDING`, `NAME-00000-of-00005.ENDING` and so on. Of the last form all must be there.
fn numbered(root: &Path, name: &str, ending: &str) -> Result<Vec<String>, DataError> {
    let whole = format!("{name}.{ending}");
    if root.join(&whole).is_file() {
        return Ok(vec![whole]);
    }
    let (above, begin) = name.rsplit_once('/').map_or(("", name), |(above, begin)| (above, begin));
    let folder = if above.is_empty() { root.to_owned() } else { root.join(above) };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = |file: &str| {
        let inner = file.strip_prefix(begin)?.strip_prefix('-')?.strip_suffix(ending)?.strip_suffix('.')?;
        let (number, of) = inner.split_once("-of-").map_or((inner, None), |(number, of)| (number, Some(of)));
        (is_number(number) && of.is_none_or(is_number)).then(|| of.and_then(|of| of.parse::<usize>().ok()))
    };
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let found = names_in(&folder, |file| number(file).is_some())?;
    let of = |file: &String| number(file).flatten();
    if let Some(other) = found.iter().find(|file| of(file) != of(&found[0])) {
        return Err(DataError::pack(folder, PackProblem::Mixed(found[0].clone(), other.clone())));
    }
    if let Some(of) = found.first().and_then(of) {
        let width = found[0].rsplit_once("-of-").map_or(5, |(before, _)| before.len() - begin.len() - 1);
        let all = (0..of).map(|at| format!("{begin}-{at:0width$}-of-{of:0width$}.{ending}"));
        let names: Vec<_> = all.filter(|file| !found.contains(file)).collect();
        if !names.is_empty() {
            return Err(DataError::pack(folder, PackProblem::Gap { of, names }));
        }
    }
    let path = |file: String| if above.is_empty() { file } else { format!("{above}/{file}") };
    Ok(found.into_iter().map(path).collect())
}

/// Returns the visible files of a folder for which `is_wanted`, sorted.
fn names_in(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<String>, DataError> {
    let entries = super::listing::list(folder)?;
    let names = entries.into_iter().filter(|entry| !entry.is_folder).map(|entry| entry.name);
    Ok(names.filter(|name| is_wanted(name)).collect())
}

/// The samples of files, before they are fields.
pub(super) trait Pack {
    /// Returns the number of samples.
    fn count(&self) -> usize;

    /// Returns the files of a column.
    fn files(&self, column: &str) -> Result<Files, DataError>;

    /// Returns the texts of a column, by sample.
    fn texts(&self, field: &FieldColumns, column: &str) -> Result<Vec<String>, DataError>;

    /// Names a sample in messages: the file, and what is in it.
    fn place(&self, sample: usize) -> (PathBuf, String);

    /// Returns the names of a column's classes in the order of their numbers, if the files state them.
    fn class_names(&self, column: &str) -> Option<Vec<String>>;
}

/// Makes the samples of a set.
pub(super) fn samples(pack: &dyn Pack, request: &Request<'_>) -> Result<Samples, DataError> {
    let lists = request.fields.iter().map(|field| list(pack, field, request));
    let lists = lists.collect::<Result<Vec<_>, _>>()?;
    let has_files = |list: &List| matches!(list.values, ListValues::Images(_) | ListValues::Pixels(..));
    // Without files a sample has no other name.
    let table = match lists.iter().any(has_files) {
        true => None,
        false => {
            let lines = Packed::write((0..pack.count() as u32).map(|sample| sample + 1))?;
            Some(TableLines { path: request.root.join(request.set), lines })
        }
    };
    Ok(Samples {
        root: request.root.to_owned(),
        set: request.set.to_owned(),
        table,
        sources: Vec::new(),
        lists,
        size: None,
        ignored: Ignored::default(),
    })
}

fn list(pack: &dyn Pack, field: &FieldColumns, request: &Request<'_>) -> Result<List, DataError> {
    let reading = request.reading;
    let first = &field.columns[0];
    let values = match field.kind {
        ColumnKind::Image => {
            let images = field.columns.iter().map(|column| pack.files(column));
            ListValues::Images(images.collect::<Result<_, _>>()?)
        }
        ColumnKind::Mask => ListValues::Pixels(pack.files(first)?, reading.mask.clone().into()),
        ColumnKind::Map => ListValues::Pixels(pack.files(first)?, reading.map.into()),
        ColumnKind::Class
        | ColumnKind::Classes
        | ColumnKind::Numbers
        | ColumnKind::Text
        | ColumnKind::Chat => {
            let columns = field.columns.iter().map(|column| pack.texts(field, column));
            let columns = columns.collect::<Result<Vec<_>, DataError>>()?;
            let mut rows = Rows::new(0);
            for sample in 0..pack.count() {
                columns.iter().for_each(|texts| rows.add_cell(field.kind, &texts[sample]));
                rows.end_row(sample);
            }
            let (path, set) = (request.root, request.set);
            let table = Table { path, root: path.to_owned(), set, rows, has_lines: true };
            let listed = table.only(field, reading).map_err(|error| match error {
                DataError::Table(_, sample, problem) => {
                    let (path, sample) = pack.place(sample);
                    DataError::pack(path, PackProblem::Cell { sample, problem })
                }
                other => other,
            })?;
            let of_train =
                reading.train.and_then(|train| train.lists.iter().find(|list| list.field == field.field));
            match of_train {
                Some(_) => listed.values,
                None => in_order(listed.values, pack.class_names(first))?,
            }
        }
    };
    Ok(List::new(&field.field, values))
}

/// Numbers classes as the files state; numbers in place of names are in the order of numbers.
fn in_order(values: ListValues, stated: Option<Vec<String>>) -> Result<ListValues, DataError> {
    let ListValues::Classes { names, numbers } = values else { return Ok(values) };
    let of_numbers = || {
        let parsed = names.iter().map(|name| name.parse::<u64>().ok().map(|number| (number, name.clone())));
        let mut parsed: Vec<_> = parsed.collect::<Option<_>>()?;
        parsed.sort_unstable();
        Some(parsed.into_iter().map(|(_, name)| name).collect::<Vec<_>>())
    };
    let known: BTreeSet<&String> = stated.iter().flatten().collect();
    let stated = stated.as_ref().filter(|_| names.iter().all(|name| known.contains(name))).cloned();
    let Some(ordered) = stated.or_else(of_numbers) else { return Ok(ListValues::Classes { names, numbers }) };
    let place: HashMap<&String, u32> = ordered.iter().zip(0..).collect();
    let new: Vec<u32> = names.iter().map(|name| place.get(name).copied().unwrap_or_default()).collect();
    let numbers = Packed::write(numbers.iter().map(|&old| new[old as usize]))?;
    Ok(ListValues::Classes { names: ordered, numbers })
}
