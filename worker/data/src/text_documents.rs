//! Documents of a text as a data set for language models.

use super::dataset::{Column, Dataset, Field};
use super::error::{DataError, Result};
use super::generated_set::Split;
use super::packing::Packs;
use super::rng::SampleRng;
use super::text::Corpus;

/// The target of a token whose next token is unknown or of another document.
pub const NO_TARGET: i64 = -100;

/// Samples of T tokens with one document each, or with several if they are packed.
///
/// The fields, each `[T]`: `tokens`; `targets`, the next token of the same document, or [`NO_TARGET`]; `documents`, the number
/// of the token's document in the sample, from 1; `positions`, the token's number in its document, from 0. In padding, at the
/// end, the target is [`NO_TARGET`] and the others are 0.
///
/// A document of more than T + 1 tokens is several pieces. Each begins with the last token of the piece before, so every token
/// but the document's first is predicted once. Positions count within the piece.
#[derive(Debug, Clone)]
pub struct TextDocuments {
    corpus: Corpus,
    pieces: Vec<Piece>,
    /// The pieces of each sample; None if a sample is one piece.
    packs: Option<Packs>,
    context: usize,
    split: Split,
    fields: [Field; 4],
}

/// A part of a document: at least two tokens, and at most T + 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    /// The first token, as its number in the text.
    start: u64,
    tokens: u32,
}

impl Piece {
    /// Returns how many of its tokens are inputs of a sample of `context` tokens: all, or all but the last, which is then only a
    /// target.
    fn inputs(self, context: usize) -> usize {
        context.min(self.tokens as usize)
    }

    fn targets(self) -> usize {
        self.tokens as usize - 1
    }
}

/// Returns the pieces of documents.
fn pieces(documents: &[[u64; 2]], context: usize) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(documents.len());
    for &[mut start, end] in documents {
        while end - start > 1 {
            let tokens = (end - start).min(context as u64 + 1);
            pieces.push(Piece { start, tokens: tokens as u32 });
            start += tokens - 1;
        }
    }
    pieces
}

/// Returns the documents of the training and of the test part: the last `test_fraction`, at least one unless it is 0.
pub fn split_documents(documents: &[[u64; 2]], test_fraction: f64) -> (&[[u64; 2]], &[[u64; 2]]) {
    // Parts of two files are whole: 0 and 1.
    let least = if test_fraction > 0.0 { 1.0 } else { 0.0 };
    let test = (documents.len() as f64 * test_fraction).round().max(least) as usize;
    documents.split_at(documents.len().saturating_sub(test))
}

impl TextDocuments {
    /// Makes samples of `context` tokens. The last `test_fraction` of the documents, at least one unless it is 0, is the test
    /// part.
    pub fn new(
        corpus: Corpus,
        documents: &[[u64; 2]],
        split: Split,
        test_fraction: f64,
        context: usize,
        is_packed: bool,
    ) -> Result<Self, DataError> {
        assert!(
            (1..u32::MAX as usize).contains(&context) && (0.0..=1.0).contains(&test_fraction),
            "samples of {context} tokens, {test_fraction} of the text for tests"
        );
        let (train, test) = split_documents(documents, test_fraction);
        let part = match split {
            Split::Train => train,
            Split::Test | Split::Val => test,
        };
        if part.is_empty() {
            return Err(DataError::NoDocuments { part: split.name(), documents: documents.len() });
        }
        let pieces = pieces(part, context);
        let lengths = || pieces.iter().map(|piece| piece.inputs(context) as u32).collect::<Vec<_>>();
        let packs = is_packed.then(|| Packs::new(&lengths(), context as u32));
        let field = |name| Field::i64(name, [context]);
        let fields = ["tokens", "targets", "documents", "positions"].map(field);
        Ok(Self { corpus, pieces, packs, context, split, fields })
    }

    /// Returns the number of tokens in each sample, without padding.
    pub fn lengths(&self) -> Vec<u32> {
        let length = |sample| self.of(sample).map(|piece| piece.inputs(self.context) as u32).sum();
        (0..self.len()).map(length).collect()
    }

    /// Returns the mean number of targets in a sample.
    pub fn mean_targets(&self) -> f64 {
        let all: usize = self.pieces.iter().map(|piece| piece.targets()).sum();
        all as f64 / self.len() as f64
    }

    /// Returns the pieces of a sample.
    fn of(&self, sample: usize) -> impl Iterator<Item = Piece> {
        let packed = self.packs.as_ref().map(|packs| packs.of(sample));
        let alone = packed.is_none().then(|| self.pieces[sample]);
        alone.into_iter().chain(packed.into_iter().flatten().map(|&piece| self.pieces[piece as usize]))
    }
}

impl Dataset for TextDocuments {
    fn len(&self) -> usize {
        self.packs.as_ref().map_or(self.pieces.len(), Packs::len)
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn load(&self, index: usize, _: Option<&mut SampleRng>, out: &mut [Column]) -> Result<()> {
        let [tokens, targets, documents, positions] = out else {
            panic!("documents of a text have four fields, not {}", out.len());
        };
        let (tokens, targets) = (tokens.i64(), targets.i64());
        let (documents, positions) = (documents.i64(), positions.i64());
        let text = &self.corpus.tokens;
        let mut at = 0;
        for (number, piece) in (1..).zip(self.of(index)) {
            let (start, inputs) = (piece.start as usize, piece.inputs(self.context));
            let (end, last) = (at + inputs, at + piece.targets());
            text.copy_to(start, &mut tokens[at..end])?;
            text.copy_to(start + 1, &mut targets[at..last])?;
            targets[last..end].fill(NO_TARGET);
            documents[at..end].fill(number);
            positions[at..end].iter_mut().zip(0..).for_each(|(to, position)| *to = position);
            at = end;
        }
        targets[at..].fill(NO_TARGET);
        for padding in [tokens, documents, positions] {
            padding[at..].fill(0);
        }
        Ok(())
    }

    fn largest(&self) -> usize {
        self.lengths().into_iter().enumerate().max_by_key(|(_, length)| *length).map_or(0, |(at, _)| at)
    }

    fn describe(&self, index: usize) -> String {
        let mut pieces = self.of(index);
        let first = pieces.next().map_or(0..0, |piece| piece.start..piece.start + u64::from(piece.tokens));
        let more = match pieces.count() {
            0 => String::new(),
            more => format!(" and {more} more documents"),
        };
        format!("tokens {} to {} of the text{more} ({})", first.start, first.end - 1, self.split.name())
    }
}

#[cfg(test)]
mod tests;
