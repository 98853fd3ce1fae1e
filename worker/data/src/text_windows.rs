//! Windows of a text as a data set for language models.

use std::ops::Range;

use super::dataset::{Column, Dataset, Field};
use super::error::{DataError, Result};
use super::generated_set::Split;
use super::rng::{SampleRng, below};
use super::text::Corpus;

/// Windows of T tokens: the fields `tokens` and `targets`, each `[T]`; targets are the tokens shifted by one.
///
/// The windows do not overlap. So an evaluation predicts every token of its part once, except the first token
/// and a rest shorter than a window. With a generator, as in training, a window begins up to T - 1 tokens
/// later: its borders differ in every epoch.
#[derive(Debug, Clone)]
pub struct TextWindows {
    corpus: Corpus,
    /// The part of the text, as a range of tokens.
    start: usize,
    end: usize,
    context: usize,
    split: Split,
    fields: [Field; 2],
}

impl TextWindows {
    /// Makes windows of `context` tokens of a part of the text. The last `test_fraction` of its tokens is the test part.
    pub fn new(
        corpus: Corpus,
        part: Range<u64>,
        split: Split,
        test_fraction: f64,
        context: usize,
    ) -> Result<Self, DataError> {
        assert!(
            context > 0 && (0.0..=1.0).contains(&test_fraction),
            "windows of {context} tokens, {test_fraction} of the text for tests"
        );
        let (first, last) = (part.start as usize, part.end as usize);
        let border = last - ((last - first) as f64 * test_fraction).round() as usize;
        let (start, end) = match split {
            Split::Train => (first, border),
            Split::Test | Split::Val => (border, last),
        };
        if end - start < context + 1 {
            return Err(DataError::ShortText { part: split.name(), tokens: end - start, context });
        }
        Ok(Self {
            corpus,
            start,
            end,
            context,
            split,
            fields: [Field::i64("tokens", [context]), Field::i64("targets", [context])],
        })
    }

    /// Returns the text and its vocabulary.
    pub fn corpus(&self) -> &Corpus {
        &self.corpus
    }

    /// Returns the tokens of a window.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Returns the first token of a window without a shift, as its number in the text.
    fn first(&self, index: usize) -> usize {
        let windows = self.len();
        assert!(index < windows, "sample {index} of {windows}");
        self.start + index * self.context
    }
}

impl Dataset for TextWindows {
    fn len(&self) -> usize {
        (self.end - self.start - 1) / self.context
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn load(&self, index: usize, random: Option<&mut SampleRng>, out: &mut [Column]) -> Result<()> {
        let [tokens, targets] = out else {
            panic!("windows of a text have two fields, not {}", out.len());
        };
        let first = self.first(index);
        let shift = random.map_or(0, |rng| below(rng, self.context as u32) as usize);
        // The last windows have fewer tokens after them.
        let first = (first + shift).min(self.end - self.context - 1);
        self.corpus.tokens.copy_to(first, tokens.i64())?;
        self.corpus.tokens.copy_to(first + 1, targets.i64())?;
        Ok(())
    }

    fn describe(&self, index: usize) -> String {
        let first = self.first(index);
        format!("tokens {first} to {} of the text ({})", first + self.context - 1, self.split.name())
    }
}

#[cfg(test)]
mod tests;
