//! The output of a prediction: its form by its name's ending, its columns, and the join of the ranks' rows.

use std::cmp::Ordering;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::inputs::Noun;
use super::parts::{Partial, failed};
use super::rows::{Cell, Column, Row, Writer, npy_header};
use crate::data::error::MOST_NAMED;
use crate::planning::{Flips, ImageForm, PredictQuestion};
use crate::setup::error::Result;
use crate::setup::predict_error::PredictError;
use crate::tasks::predict::{Form, Predict};

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Csv,
    Jsonl,
    Folder,
}

/// Where and what a prediction writes.
pub(super) struct Output {
    kind: Kind,
    /// The name of an input.
    input: &'static str,
    pub(super) columns: Vec<Column>,
    /// The numbers of the outputs that are asked for.
    pub(super) outputs: Vec<usize>,
    /// The images of each input.
    pub(super) images: Vec<ImageForm>,
    pub(super) top: Option<usize>,
}

/// The result of a join.
#[derive(Debug, Default)]
pub(super) struct JoinedRows {
    pub(super) unreadable: usize,
    /// The pixels of maps beyond a PNG's range.
    pub(super) clipped: usize,
}

/// Endings of files that a folder's name does not have.
const FILES: [&str; 10] = ["csv", "jsonl", "json", "txt", "png", "jpg", "tif", "tiff", "npy", "npz"];

/// The column of [`JoinedRows::clipped`].
const CLIPPED: &str = "clipped";

impl Output {
    /// Checks the request against what the task predicts.
    pub(super) fn of(
        question: &PredictQuestion,
        form: &Form,
        predict: &dyn Predict,
        noun: Noun,
    ) -> Result<Self> {
        let (wanted, known) = (&question.wanted, predict.network().output_names());
        let owned = || known.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let find = |name: &String| {
            let found = known.iter().position(|known| known == name);
            found.ok_or_else(|| PredictError::NoOutput { name: name.clone(), known: owned() })
        };
        let outputs = wanted.outputs.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        let is_text = matches!(form, Form::Tokens { .. });
        let raw = !outputs.is_empty();
        let effect = |is_stated: bool, has_effect: bool, flag, reason| match is_stated && !has_effect {
            true => Err(PredictError::NoEffect { flag, reason }),
            false => Ok(()),
        };
        let of_pixels = matches!(form, Form::Masks { .. } | Form::Maps { .. });
        effect(raw, !is_text, "--output", "a language model writes text")?;
        effect(raw, wanted.support.is_none(), "--output", "with --support each row is the class of a query")?;
        effect(wanted.top.is_some(), matches!(form, Form::Classes(_)) && !raw, "--top", "it is for classes")?;
        effect(!wanted.images.is_empty(), of_pixels && !raw, "--images", "it is for masks and maps")?;
        let is_mean = !is_text && !raw && *form != Form::Outputs;
        let reason = "it takes the mean of predictions, which outputs as they are and texts do not have";
        effect(wanted.windows.is_some(), is_mean, "--windows", reason)?;
        effect(wanted.flips != Flips::None, is_mean, "--flips", reason)?;
        if *form == Form::Outputs && !raw {
            return Err(PredictError::NameOutputs(owned()).into());
        }
        let images = match (form, raw) {
            (Form::Masks { .. }, false) => {
                chosen(wanted.images.as_slice(), &[ImageForm::Mask, ImageForm::Overlay])?
            }
            (Form::Maps { .. }, false) => {
                chosen(wanted.images.as_slice(), &[ImageForm::Png, ImageForm::Tiff, ImageForm::Colors])?
            }
            _ => Vec::new(),
        };
        Ok(Self {
            kind: kind(&question.out, form, raw)?,
            input: noun.as_str(),
            columns: columns(form, &images, &wanted.outputs, wanted.top, noun),
            outputs,
            images,
            top: wanted.top,
        })
    }

