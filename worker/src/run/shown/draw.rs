//! Pictures and words of the shown samples.

use std::sync::Arc;

use dtrain_data_report::{PictureError, draw_sample};
use thiserror::Error;

use super::{Predicted, Show, TOKENS};
use crate::data::{self, Column, DataError, Dataset, Field, Loader, LoaderOptions, MicroBatch};
use crate::metrics::ShownSample;
use crate::tasks::predict::Form;

/// Why samples are not drawn.
#[derive(Debug, Error)]
pub(super) enum DrawError {
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("the picture of a sample cannot be encoded: {0}")]
    Picture(#[from] PictureError),
}

/// Numbers of a prediction that are written.
const MOST: usize = 8;
/// The prediction of values of which one is not a number: no class.
const NAN: &str = "NaN";

/// Draws samples of a set with their predictions.
pub(super) fn draw(
    show: &Show,
    set: &Arc<dyn Dataset>,
    loader: LoaderOptions,
    form: &Form,
    predicted: &[Predicted],
) -> Result<Vec<ShownSample>, DrawError> {
    let samples: Vec<u32> = predicted.iter().map(|one| one.sample).collect();
    let work = samples.into_iter().map(|sample| MicroBatch::of(0, [sample]));
    let threads = loader.threads.min(predicted.len());
    let options = LoaderOptions { augment: false, threads, ..loader };
    let loader = Loader::start(Arc::clone(set), options, work)?;
    let mut shown = Vec::new();
    for (batch, predicted) in loader.zip(predicted) {
        let batch = batch?;
        // Its evaluation has counted it.
        if batch.bad.is_empty() {
            shown.push(show.sample(batch, form, predicted)?);
        }
    }
    Ok(shown)
}

impl Show {
    fn sample(
        &self,
        batch: data::Batch,
        form: &Form,
        predicted: &Predicted,
    ) -> Result<ShownSample, DrawError> {
        let (mut fields, mut columns, mut caption) = (batch.fields.to_vec(), batch.columns, Vec::new());
        let texts = self.texts(&fields, &columns, form, predicted);
        if let Some((field, column)) = predicted.as_field(&fields, form) {
            fields.push(field);
            columns.push(column);
            caption.push("from the left: image, target, prediction".to_owned());
        }
        let drawn = draw_sample(&fields, &columns, &self.names)?;
        let words = predicted.in_words(form, &fields).map(|words| format!("prediction {words}"));
        caption.extend(drawn.words);
        caption.extend(words);
        Ok(ShownSample { png: drawn.png, text: texts, caption: caption.join(", ") })
    }

    /// Returns the text of the targets and of the predicted tokens, if tokens are predicted.
    fn texts(
        &self,
        fields: &[Field],
        columns: &[Column],
        form: &Form,
        predicted: &Predicted,
    ) -> Option<String> {
        let (Form::Tokens { .. }, Some(decode)) = (form, &self.decode) else { return None };
        let at = fields.iter().position(|field| field.name == "targets" && field.shape.len() == 1);
        let targets = at.and_then(|at| columns[at].as_i64()).unwrap_or_default();
        let targets = &targets[..targets.len().min(TOKENS as usize)];
        // A prediction beside a place without a target says nothing.
        let counts = |at: usize| targets.get(at).is_none_or(|target| *target >= 0);
        let own = (0..).zip(&predicted.values).filter(|(at, _)| counts(*at)).map(|(_, value)| *value as u32);
        let target: String =
            targets.iter().filter_map(|token| u32::try_from(*token).ok()).map(decode).collect();
        let predicted: String = own.map(decode).collect();
        Some(format!("target:     {}\nprediction: {}", one_line(&target), one_line(&predicted)))
    }
}

fn one_line(text: &str) -> String {
    text.replace('\n', "\u{b6}")
}

