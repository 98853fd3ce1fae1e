//! Texts of samples become tokens once, before a run: a text, a prompt with its answer, or a chat.

use std::collections::BTreeMap;

use minijinja::Value;

use super::chat::{ChatTemplate, Rendered};
use super::check::too_many_bad;
use super::error::{BadSample, DataError};
use super::names::listed;
use super::samples::{List, ListValues, Samples};
use super::texts::Texts;
use super::token_lists::{LEARNT, TOKENS, TextForm, TokenLists};
use super::tokenized::in_threads;
use super::tokenizer::{TextTokenizer, TokenizerFiles};
use super::vocabulary::Vocabulary;

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

    /// Returns the fields of texts of which some are longer than `context` tokens, with the number of these.
    pub fn cut_texts(&self, context: usize) -> Vec<(&str, usize)> {
        let longer = |tokens: &TokenLists| {
            (0..tokens.count()).filter(|&sample| tokens.of(sample).len() > context).count()
        };
        self.token_lists()
            .map(|(field, tokens)| (field, longer(tokens)))
            .filter(|(_, cut)| *cut > 0)
            .collect()
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
        let (samples, bad) = self.encoded(rules, threads)?;
        if too_many_bad(bad.len(), samples.count()) {
            return Err(DataError::TooManyBadTexts(bad, samples.count()));
        }
        let kept = samples.kept(&|at| bad.binary_search_by_key(&at, |bad| bad.index).is_err())?;
        Ok((kept, bad))
    }

    /// Turns texts into tokens, in `threads` threads. Texts that cannot be used have none; returns their samples in order, each with
    /// its reason.
    pub fn encoded(self, rules: &TextRules<'_>, threads: usize) -> Result<(Self, Vec<BadSample>), DataError> {
        let chat = match rules.texting {
            Texting::Tokenizer(tokenizer) if self.has_chats() => Some(ChatTemplate::of(tokenizer)?),
            _ => None,
        };
        let repeated = repeated(&rules.texting, rules.repeat)?;
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
                ListValues::Tokens(TokenLists::write(
                    rules.texting.vocabulary(),
                    rules.texting.padding(),
                    &samples,
                )?),
            ));
        }
        Ok((Self { lists, ..self }, bad.into_values().collect()))
    }

    /// Returns the first column of the texts of a field, before they are tokens.
    pub fn texts_of(&self, field: &str) -> Option<&Texts> {
        self.lists.iter().find_map(|list| match &list.values {
            ListValues::Texts(columns, _) if list.field == field => columns.first(),
            _ => None,
        })
    }

    /// Returns the name of the first field of texts, whether they are tokens or not.
    pub fn text_field(&self) -> Option<&str> {
        let is_text = |list: &&List| matches!(list.values, ListValues::Texts(..) | ListValues::Tokens(_));
        self.lists.iter().find(is_text).map(|list| list.field.as_str())
    }

    /// Returns the samples with tokens that are no target.
    #[must_use]
    pub fn with_tokens_as_inputs(mut self) -> Self {
        for list in &mut self.lists {
            if let ListValues::Tokens(tokens) = &list.values {
                list.values = ListValues::Tokens(tokens.clone().into_input());
            }
        }
        self
    }

    /// Returns whether some texts are prompts alone.
    pub fn has_prompts(&self) -> bool {
        self.lists.iter().any(|list| matches!(list.values, ListValues::Texts(_, TextForm::Prompt)))
    }

    fn has_chats(&self) -> bool {
        self.lists.iter().any(|list| matches!(list.values, ListValues::Texts(_, TextForm::Chat)))
    }
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

    fn prompt(&self, text: &str) -> Result<Vec<u32>, DataError> {
        match self {
            Self::Bytes => self.encode(text, false),
            Self::Tokenizer(tokenizer) => tokenizer.prompt(text),
        }
    }

    /// Returns the token after the end of a text, and the tokenizer's files.
    fn padding(&self) -> (u32, Option<TokenizerFiles>) {
        match self {
            Self::Bytes => (0, None),
            Self::Tokenizer(tokenizer) => (tokenizer.pad(), Some(tokenizer.files().clone())),
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
pub(super) fn repeated(
    texting: &Texting<'_>,
    named: &BTreeMap<String, usize>,
) -> Result<BTreeMap<u32, usize>, DataError> {
    let number = |(token, count): (&String, &usize)| {
        let number = match texting {
            Texting::Tokenizer(tokenizer) => tokenizer.number(token),
            Texting::Bytes => None,
        };
        number.map(|number| (number, *count)).ok_or_else(|| DataError::NoToken(token.clone()))
    };
    named.iter().map(number).collect()
}

/// Repeats tokens. A text without any of them would leave out what they stand for.
pub(super) fn repeat(
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
        (TextForm::Prompt, [prompt, ..]) if prompt.trim().is_empty() => {
            Ok(Err("the prompt is empty; write at least one token".to_owned()))
        }
        (TextForm::Prompt, [prompt, ..]) => Ok(Ok(texting.prompt(prompt)?)),
        (TextForm::Answer, [_, answer, ..]) if answer.trim().is_empty() => {
            Ok(Err("the answer is empty, so there is nothing to learn; write an answer, or remove the line"
                .to_owned()))
        }
        (TextForm::Answer, [prompt, answer, ..]) => {
            let mut tokens = texting.prompt(prompt)?;
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
        // A tokenizer that trims has no place for white space alone, but its end.
        let start = if place.is_empty() { place.start.checked_sub(1) } else { Some(place.start) };
        let is_answer = start.is_some_and(|start| answers.iter().any(|range| range.contains(&start)));
        if is_answer { token | LEARNT } else { token }
    };
    Ok(Ok(encoded.into_iter().map(token).collect()))
}

#[cfg(test)]
mod tests;
