//! Texts as fields of samples: a text, a prompt with its answer, or a chat becomes tokens once, before a run, and is cut or filled
//! to one length in a batch.

use std::collections::BTreeMap;

use dtrain_shared_memory::MemoryError;
use minijinja::Value;
use serde::{Deserialize, Serialize};

use super::chat::{ChatTemplate, Rendered};
use super::check::too_many_bad;
use super::dataset::Field;
use super::error::{BadSample, DataError};
use super::names::listed;
use super::packed::Packed;
use super::samples::{List, ListValues, Samples};
use super::text_documents::NO_TARGET;
use super::texts::Texts;
use super::tokenized::in_threads;
use super::tokenizer::{TextTokenizer, TokenizerFiles};
use super::vocabulary::Vocabulary;

/// What the cells of a field of texts are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TextForm {
    /// A text, all of which is learnt.
    Text,
    /// A prompt and its answer, which alone is learnt.
    Answer,
    /// A chat, as a list of messages in JSON; what the assistant says is learnt.
    Chat,
}

/// How texts become tokens.
pub enum Texting<'a> {
    /// The bytes of a text are its tokens.
    Bytes,
    Tokenizer(&'a TextTokenizer),
}

/// Settings of [`Samples::tokenized`].
pub struct TextRules<'a> {
    pub texting: Texting<'a>,
    /// Tokens that stand for many of their kind, such as one for each patch of an image, with their number.
    pub repeat: &'a BTreeMap<String, usize>,
    /// Whether the text is what a model writes: then it ends with the end token.
    pub ends: bool,
}

/// The tokens of each sample, of any number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenLists {
    vocabulary: Vocabulary,
    /// The token after the end of a text.
    #[serde(default)]
    pad: u32,
    /// The tokenizer's files; None for bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tokenizer: Option<TokenizerFiles>,
    /// Where the tokens of each sample end.
    ends: Packed<u64>,
    /// The tokens, with [`LEARNT`] if the model learns to write them.
    tokens: Packed<u32>,
}

/// The bit of a token that the loss counts. No vocabulary is as large.
const LEARNT: u32 = 1 << 31;

/// The part of a field that a column of a batch holds: each `[T]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextColumn {
    /// Tokens, then those that fill a text.
    Tokens,
    /// 1 for a token, 0 in padding.
    Mask,
    /// The next token if the loss counts it, else [`NO_TARGET`].
    Targets,
    /// The token itself if the loss counts it, else [`NO_TARGET`]: for programs that shift them.
    Labels,
}

/// The field whose parts have the usual names.
const TOKENS: &str = "tokens";

/// Returns the columns of a field of texts by name. `others` are the fields of the sample, whose names go first.
pub(super) fn columns_of(field: &str, others: &[&str]) -> Vec<(String, TextColumn)> {
    if field != TOKENS {
        return vec![(field.to_owned(), TextColumn::Tokens), (format!("{field}_mask"), TextColumn::Mask)];
    }
    let mut columns =
        vec![(TOKENS.to_owned(), TextColumn::Tokens), ("attention_mask".to_owned(), TextColumn::Mask)];
    // A class or numbers are the target then.
    if !others.iter().any(|other| ["label", "labels", "targets"].contains(other)) {
        columns.push(("targets".to_owned(), TextColumn::Targets));
        columns.push(("labels".to_owned(), TextColumn::Labels));
    }
    columns
}

/// Returns the names of the fields of samples of which some fields are texts, without their lengths.
pub fn names_with_texts(fields: &[(&str, bool)]) -> Vec<String> {
    let others: Vec<&str> = fields.iter().map(|(field, _)| *field).collect();
    let names = fields.iter().flat_map(|(field, is_text)| match is_text {
        true => columns_of(field, &others).into_iter().map(|(name, _)| name).collect(),
        false => vec![(*field).to_owned()],
    });
    names.collect()
}

impl TokenLists {
    fn write(texting: &Texting<'_>, samples: &[Vec<u32>]) -> Result<Self, MemoryError> {
        let (ends, tokens) = packed(samples)?;
        let (pad, tokenizer) = match texting {
            Texting::Bytes => (0, None),
            Texting::Tokenizer(tokenizer) => (tokenizer.pad(), Some(tokenizer.files().clone())),
        };
        Ok(Self { vocabulary: texting.vocabulary(), pad, tokenizer, ends, tokens })
    }

