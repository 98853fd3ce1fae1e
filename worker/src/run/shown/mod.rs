//! The samples of an evaluation that people see, with their predictions.
//!
//! They are spread over the set, so that they are the same for any number of ranks. Each rank keeps the predictions of its own
//! ones from what the evaluation computes anyway, and rank 0 draws all.

mod draw;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use dtrain_data_report::{Decode, Names};
use dtrain_recipe::Recipe;
use tch::{Device, Kind, Tensor};

use self::draw::draw;
use crate::collectives::Ranks;
use crate::data::{Dataset, LoaderOptions, Normalize, TextTokenizer, Vocabulary, tokenizer};
use crate::metrics::ShownSample;
use crate::run::error::Result;
use crate::step::gather_numbers;
use crate::tasks::predict::{Form, Predict};
use crate::tasks::{Batch, EvalSet, Facts, Task, TaskError};

/// The longest side of a kept mask or map; of a larger one every N-th pixel is kept.
const SIDE: i64 = 512;
/// The tokens of a text that are shown.
const TOKENS: i64 = 64;

/// What is shown of evaluations.
#[derive(Default)]
pub(crate) struct Show {
    /// The number of samples.
    count: usize,
    names: Names,
    decode: Option<Decode>,
}

impl Show {
    /// Returns what the recipe shows. Only rank 0 needs names and texts.
    pub(crate) fn of(recipe: &Recipe, facts: &Facts, rank: usize) -> Self {
        let count = recipe.log.pictures;
        if rank > 0 || count == 0 {
            return Self { count, ..Self::default() };
        }
        let mut names = Names {
            ignore: recipe.data.ignore.map(i64::from),
            normalize: Normalize::new(&recipe.data.mean, &recipe.data.std),
            ..Names::default()
        };
        if !facts.class_names.is_empty() {
            names.classes.insert("label".to_owned(), facts.class_names.clone());
        }
        let named = serde_json::from_value(facts.extra["targets"]["names"].clone());
        names.numbers = named.unwrap_or_default();
        Self { count, names, decode: decoder(facts) }
    }
}

/// Returns what turns a token into its text, if there are tokens.
fn decoder(facts: &Facts) -> Option<Decode> {
    if let Some(files) = &facts.tokenizer {
        let tokenizer = TextTokenizer::load(Path::new(tokenizer::FILE), files.clone()).ok()?;
        return Some(Box::new(move |token| tokenizer.decode(&[token]).unwrap_or_default()));
    }
    let vocabulary: Vocabulary = serde_json::from_value(facts.extra.get("vocabulary")?.clone()).ok()?;
    Some(Box::new(move |token| vocabulary.decode([token])))
}

/// The prediction of values that are not finite: no class.
const UNKNOWN: i64 = -1;

/// A prediction of one sample.
#[derive(Debug, Clone, PartialEq)]
struct Predicted {
    sample: u32,
    shape: Vec<usize>,
    values: Vec<f32>,
}

/// Keeps the predictions of a rank's shown samples.
pub(super) struct Keeper<'a> {
    predict: &'a dyn Predict,
    show: &'a Show,
    /// The name of the set.
    set: String,
    form: Form,
    chosen: Vec<u32>,
    found: Vec<Predicted>,
}

impl<'a> Keeper<'a> {
    /// Returns one for a set; None if nothing is shown of it.
    pub(super) fn new(task: &'a dyn Task, set: &EvalSet, show: &'a Show) -> Option<Self> {
        let predict = task.predict().filter(|_| show.count > 0)?;
        let form = predict.form();
        let (chosen, set) = (chosen(set.samples.len(), show.count), set.name.clone());
        (form != Form::Outputs).then_some(Self { predict, show, set, form, chosen, found: Vec::new() })
    }

    fn within(&self, samples: &Range<usize>) -> Vec<u32> {
        self.chosen.iter().copied().filter(|sample| samples.contains(&(*sample as usize))).collect()
    }

    /// Prepares a batch of these samples, before it is computed.
    pub(super) fn prepare(&self, batch: &mut Batch, samples: &Range<usize>) {
        if !self.within(samples).is_empty() {
            batch.keep_outputs();
        }
    }

    /// Keeps the predictions of a computed batch. Call it as the network is called: without gradients, in the run's precision. No
    /// figure depends on them, so a failure is a warning.
    pub(super) fn keep(&mut self, batch: &mut Batch, samples: &Range<usize>) {
        if let Err(error) = self.add(batch, samples) {
            tracing::warn!("a prediction of {} is not shown: {error}", self.set);
        }
    }

    fn add(&mut self, batch: &mut Batch, samples: &Range<usize>) -> Result<(), TaskError> {
        let outputs = batch.take_outputs();
        for sample in self.within(samples) {
            let place = i64::from(sample) - samples.start as i64;
            let of_sample = match &outputs {
                Some(outputs) => of_sample(outputs, place, samples.len() as i64)?,
                // The logits of a text are never there as a whole.
                None if matches!(self.form, Form::Tokens { is_padded: false, .. }) => {
                    let tokens = batch.field("tokens")?;
                    let tokens = tokens.f_narrow(0, place, 1)?;
                    let tokens = tokens.f_narrow(1, 0, tokens.size()[1].min(TOKENS))?;
                    let device = tokens.device();
                    let first = Batch::of_fields(vec![("tokens".into(), tokens)], 1, device)?;
                    self.predict.network().forward(&first)?
                }
                None => continue,
            };
            let values = self.reduced(&self.predict.values(&of_sample)?)?;
            let shape = values.size().into_iter().map(|length| length as usize).collect();
            let values =
                values.f_to_kind(Kind::Float)?.f_to_device(Device::Cpu)?.f_contiguous()?.f_view([-1])?;
            self.found.push(Predicted { sample, shape, values: Vec::try_from(values)? });
        }
        Ok(())
    }