    /// Writes the rows of all ranks in order, and counts what they lack. An error if no input could be read.
    pub(super) fn join(&self, partial: &Partial, names: &[String]) -> Result<JoinedRows> {
        let out = partial.out();
        let table = match self.kind {
            Kind::Csv | Kind::Jsonl => out.clone(),
            Kind::Folder => {
                fs::create_dir_all(&out).map_err(failed(&out))?;
                out.join("predictions.csv")
            }
        };
        let numbers = if self.kind == Kind::Folder { self.outputs.len() } else { 0 };
        // The columns of the table: arrays have their own files.
        let columns = if numbers > 0 { &[] } else { self.columns.as_slice() };
        let shapes = self.shapes(partial)?;
        let counts = shapes.iter().map(|shape| shape.iter().product()).collect();
        let file = File::create(&table).map_err(failed(&table))?;
        let writer = BufWriter::new(file);
        let mut writer = match self.kind {
            Kind::Jsonl => Writer::Jsonl(writer),
            _ => Writer::csv(writer, self.input, columns, counts).map_err(failed(&table))?,
        };
        let mut arrays = (0..numbers)
            .map(|number| Array::create(&out, &self.columns[number].name, names.len(), &shapes[number]))
            .collect::<Result<Vec<_>>>()?;
        let clipped = self.columns.iter().position(|column| column.name == CLIPPED);
        let (mut found, mut first, mut next) = (JoinedRows::default(), None, 0);
        for row in partial.joined()? {
            let row = row?;
            let name = names.get(row.at as usize).map_or("", String::as_str);
            if let Some(reason) = &row.error {
                found.unreadable += 1;
                match found.unreadable.cmp(&MOST_NAMED) {
                    Ordering::Less => tracing::warn!("{name:?} cannot be read: {reason}"),
                    Ordering::Equal => {
                        tracing::warn!("{name:?} cannot be read: {reason}; later ones are only counted")
                    }
                    Ordering::Greater => {}
                }
                first.get_or_insert_with(|| (name.to_owned(), reason.clone()));
            }
            if let Some(Cell::Number(Some(pixels))) = clipped.and_then(|at| row.cells.get(at)) {
                found.clipped += *pixels as usize;
            }
            writer.row((self.input, name), columns, &row).map_err(failed(&table))?;
            for (number, array) in arrays.iter_mut().enumerate() {
                array.add(&row, number)?;
            }
            next += 1;
        }
        writer.finish().map_err(failed(&table))?;
        arrays.into_iter().try_for_each(Array::finish)?;
        match first {
            Some((first, reason)) if found.unreadable == next => {
                Err(PredictError::AllUnreadable { count: next, first, reason }.into())
            }
            _ => Ok(found),
        }
    }

    /// Returns the shape of each column's values, by the first row that has them.
    fn shapes(&self, partial: &Partial) -> Result<Vec<Vec<usize>>> {
        for row in partial.joined()? {
            let row = row?;
            if !row.shapes.is_empty() {
                return Ok(row.shapes);
            }
            if !row.cells.is_empty() {
                let count = |cell: &Cell| match cell {
                    Cell::Numbers(values) => vec![values.len()],
                    _ => Vec::new(),
                };
                return Ok(row.cells.iter().map(count).collect());
            }
        }
        Ok(vec![Vec::new(); self.columns.len()])
    }
}

/// Returns the images that are asked for, or all that there are.
fn chosen(wanted: &[ImageForm], all: &[ImageForm]) -> Result<Vec<ImageForm>> {
    if let [_, ..] = wanted
        && !wanted.iter().all(|form| all.contains(form))
    {
        let reason = match all.contains(&ImageForm::Mask) {
            true => "masks have the images mask and overlay",
            false => "maps have the images png, tiff and colors",
        };
        return Err(PredictError::NoEffect { flag: "--images", reason }.into());
    }
    Ok(if wanted.is_empty() { all.to_vec() } else { wanted.to_vec() })
}

/// Returns the kind of the output of this name.
fn kind(out: &Path, form: &Form, raw: bool) -> Result<Kind> {
    let ending = out.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    let ending = ending.as_deref().unwrap_or_default();
    let found = match ending {
        "csv" => Some(Kind::Csv),
        "jsonl" => Some(Kind::Jsonl),
        other => (!FILES.contains(&other)).then_some(Kind::Folder),
    };
    let of_pixels = matches!(form, Form::Masks { .. } | Form::Maps { .. }) && !raw;
    let wrong =
        |task, what, remedy| Err(PredictError::Ending { out: out.to_owned(), task, what, remedy }.into());
    let stem = out.with_extension("");
    match found {
        Some(Kind::Folder) if of_pixels || raw => Ok(Kind::Folder),
        Some(kind @ (Kind::Csv | Kind::Jsonl)) if !of_pixels => Ok(kind),
        _ if of_pixels => wrong(
            "masks and maps",
            "are images in a folder",
            format!("give a folder, such as -o {}", stem.display()),
        ),
        _ if raw => wrong(
            "outputs",
            "are a table (.csv, .jsonl) or arrays in a folder",
            format!("give -o {}.csv, or the folder -o {}", stem.display(), stem.display()),
        ),
        _ => wrong(
            "classes, numbers and texts",
            "are a table",
            format!("end it in .csv or .jsonl, such as -o {}.csv", stem.display()),
        ),
    }
}