    pub(super) fn count(&self) -> usize {
        self.ends.len()
    }

    fn of(&self, sample: usize) -> &[u32] {
        let start = if sample == 0 { 0 } else { self.ends[sample - 1] };
        // Another process may have written the lists.
        self.tokens.get(start as usize..self.ends[sample] as usize).unwrap_or_default()
    }

    pub(super) fn kept(&self, is_kept: &dyn Fn(usize) -> bool) -> Result<Self, MemoryError> {
        let kept = (0..self.count()).filter(|&at| is_kept(at)).map(|at| self.of(at).to_vec());
        let (ends, tokens) = packed(&kept.collect::<Vec<_>>())?;
        Ok(Self { ends, tokens, ..self.clone() })
    }

    /// Returns the number of tokens of each sample, at most `context`.
    pub(super) fn lengths(&self, context: usize) -> Vec<u32> {
        (0..self.count()).map(|sample| self.of(sample).len().min(context) as u32).collect()
    }

    /// Returns the number of targets of a sample that is cut to `context` tokens.
    fn targets(&self, sample: usize, context: usize) -> usize {
        // The token after the last input is its target.
        let tokens = self.of(sample);
        tokens.iter().take(context + 1).skip(1).filter(|&&token| token & LEARNT != 0).count()
    }

    /// Writes a column of a sample.
    pub(super) fn write_column(&self, sample: usize, column: TextColumn, out: &mut [i64]) {
        let tokens = self.of(sample);
        let number = |token: u32| i64::from(token & !LEARNT);
        let learnt = |token: u32| if token & LEARNT == 0 { NO_TARGET } else { number(token) };
        let value = |at: usize| match column {
            TextColumn::Tokens => tokens.get(at).map_or(self.pad.into(), |&token| number(token)),
            TextColumn::Mask => i64::from(at < tokens.len()),
            TextColumn::Targets => tokens.get(at + 1).map_or(NO_TARGET, |&token| learnt(token)),
            TextColumn::Labels => tokens.get(at).map_or(NO_TARGET, |&token| learnt(token)),
        };
        out.iter_mut().enumerate().for_each(|(at, out)| *out = value(at));
    }
}

/// Returns where the tokens of each sample end, and all tokens.
fn packed(samples: &[Vec<u32>]) -> Result<(Packed<u64>, Packed<u32>), MemoryError> {
    let ends = samples.iter().scan(0, |end, tokens| {
        *end += tokens.len() as u64;
        Some(*end)
    });
    Ok((Packed::write(ends)?, Packed::write(samples.iter().flatten().copied())?))
}

/// What a length makes of the texts of a set.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TextCounts {
    /// All tokens.
    pub tokens: u64,
    /// Samples that are longer, and are cut.
    pub cut: usize,
    /// Samples of which no target is left.
    pub without_targets: usize,
    /// The mean number of targets.
    pub mean_targets: f64,
}

impl Samples {
    fn token_lists(&self) -> impl Iterator<Item = (&str, &TokenLists)> {
        self.lists.iter().filter_map(|list| match &list.values {
            ListValues::Tokens(tokens) => Some((list.field.as_str(), tokens)),
            _ => None,
        })
    }

    /// Returns the number of tokens of each sample of the field `tokens`, cut to `context`; None without it.
    pub fn text_lengths(&self, context: usize) -> Option<Vec<u32>> {
        self.token_lists().find(|(field, _)| *field == TOKENS).map(|(_, tokens)| tokens.lengths(context))
    }

    /// Counts what a length of `context` tokens makes of the field `tokens`; None without it.
    pub fn text_counts(&self, context: usize) -> Option<TextCounts> {
        let (_, tokens) = self.token_lists().find(|(field, _)| *field == TOKENS)?;
        let mut counts = TextCounts::default();
        for sample in 0..tokens.count() {
            let (length, targets) = (tokens.of(sample).len(), tokens.targets(sample, context));
            counts.tokens += length as u64;
            // One more token is a target.
            counts.cut += usize::from(length > context + 1);
            counts.without_targets += usize::from(targets == 0);
            counts.mean_targets += targets as f64;
        }
        counts.mean_targets /= tokens.count().max(1) as f64;
        Some(counts)
    }