impl Predicted {
    /// Returns a prediction of pixels as a field of the size of the sample's image.
    fn as_field(&self, fields: &[Field], form: &Form) -> Option<(Field, Column)> {
        let [.., height, width] = self.shape[..] else { return None };
        let image = fields.iter().find(|field| field.shape.len() >= 3)?;
        let [.., rows, columns] = image.shape[..] else { return None };
        let value = |row: usize, column: usize| {
            let at = (row * height / rows.max(1)) * width + column * width / columns.max(1);
            self.values.get(at).copied().unwrap_or(f32::NAN)
        };
        let pixels = (0..rows).flat_map(|row| (0..columns).map(move |column| value(row, column)));
        let name = "prediction";
        match form {
            Form::Masks { .. } => {
                let classes = pixels.map(|class| class as i64).collect();
                Some((Field::i64(name, [rows, columns]), Column::I64(classes)))
            }
            Form::Maps { .. } => Some((Field::f32(name, [rows, columns]), Column::F32(pixels.collect()))),
            _ => None,
        }
    }

    /// Returns a prediction of classes or numbers in words.
    fn in_words(&self, form: &Form, fields: &[Field]) -> Option<String> {
        let name =
            |names: &[String], class: usize| names.get(class).cloned().unwrap_or_else(|| class.to_string());
        match form {
            Form::Classes(names) => {
                // A class without a name has its number as one.
                let class = |at: usize| match name(names, at) {
                    number if number == at.to_string() => format!("class {number}"),
                    name => name,
                };
                // Several of an episode, one of each query.
                let classes = self.shape.last().copied().unwrap_or(1).max(1);
                let best = |values: &[f32]| {
                    if values.iter().any(|value| value.is_nan()) {
                        return Some(NAN.to_owned());
                    }
                    let best = (0..values.len()).reduce(|a, b| if values[b] > values[a] { b } else { a })?;
                    Some(format!("{} ({:.0}%)", class(best), 100.0 * values[best]))
                };
                let all: Vec<_> = self.values.chunks(classes).take(MOST).filter_map(best).collect();
                Some(all.join(", "))
            }
            Form::Numbers(names) => {
                let is_set = fields.iter().any(|field| field.name == "label" && field.shape == [names.len()]);
                let all = self.values.iter().enumerate();
                let words: Vec<String> = match is_set {
                    true if self.values.iter().any(|value| value.is_nan()) => vec![NAN.to_owned()],
                    true => all.filter(|(_, value)| **value > 0.5).map(|(at, _)| name(names, at)).collect(),
                    false => {
                        all.map(|(at, value)| format!("{} {value:.4}", name(names, at))).take(MOST).collect()
                    }
                };
                Some(if words.is_empty() { "none".to_owned() } else { words.join(", ") })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn predicted(shape: &[usize], values: &[f32]) -> Predicted {
        Predicted { sample: 0, shape: shape.into(), values: values.into() }
    }

    #[test]
    fn predictions_are_words_or_pixels() {
        let names: Vec<String> = ["cat", "dog"].map(str::to_owned).into();
        let classes = Form::Classes(names.clone());
        let words = |shape: &[usize], values: &[f32], form, fields: &[Field]| {
            predicted(shape, values).in_words(form, fields).unwrap()
        };
        assert_eq!(words(&[2], &[0.2, 0.8], &classes, &[]), "dog (80%)");
        assert_eq!(words(&[2, 2], &[0.2, 0.8, 0.9, 0.1], &classes, &[]), "dog (80%), cat (90%)");
        let numbers = Form::Numbers(names);
        assert_eq!(words(&[2], &[0.25, 1.5], &numbers, &[]), "cat 0.2500, dog 1.5000");
        let set = [Field::f32("label", [2])];
        assert_eq!(words(&[2], &[0.25, 0.75], &numbers, &set), "dog");
        assert_eq!(words(&[2], &[0.25, 0.25], &numbers, &set), "none");
        let nan = [f32::NAN, 0.75];
        assert_eq!(words(&[2], &nan, &classes, &[]), "NaN");
        assert_eq!(words(&[2], &nan, &numbers, &set), "NaN");

        let image = [Field::f32("image", [3, 4, 2])];
        let masks = Form::Masks { classes: 3, ignore: 255 };
        let (field, column) = predicted(&[2, 1], &[1.0, 2.0]).as_field(&image, &masks).unwrap();
        assert_eq!((field.shape, column), (vec![4, 2], Column::I64(vec![1, 1, 1, 1, 2, 2, 2, 2])));
        assert!(predicted(&[2], &[0.2, 0.8]).as_field(&image, &classes).is_none());
    }
}