/// Returns the columns of a row's cells.
fn columns(
    form: &Form,
    images: &[ImageForm],
    outputs: &[String],
    top: Option<usize>,
    noun: Noun,
) -> Vec<Column> {
    if !outputs.is_empty() {
        return outputs.iter().map(|name| Column::counted(name)).collect();
    }
    let files = images.iter().map(|form| Column::one(folder(*form)));
    match form {
        Form::Classes(names) => {
            let most = top.unwrap_or(1).min(names.len().max(1));
            let number = |at: usize| if at == 0 { String::new() } else { format!("_{}", at + 1) };
            let best = (0..most).flat_map(|at| {
                ["class", "probability"].map(|name| Column::one(format!("{name}{}", number(at))))
            });
            let all = top.is_none().then(|| Column::named("probabilities", "p:", names.clone()));
            best.chain(all).collect()
        }
        Form::Masks { classes, .. } => {
            let names = (0..*classes).map(|class| class.to_string()).collect();
            files.chain([Column::named("shares", "share:", names)]).collect()
        }
        Form::Numbers(names) => vec![Column::named("numbers", "", names.clone())],
        Form::Maps { .. } => files.chain(["min", "max", "mean", CLIPPED].map(Column::one)).collect(),
        // Prompts that name no input.
        Form::Tokens { .. } if noun != Noun::Prompt => vec![Column::one("prompt"), Column::one("text")],
        Form::Tokens { .. } => vec![Column::one("text")],
        Form::Outputs => Vec::new(),
    }
}

/// Returns the folder of an image in the output.
pub(super) fn folder(form: ImageForm) -> &'static str {
    match form {
        ImageForm::Mask => "mask",
        ImageForm::Overlay => "overlay",
        ImageForm::Png => "png",
        ImageForm::Tiff => "tiff",
        ImageForm::Colors => "colors",
    }
}

/// A file of NumPy with a row for each input. Rows of unreadable inputs are NaN.
struct Array {
    path: std::path::PathBuf,
    out: BufWriter<File>,
    length: usize,
}

impl Array {
    fn create(folder: &Path, name: &str, rows: usize, shape: &[usize]) -> Result<Self> {
        let path = folder.join(format!("{}.npy", name.replace('/', "_")));
        let shape: Vec<usize> = [rows].into_iter().chain(shape.iter().copied()).collect();
        let mut out = BufWriter::new(File::create(&path).map_err(failed(&path))?);
        out.write_all(&npy_header(&shape)).map_err(failed(&path))?;
        Ok(Self { path, out, length: shape[1..].iter().product() })
    }

    fn add(&mut self, row: &Row, number: usize) -> Result<()> {
        let blank = || vec![None; self.length];
        let values = match row.cells.get(number) {
            Some(Cell::Numbers(values)) => values.clone(),
            _ => blank(),
        };
        let bytes: Vec<u8> =
            values.iter().flat_map(|value| value.unwrap_or(f32::NAN).to_le_bytes()).collect();
        Ok(self.out.write_all(&bytes).map_err(failed(&self.path))?)
    }

    fn finish(self) -> Result<()> {
        let Self { path, out, .. } = self;
        let flushed = out.into_inner().map(|_| ()).map_err(|error| io::Error::other(error.to_string()));
        Ok(flushed.map_err(failed(&path))?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_ending_decides_and_must_fit_what_is_predicted() {
        let classes = Form::Classes(vec!["a".into()]);
        let masks = Form::Masks { classes: 2, ignore: 255 };
        let of =
            |out: &str, form: &Form, raw| kind(Path::new(out), form, raw).map_err(|error| error.to_string());
        assert_eq!(of("a.csv", &classes, false), Ok(Kind::Csv));
        assert_eq!(of("a.JSONL", &classes, false), Ok(Kind::Jsonl));
        assert_eq!(of("masks.v2", &masks, false), Ok(Kind::Folder));
        assert_eq!(of("a", &classes, true), Ok(Kind::Folder));
        assert_eq!(of("a.csv", &masks, true), Ok(Kind::Csv));
        for (out, form, raw, part) in [
            ("a", &classes, false, "end it in .csv or .jsonl, such as -o a.csv"),
            ("a.json", &classes, false, "end it in .csv"),
            ("m.csv", &masks, false, "give a folder, such as -o m"),
            ("m.png", &masks, false, "give a folder, such as -o m"),
            ("e.npy", &masks, true, "give -o e.csv, or the folder -o e"),
        ] {
            let text = of(out, form, raw).unwrap_err();
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn columns_of_the_best_classes_are_numbered() {
        let form = Form::Classes(["a", "b", "c"].map(String::from).to_vec());
        let names = |top| {
            columns(&form, &[], &[], top, Noun::Image)
                .into_iter()
                .map(|column| column.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names(None), ["class", "probability", "probabilities"]);
        assert_eq!(names(Some(2)), ["class", "probability", "class_2", "probability_2"]);
        assert_eq!(names(Some(9)).len(), 6);
    }
}