    /// Returns the vocabulary of the texts, and the files of its tokenizer; None without texts.
    pub fn vocabulary(&self) -> Option<(&Vocabulary, Option<&TokenizerFiles>)> {
        self.token_lists().next().map(|(_, tokens)| (&tokens.vocabulary, tokens.tokenizer.as_ref()))
    }

    /// Turns texts into tokens, in `threads` threads, without the samples whose texts cannot be used. Returns these, too, each
    /// with its reason. More than 1% of them are an error.
    pub fn tokenized(
        self,
        rules: &TextRules<'_>,
        threads: usize,
    ) -> Result<(Self, Vec<BadSample>), DataError> {
        let chat = match rules.texting {
            Texting::Tokenizer(tokenizer) if self.has_chats() => Some(ChatTemplate::of(tokenizer)?),
            _ => None,
        };
        let repeated = repeated(rules)?;
        let mut bad = BTreeMap::new();
        let mut lists = Vec::with_capacity(self.lists.len());
        for list in &self.lists {
            let ListValues::Texts(columns, form) = &list.values else {
                lists.push(list.clone());
                continue;
            };
            let encode = |at: usize| {
                let cells: Vec<&str> = columns.iter().map(|texts| texts.get(at)).collect();
                let encoded = encode(&cells, *form, rules, chat.as_ref())?;
                Ok(encoded.and_then(|tokens| repeat(tokens, &repeated, rules.repeat)))
            };
            let encoded = in_threads(columns.first().map_or(0, Texts::len), threads, encode)?;
            let mut samples = Vec::with_capacity(encoded.len());
            for (index, tokens) in encoded.into_iter().enumerate() {
                samples.push(tokens.unwrap_or_else(|reason| {
                    let reason = format!("the field `{}`: {reason}", list.field);
                    bad.entry(index).or_insert(BadSample { index, path: self.describe(index), reason });
                    Vec::new()
                }));
            }
            lists.push(List::new(
                &list.field,
                ListValues::Tokens(TokenLists::write(&rules.texting, &samples)?),
            ));
        }
        let samples = Self { lists, ..self };
        let bad: Vec<BadSample> = bad.into_values().collect();
        if too_many_bad(bad.len(), samples.count()) {
            return Err(DataError::TooManyBadTexts(bad, samples.count()));
        }
        let kept = samples.kept(&|at| bad.binary_search_by_key(&at, |bad| bad.index).is_err())?;
        Ok((kept, bad))
    }

    fn has_chats(&self) -> bool {
        self.lists.iter().any(|list| matches!(list.values, ListValues::Texts(_, TextForm::Chat)))
    }
}

/// Returns the fields of a list of tokens.
pub(super) fn fields(field: &str, others: &[&str], context: usize) -> Vec<Field> {
    columns_of(field, others).into_iter().map(|(name, _)| Field::i64(name, [context])).collect()
}

impl Texting<'_> {
    /// Returns the vocabulary of the tokens.
    pub fn vocabulary(&self) -> Vocabulary {
        match self {
            Self::Bytes => Vocabulary::Bytes,
            Self::Tokenizer(tokenizer) => Vocabulary::Tokenizer(tokenizer.id().clone()),
        }
    }

    fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, DataError> {
        match self {
            Self::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Self::Tokenizer(tokenizer) => tokenizer.encode(text, special),
        }
    }

    fn end(&self) -> Option<u32> {
        match self {
            Self::Bytes => None,
            Self::Tokenizer(tokenizer) => tokenizer.id().end,
        }
    }
}

/// Returns the numbers of repeated tokens.
fn repeated(rules: &TextRules<'_>) -> Result<BTreeMap<u32, usize>, DataError> {
    let number = |(token, count): (&String, &usize)| {
        let number = match rules.texting {
            Texting::Tokenizer(tokenizer) => tokenizer.number(token),
            Texting::Bytes => None,
        };
        number.map(|number| (number, *count)).ok_or_else(|| DataError::NoToken(token.clone()))
    };
    rules.repeat.iter().map(number).collect()
}

