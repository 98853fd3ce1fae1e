//! Texts by greedy decoding: after each prompt the most probable token, again and again.

use std::borrow::Cow;
use std::sync::Arc;

use dtrain_common::batch::batches_of;
use tch::{Device, Kind, Tensor};

use super::coder::Coder;
use super::inputs::Noun;
use super::made::{NOT_FINITE, most_probable};
use super::rows::{Cell, Row};
use super::{Done, Engine, with_less_memory};
use crate::data::{self, Loader, MicroBatch};
use crate::run::{Followers, TrainError};
use crate::setup::error::Result;
use crate::tasks::Batch;
use crate::tasks::predict::Form;

/// The prompts of all inputs.
pub(super) struct Prompted<'a> {
    pub(super) prompts: &'a [String],
    pub(super) coder: &'a Coder,
    /// What names an input.
    pub(super) noun: Noun,
}

/// A prompt and the tokens after it.
struct Text {
    /// The number of the prompt.
    at: u32,
    /// Its place in the batch.
    place: i64,
    tokens: Vec<i64>,
    /// The number of the prompt's tokens.
    prompt: usize,
}

/// How the network takes tokens.
struct Window<'a> {
    prompted: &'a Prompted<'a>,
    context: usize,
    is_padded: bool,
    /// Whether the last tokens of a text say enough. Those of images are at its begin.
    slides: bool,
    /// Those that the network takes.
    fields: Vec<&'a str>,
    /// The fewest samples that the network takes.
    least: usize,
}

/// Writes `question.wanted.tokens` tokens after each of the prompts `todo`, or fewer if the text ends.
pub(super) fn run(
    mut engine: Engine<'_>,
    prompted: &Prompted<'_>,
    todo: &[u32],
    batch: usize,
    followers: &mut Followers<'_>,
) -> Result<Done> {
    let form = engine.form.clone();
    let Form::Tokens { context, is_padded, .. } = form else {
        return Err(crate::tasks::TaskError::NoPrediction.into());
    };
    let set = Arc::clone(&engine.facts.test);
    let least = engine.facts.batches.evaluation_least;
    let slides = prompted.noun == Noun::Prompt;
    let fields = engine.predict.network().input_names();
    let window = Window { prompted, context, is_padded, slides, fields, least };
    let batch = engine.facts.batches.evaluated(batch);
    let mut tokens = 0;
    let batch = with_less_memory(&mut engine, todo, (batch, least), |engine, todo, batch, done| {
        let cuts = batches_of(todo.len(), 1, 0, batch, 1);
        let work: Vec<MicroBatch> =
            cuts.iter().map(|cut| MicroBatch::of(0, todo[cut.clone()].iter().copied())).collect();
        let mut loader =
            Loader::start(Arc::clone(&set), engine.loader, work.into_iter()).map_err(TrainError::from)?;
        for cut in cuts {
            let Some(decoded) = loader.next() else { break };
            let decoded = decoded.map_err(TrainError::from)?;
            let (rows, written) = write(engine, &todo[cut], &decoded, &window)?;
            loader.recycle(decoded);
            engine.part.add(&rows)?;
            tokens += written;
            *done += rows.len();
            engine.progress.add(rows.len() as u64);
            followers.advance();
        }
        Ok(())
    })?;
    Ok(Done { inputs: todo.len(), tokens, batch })
}

/// Writes the texts of a batch. Returns their rows and the number of tokens.
fn write(
    engine: &Engine<'_>,
    todo: &[u32],
    decoded: &data::Batch,
    window: &Window<'_>,
) -> Result<(Vec<Row>, usize)> {
    let (mut texts, mut rows) = (Vec::new(), Vec::new());
    let Prompted { prompts, coder, noun } = *window.prompted;
    for (place, &at) in todo.iter().enumerate() {
        let bad = decoded.bad.iter().find(|bad| bad.place == place);
        let tokens = match engine.failed.get(&at).or(bad.map(|bad| &bad.sample.reason)) {
            Some(reason) => Err(reason.clone()),
            None => coder.encode(&prompts[at as usize]).and_then(|tokens| window.fitting(tokens)),
        };
        match tokens {
            Ok(tokens) => texts.push(Text { at, place: place as i64, prompt: tokens.len(), tokens }),
            Err(reason) => rows.push(Row::failed(at, reason)),
        }
    }
    let beside = Batch::new(decoded, engine.device).map_err(TrainError::from)?;
    let mut ended = Vec::new();
    for _ in 0..engine.question.wanted.tokens {
        if texts.is_empty() {
            break;
        }
        let next = window.next(engine, &texts, &beside)?;
        let mut going = Vec::with_capacity(texts.len());
        for (mut text, token) in texts.into_iter().zip(next) {
            if token < 0 {
                rows.push(Row::failed(text.at, NOT_FINITE.to_owned()));
            } else if Some(token) == coder.end() {
                ended.push(text);
            } else {
                text.tokens.push(token);
                let is_full = !window.slides && text.tokens.len() > window.context;
                if is_full { ended.push(text) } else { going.push(text) }
            }
        }
        texts = going;
    }
    let mut written = 0;
    for text in ended.into_iter().chain(texts) {
        written += text.tokens.len() - text.prompt;
        let prompt = (noun != Noun::Prompt).then(|| Cell::Text(prompts[text.at as usize].clone()));
        let text_of = Cell::Text(coder.decode(&text.tokens, text.prompt)?);
        rows.push(Row::of(text.at, prompt.into_iter().chain([text_of]).collect()));
    }
    rows.sort_by_key(|row| row.at);
    Ok((rows, written))
}

