//! Texts as fields of samples: the tokens of each sample, which are cut or filled to one length in a batch.

use dtrain_shared_memory::MemoryError;
use serde::{Deserialize, Serialize};

use super::packed::Packed;
use super::text_documents::NO_TARGET;
use super::tokenizer::TokenizerFiles;
use super::vocabulary::Vocabulary;

/// The kinds of cells of a field of texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TextForm {
    /// A text, all of which is learnt.
    Text,
    /// A prompt and its answer, which alone is learnt.
    Answer,
    /// A prompt alone, of which nothing is learnt: in predictions.
    Prompt,
    /// A chat, as a list of messages in JSON; what the assistant says is learnt.
    Chat,
}

/// The tokens of each sample, of any number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenLists {
    pub(super) vocabulary: Vocabulary,
    /// The token after the end of a text.
    #[serde(default)]
    pad: u32,
    /// The tokenizer's files; None for bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tokenizer: Option<TokenizerFiles>,
    /// Where the tokens of each sample end.
    ends: Packed<u64>,
    /// The tokens, with [`LEARNT`] if the model learns to write them.
    tokens: Packed<u32>,
    /// Whether they are no target, although the samples have none.
    #[serde(default)]
    is_input: bool,
}

/// The bit of a token that the loss counts. No vocabulary is as large.
pub(super) const LEARNT: u32 = 1 << 31;

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
pub(super) const TOKENS: &str = "tokens";

/// Returns whether a field is a class or numbers as a target: then the text is none.
pub fn is_target(field: &str) -> bool {
    ["label", "labels", "targets"].contains(&field)
}

/// Returns whether a field of this name may be that of the tokens to learn: `targets` or `labels`.
pub fn is_token_target(field: &str) -> bool {
    ["targets", "labels"].contains(&field)
}

/// Returns the columns of a field of texts by name. `others` are the fields of the sample, whose names go first.
pub(super) fn columns_of(field: &str, others: &[&str]) -> Vec<(String, TextColumn)> {
    if field != TOKENS {
        return vec![(field.to_owned(), TextColumn::Tokens), (format!("{field}_mask"), TextColumn::Mask)];
    }
    let mut columns =
        vec![(TOKENS.to_owned(), TextColumn::Tokens), ("attention_mask".to_owned(), TextColumn::Mask)];
    if !others.iter().copied().any(is_target) {
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
    /// Writes the tokens of samples, with [`LEARNT`], and the token after the end of a text.
    pub(super) fn write(
        vocabulary: Vocabulary,
        (pad, tokenizer): (u32, Option<TokenizerFiles>),
        samples: &[Vec<u32>],
    ) -> Result<Self, MemoryError> {
        let (ends, tokens) = packed(samples)?;
        Ok(Self { vocabulary, pad, tokenizer, ends, tokens, is_input: false })
    }

    /// Returns the tokens without columns of targets.
    pub(super) fn into_input(self) -> Self {
        Self { is_input: true, ..self }
    }

    /// Returns the columns of the field by name, in samples with the fields `others`.
    pub(super) fn columns(&self, field: &str, others: &[&str]) -> Vec<(String, TextColumn)> {
        let mut columns = columns_of(field, others);
        if self.is_input {
            columns.retain(|(_, column)| matches!(column, TextColumn::Tokens | TextColumn::Mask));
        }
        columns
    }

    pub(super) fn count(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn of(&self, sample: usize) -> &[u32] {
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
    pub(super) fn targets(&self, sample: usize, context: usize) -> usize {
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
