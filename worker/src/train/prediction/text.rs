//! Texts by greedy decoding: after each prompt the most probable token, again and again.

use std::borrow::Cow;

use dtrain_common::batch::batches_of;
use tch::{Device, Kind, Tensor};

use super::coder::Coder;
use super::made::{NOT_FINITE, most_probable};
use super::rows::{Cell, Row};
use super::{Done, Engine, with_less_memory};
use crate::data::{Field, FieldKind};
use crate::run::Followers;
use crate::setup::error::Result;
use crate::tasks::Batch;
use crate::tasks::predict::Form;

/// A prompt and the tokens after it.
struct Text {
    /// The number of the prompt.
    at: u32,
    tokens: Vec<i64>,
    /// The number of the prompt's tokens.
    prompt: usize,
}

/// How the network takes tokens.
struct Window<'a> {
    coder: &'a Coder,
    context: usize,
    is_padded: bool,
    fields: &'a [Field],
}

/// Writes `question.wanted.tokens` tokens after each of the prompts `todo`, or fewer if the text ends.
pub(super) fn run(
    mut engine: Engine<'_>,
    prompts: &[String],
    todo: &[u32],
    (coder, batch): (&Coder, usize),
    followers: &mut Followers<'_>,
) -> Result<Done> {
    let form = engine.form.clone();
    let Form::Tokens { context, is_padded, .. } = &form else {
        return Err(crate::tasks::TaskError::NoPrediction.into());
    };
    let fields = engine.facts.test.fields().to_vec();
    let window = Window { coder, context: *context, is_padded: *is_padded, fields: &fields };
    let (least, most) = (engine.facts.batches.evaluation_least, engine.facts.batches.evaluation_most);
    let batch = batch.min(most.unwrap_or(usize::MAX)).max(least);
    let mut tokens = 0;
    let batch = with_less_memory(&mut engine, todo, (batch, least), |engine, todo, batch, done| {
        for cut in batches_of(todo.len(), 1, 0, batch, 1) {
            let (rows, written) = write(engine, prompts, &todo[cut], (&window, least))?;
            engine.part.add(&rows)?;
            tokens += written;
            *done += rows.len();
            followers.advance();
        }
        Ok(())
    })?;
    Ok(Done { inputs: todo.len(), tokens, batch })
}

/// Writes the texts of a batch. Returns their rows and the number of tokens.
fn write(
    engine: &Engine<'_>,
    prompts: &[String],
    todo: &[u32],
    (window, least): (&Window<'_>, usize),
) -> Result<(Vec<Row>, usize)> {
    let (mut texts, mut rows) = (Vec::new(), Vec::new());
    for &at in todo {
        match window.coder.encode(&prompts[at as usize]) {
            Ok(tokens) => texts.push(Text { at, prompt: tokens.len(), tokens }),
            Err(reason) => rows.push(Row::failed(at, reason)),
        }
    }
    let mut ended = Vec::new();
    for _ in 0..engine.question.wanted.tokens {
        if texts.is_empty() {
            break;
        }
        let next = window.next(engine, &texts, least)?;
        let mut going = Vec::with_capacity(texts.len());
        for (mut text, token) in texts.into_iter().zip(next) {
            if token < 0 {
                rows.push(Row::failed(text.at, NOT_FINITE.to_owned()));
            } else if Some(token) == window.coder.end() {
                ended.push(text);
            } else {
                text.tokens.push(token);
                going.push(text);
            }
        }
        texts = going;
    }
    let mut written = 0;
    for text in ended.into_iter().chain(texts) {
        written += text.tokens.len() - text.prompt;
        rows.push(Row::of(text.at, vec![Cell::Text(window.coder.decode(&text.tokens, text.prompt)?)]));
    }
    rows.sort_by_key(|row| row.at);
    Ok((rows, written))
}

impl Window<'_> {
    /// Returns the most probable token after each text.
    fn next(&self, engine: &Engine<'_>, texts: &[Text], least: usize) -> Result<Vec<i64>> {
        // GPUs compute multiples fastest, and a token attends to none after it.
        const MULTIPLE: usize = 8;
        let longest = texts.iter().map(|text| text.tokens.len()).max().unwrap_or(1).min(self.context);
        let columns = match self.is_padded {
            true => self.context,
            false => longest.next_multiple_of(MULTIPLE).min(self.context),
        };
        let samples = texts.len().max(least);
        let mut tokens = vec![0; samples * columns];
        let mut lengths = vec![1; samples];
        for (number, text) in texts.iter().enumerate() {
            let known = &text.tokens[text.tokens.len().saturating_sub(columns)..];
            tokens[number * columns..][..known.len()].copy_from_slice(known);
            lengths[number] = known.len() as i64;
        }
        let batch = self.batch(&tokens, &lengths, columns, engine.device)?;
        let next = engine.forward(|| {
            let logits = engine.predict.values(&engine.predict.network().forward(&batch)?)?;
            let last = Tensor::f_from_slice(&lengths)?.f_sub_scalar(1)?.f_to_device(engine.device)?;
            let width = logits.size()[2];
            let last = last.f_view([-1, 1, 1])?.f_expand([samples as i64, 1, width], false)?;
            let of_last = logits.f_gather(1, &last, false)?.f_squeeze_dim(1)?;
            // A network may have more outputs than there are tokens.
            let known = of_last.f_narrow(1, 0, width.min(self.coder.size() as i64))?;
            Ok(most_probable(&known.f_to_kind(Kind::Float)?, 1)?
                .f_to_kind(Kind::Int64)?
                .f_to_device(Device::Cpu)?)
        })?;
        let mut next = Vec::<i64>::try_from(next)?;
        next.truncate(texts.len());
        Ok(next)
    }

    /// Makes a batch of N x `columns` tokens, of which the first `lengths` are known.
    fn batch(&self, tokens: &[i64], lengths: &[i64], columns: usize, device: Device) -> Result<Batch> {
        let samples = lengths.len();
        let of = |value: &dyn Fn(i64, i64) -> i64| -> Vec<i64> {
            let row = |&length: &i64| (0..columns as i64).map(move |at| (at, length));
            lengths
                .iter()
                .flat_map(row)
                .map(|(at, length)| if at < length { value(at, length) } else { 0 })
                .collect()
        };
        let values = |field: &Field| {
            let values = match (&*field.name, field.kind) {
                ("tokens", _) => tokens.to_vec(),
                ("documents" | "attention_mask", _) => of(&|_, _| 1),
                ("positions", _) => of(&|at, _| at),
                (_, FieldKind::F32 | FieldKind::I64) => vec![0; samples * columns],
            };
            let shape = [samples as i64, columns as i64];
            let tensor = Tensor::f_from_slice(&values)?.f_view(shape)?.f_to_device(device)?;
            Ok((Cow::Owned(field.name.to_string()), tensor))
        };
        let fields = self.fields.iter().map(values).collect::<Result<Vec<_>>>()?;
        Ok(Batch::of_fields(fields, samples, device)?)
    }
}