    /// Returns what is kept of the values of one sample, without the dimension of samples.
    fn reduced(&self, values: &Tensor) -> Result<Tensor, TaskError> {
        let values = match &self.form {
            Form::Masks { .. } => {
                let is_finite = values.f_isfinite()?.f_all_dim(1, false)?;
                let classes = values.f_argmax(1, false)?.f_to_kind(Kind::Int)?;
                classes.f_where_scalarother(&is_finite, UNKNOWN)?
            }
            Form::Tokens { vocabulary, .. } => {
                let [_, tokens, width] = values.size()[..] else { return Err(TaskError::NoPrediction) };
                let known = values.f_narrow(1, 0, tokens.min(TOKENS))?;
                known.f_narrow(2, 0, width.min(vocabulary.size() as i64))?.f_argmax(2, false)?
            }
            _ => values.shallow_clone(),
        };
        let values = values.f_select(0, 0)?;
        let is_of_pixels = matches!(self.form, Form::Masks { .. } | Form::Maps { .. });
        let size = values.size();
        let [.., height, width] = size[..] else { return Ok(values) };
        let every = (height.max(width) + SIDE - 1) / SIDE;
        if !is_of_pixels || every <= 1 {
            return Ok(values);
        }
        let dims = size.len() as i64;
        Ok(values.f_slice(dims - 2, 0, height, every)?.f_slice(dims - 1, 0, width, every)?)
    }

    /// Draws the samples of all ranks on rank 0, or warns. Every rank calls it.
    pub(super) fn finish(
        self,
        set: &Arc<dyn Dataset>,
        loader: LoaderOptions,
        ranks: &Ranks,
    ) -> Result<Vec<ShownSample>> {
        let Self { show, set: name, form, found, .. } = self;
        let predicted = match ranks.size() {
            1 => found,
            _ => {
                let own: Vec<u32> = found.iter().flat_map(Predicted::words).collect();
                Predicted::of_words(&gather_numbers(ranks, &own)?)
            }
        };
        if ranks.rank() > 0 {
            return Ok(Vec::new());
        }
        Ok(draw(show, set, loader, &form, &predicted).unwrap_or_else(|error| {
            tracing::warn!("the samples of {name} are not shown: {error}");
            Vec::new()
        }))
    }
}

impl Predicted {
    /// Returns it as numbers for other ranks.
    fn words(&self) -> impl Iterator<Item = u32> + '_ {
        let shape = self.shape.iter().map(|length| *length as u32);
        let values = self.values.iter().map(|value| value.to_bits());
        [self.sample, self.shape.len() as u32].into_iter().chain(shape).chain(values)
    }

    fn of_words(mut words: &[u32]) -> Vec<Self> {
        let mut all = Vec::new();
        while let [sample, dims, rest @ ..] = words {
            let Some((shape, rest)) = rest.split_at_checked(*dims as usize) else { break };
            let shape: Vec<usize> = shape.iter().map(|length| *length as usize).collect();
            let Some((values, rest)) = rest.split_at_checked(shape.iter().product()) else { break };
            let values = values.iter().map(|bits| f32::from_bits(*bits)).collect();
            all.push(Self { sample: *sample, shape, values });
            words = rest;
        }
        all
    }
}

/// Returns `count` samples of a set, or all, spread over it: files are often in the order of their classes.
fn chosen(samples: usize, count: usize) -> Vec<u32> {
    let count = count.min(samples);
    (0..count).map(|number| (number * samples / count) as u32).collect()
}

/// Returns each output of the sample at `place`.
fn of_sample(outputs: &[Tensor], place: i64, samples: i64) -> Result<Vec<Tensor>, TaskError> {
    let one = |output: &Tensor| match output.size().first() {
        Some(&length) if length == samples => output.f_narrow(0, place, 1),
        _ => Ok(output.shallow_clone()),
    };
    Ok(outputs.iter().map(one).collect::<std::result::Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_samples_are_spread_over_a_set() {
        assert_eq!(chosen(100, 4), [0, 25, 50, 75]);
        assert_eq!(chosen(3, 4), [0, 1, 2]);
        assert_eq!(chosen(5, 2), [0, 2]);
        assert!(chosen(5, 0).is_empty() && chosen(0, 4).is_empty());
    }

    #[test]
    fn predictions_reach_rank_0() {
        let one = |sample, shape: &[usize], values: &[f32]| Predicted {
            sample,
            shape: shape.into(),
            values: values.into(),
        };
        let all = [one(7, &[2, 2], &[0.5, -1.0, f32::INFINITY, 0.0]), one(9, &[], &[3.0]), one(0, &[0], &[])];
        let words: Vec<u32> = all.iter().flat_map(Predicted::words).collect();
        assert_eq!(Predicted::of_words(&words), all);
    }
}