/// Repeats tokens. A text without any of them would leave out what they stand for.
fn repeat(
    tokens: Vec<u32>,
    repeated: &BTreeMap<u32, usize>,
    named: &BTreeMap<String, usize>,
) -> Result<Vec<u32>, String> {
    let count = |token: u32| repeated.get(&(token & !LEARNT)).copied();
    if !repeated.is_empty() && !tokens.iter().any(|&token| count(token).is_some()) {
        let names: Vec<&String> = named.keys().collect();
        return Err(format!("the text has no {}; write it where the image stands", listed(&names)));
    }
    Ok(tokens.into_iter().flat_map(|token| std::iter::repeat_n(token, count(token).unwrap_or(1))).collect())
}

/// Returns the tokens of a sample's cells, or the reason why they cannot be used.
fn encode(
    cells: &[&str],
    form: TextForm,
    rules: &TextRules<'_>,
    chat: Option<&ChatTemplate>,
) -> Result<Result<Vec<u32>, String>, DataError> {
    let texting = &rules.texting;
    let learn = |tokens: Vec<u32>| tokens.into_iter().map(|token| token | LEARNT);
    let end = texting.end().filter(|_| rules.ends).map(|end| end | LEARNT);
    match (form, cells) {
        (TextForm::Text, [text, ..]) if text.trim().is_empty() => {
            Ok(Err("the text is empty; write a text, or remove the line".to_owned()))
        }
        (TextForm::Text, [text, ..]) => {
            let mut tokens: Vec<u32> = learn(texting.encode(text, true)?).collect();
            // Some tokenizers end a text themselves.
            tokens.extend(end.filter(|end| tokens.last() != Some(end)));
            Ok(Ok(tokens))
        }
        (TextForm::Answer, [_, answer, ..]) if answer.trim().is_empty() => {
            Ok(Err("the answer is empty, so there is nothing to learn; write an answer, or remove the line"
                .to_owned()))
        }
        (TextForm::Answer, [prompt, answer, ..]) => {
            let mut tokens = texting.encode(prompt, true)?;
            tokens.extend(learn(texting.encode(answer, false)?));
            tokens.extend(end);
            Ok(Ok(tokens))
        }
        (TextForm::Chat, [messages, ..]) => match (texting, chat) {
            (Texting::Tokenizer(tokenizer), Some(chat)) => of_chat(messages, tokenizer, chat),
            _ => {
                Ok(Err("a chat needs the template of a tokenizer; set data.tokenizer to a tokenizer.json"
                    .to_owned()))
            }
        },
        (_, _) => Ok(Err("a column is missing".to_owned())),
    }
}

fn of_chat(
    messages: &str,
    tokenizer: &TextTokenizer,
    chat: &ChatTemplate,
) -> Result<Result<Vec<u32>, String>, DataError> {
    let rendered = serde_json::from_str::<Value>(messages)
        .map_err(|error| {
            format!("the chat is no JSON ({error}); write a list such as [{{\"role\": \"user\", \"content\": \"...\"}}, ...]")
        })
        .and_then(|messages| chat.render(&messages));
    let Rendered { text, answers } = match rendered {
        Ok(rendered)
            if rendered.answers.iter().all(|range| rendered.text[range.clone()].trim().is_empty()) =>
        {
            return Ok(Err(
                "the chat has no message of the assistant with a text; add one, or remove the line"
                    .to_owned(),
            ));
        }
        Ok(rendered) => rendered,
        Err(reason) => return Ok(Err(reason)),
    };
    let encoded = tokenizer.encode_with_places(&text)?;
    let token = |(token, place): (u32, std::ops::Range<usize>)| {
        let is_answer = !place.is_empty() && answers.iter().any(|range| range.contains(&place.start));
        if is_answer { token | LEARNT } else { token }
    };
    Ok(Ok(encoded.into_iter().map(token).collect()))
}

#[cfg(test)]
mod tests;