impl Window<'_> {
    /// Returns the tokens of a prompt if there is room for one more.
    fn fitting(&self, tokens: Vec<i64>) -> std::result::Result<Vec<i64>, String> {
        match !self.slides && tokens.len() > self.context {
            true => Err(format!(
                "the prompt has {} tokens, and the model takes {}; shorten it",
                tokens.len(),
                self.context
            )),
            false => Ok(tokens),
        }
    }

    /// Returns the most probable token after each text. `beside` has what their samples have beside tokens.
    fn next(&self, engine: &Engine<'_>, texts: &[Text], beside: &Batch) -> Result<Vec<i64>> {
        // GPUs compute multiples fastest, and a token attends to none after it.
        const MULTIPLE: usize = 8;
        let longest = texts.iter().map(|text| text.tokens.len()).max().unwrap_or(1).min(self.context);
        let columns = match self.is_padded {
            true => self.context,
            false => longest.next_multiple_of(MULTIPLE).min(self.context),
        };
        let samples = texts.len().max(self.least);
        let mut tokens = vec![0; samples * columns];
        let mut lengths = vec![1; samples];
        for (number, text) in texts.iter().enumerate() {
            let known = &text.tokens[text.tokens.len().saturating_sub(columns)..];
            tokens[number * columns..][..known.len()].copy_from_slice(known);
            lengths[number] = known.len() as i64;
        }
        // The network may need more samples than there are: the last one again.
        let last = texts.last().map(|text| text.place);
        let places = texts.iter().map(|text| text.place).chain(last.into_iter().cycle());
        let places: Vec<i64> = places.take(samples).collect();
        let batch = self.batch((&tokens, &lengths, columns), (beside, &places), engine.device)?;
        let next = engine.forward(|| {
            let logits = engine.predict.values(&engine.predict.network().forward(&batch)?)?;
            let last = Tensor::f_from_slice(&lengths)?.f_sub_scalar(1)?.f_to_device(engine.device)?;
            let width = logits.size()[2];
            let last = last.f_view([-1, 1, 1])?.f_expand([samples as i64, 1, width], false)?;
            let of_last = logits.f_gather(1, &last, false)?.f_squeeze_dim(1)?;
            // A network may have more outputs than there are tokens.
            let known = of_last.f_narrow(1, 0, width.min(self.prompted.coder.size() as i64))?;
            Ok(most_probable(&known.f_to_kind(Kind::Float)?, 1)?
                .f_to_kind(Kind::Int64)?
                .f_to_device(Device::Cpu)?)
        })?;
        let mut next = Vec::<i64>::try_from(next)?;
        next.truncate(texts.len());
        Ok(next)
    }

    /// Makes a batch of N x `columns` tokens, of which the first `lengths` are known. Its other fields are those of the samples at
    /// `places` of `beside`.
    fn batch(
        &self,
        (tokens, lengths, columns): (&[i64], &[i64], usize),
        (beside, places): (&Batch, &[i64]),
        device: Device,
    ) -> Result<Batch> {
        let samples = lengths.len();
        let of = |value: &dyn Fn(i64, i64) -> i64| -> Vec<i64> {
            let row = |&length: &i64| (0..columns as i64).map(move |at| (at, length));
            lengths
                .iter()
                .flat_map(row)
                .map(|(at, length)| if at < length { value(at, length) } else { 0 })
                .collect()
        };
        let rows = Tensor::f_from_slice(places)?.f_to_device(device)?;
        let values = |name: &&str| {
            let made = match *name {
                "tokens" => tokens.to_vec(),
                "documents" | "attention_mask" => of(&|_, _| 1),
                "positions" => of(&|at, _| at),
                _ => {
                    let values = beside.field(name)?.f_index_select(0, &rows)?;
                    return Ok((Cow::Owned((*name).to_owned()), values));
                }
            };
            let shape = [samples as i64, columns as i64];
            let tensor = Tensor::f_from_slice(&made)?.f_view(shape)?.f_to_device(device)?;
            Ok((Cow::Owned((*name).to_owned()), tensor))
        };
        let fields = self.fields.iter().map(values).collect::<Result<Vec<_>>>()?;
        Ok(Batch::of_fields(fields, samples, device)?)
    }
}
