//! Where the documents of a text stand: its files, or its lines.

use std::ops::Range;

use dtrain_recipe::{Documents, Tokenizer};
use dtrain_shared_memory::MemoryError;
use serde::{Deserialize, Serialize};

use super::error::DataError;
use super::packed::Packed;

/// The documents of a text that have at least two tokens, in the order of the text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentBounds {
    /// For each document its first token and the one after its last, as numbers in the text.
    bounds: Packed<[u64; 2]>,
    /// The number of documents that were left out, because one token predicts nothing.
    pub left_out: u64,
}

impl DocumentBounds {
    pub(super) fn write(bounds: Vec<[u64; 2]>, left_out: u64) -> Result<Self, DataError> {
        Ok(Self { bounds: Packed::write(bounds)?, left_out })
    }

    /// Returns the first token of each document and the one after its last.
    pub fn all(&self) -> &[[u64; 2]] {
        &self.bounds
    }

    /// Returns those of a part of the text that begins and ends with a document.
    pub fn within(&self, part: &Range<u64>) -> &[[u64; 2]] {
        let before = |end: u64| self.bounds.partition_point(|[start, _]| *start < end);
        &self.bounds[before(part.start)..before(part.end)]
    }
}

/// Finds the documents of a text that is read in pieces.
#[derive(Debug)]
pub(super) struct DocumentFinder {
    documents: Documents,
    tokenizer: Tokenizer,
    /// The tokens so far.
    tokens: u64,
    /// The current document: its file, its first token, whether it has more than whitespace, and whether a carriage return
    /// is last.
    file: Option<usize>,
    start: u64,
    has_text: bool,
    ends_with_return: bool,
    bounds: Vec<[u64; 2]>,
    left_out: u64,
}

impl DocumentFinder {
    /// Makes a finder; None if a text is no list of documents.
    pub(super) fn new(documents: Documents, tokenizer: Tokenizer) -> Option<Self> {
        (documents != Documents::None).then_some(Self {
            documents,
            tokenizer,
            tokens: 0,
            file: None,
            start: 0,
            has_text: false,
            ends_with_return: false,
            bounds: Vec::new(),
            left_out: 0,
        })
    }

    /// Adds the next piece of a file, by its number, or without one a line break between two files.
    pub(super) fn add(&mut self, file: Option<usize>, piece: &str) {
        if self.file != file {
            self.end(0);
            self.file = file;
        }
        if self.documents == Documents::Files {
            return self.grow(piece);
        }
        for line in piece.split_inclusive('\n') {
            let Some(text) = line.strip_suffix('\n') else {
                self.grow(line);
                continue;
            };
            self.grow(text);
            self.end(u64::from(self.ends_with_return));
            self.tokens += 1;
            self.start = self.tokens;
        }
    }

    fn grow(&mut self, text: &str) {
        self.tokens += match self.tokenizer {
            Tokenizer::Bytes => text.len(),
            // A tokenizer's file has another finder.
            Tokenizer::Chars | Tokenizer::File(_) => text.chars().count(),
        } as u64;
        self.has_text |= !text.trim_start().is_empty();
        if !text.is_empty() {
            self.ends_with_return = text.ends_with('\r');
        }
    }

    /// Ends the document, of which the last `without` tokens belong to a line break.
    fn end(&mut self, without: u64) {
        let (start, end) = (self.start, self.tokens - without);
        if std::mem::take(&mut self.has_text) {
            match end - start {
                1 => self.left_out += 1,
                _ => self.bounds.push([start, end]),
            }
        }
        self.start = self.tokens;
        self.ends_with_return = false;
    }

    pub(super) fn finish(mut self) -> Result<DocumentBounds, MemoryError> {
        self.end(0);
        Ok(DocumentBounds { bounds: Packed::write(self.bounds)?, left_out: self.left_out })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    /// Finds the documents of files that are read in pieces of `piece` characters.
    fn find(
        documents: Documents,
        tokenizer: Tokenizer,
        files: &[&str],
        piece: usize,
    ) -> (Vec<[u64; 2]>, u64) {
        let mut finder = DocumentFinder::new(documents, tokenizer).unwrap();
        for (number, text) in files.iter().enumerate() {
            if number > 0 && !files[number - 1].ends_with('\n') {
                finder.add(None, "\n");
            }
            let characters: Vec<char> = text.chars().collect();
            for piece in characters.chunks(piece) {
                finder.add(Some(number), &piece.iter().collect::<String>());
            }
        }
        let found = finder.finish().unwrap();
        (found.all().to_vec(), found.left_out)
    }

    #[test]
    fn lines_have_no_breaks_and_no_blanks() {
        let text = "one\n\n \t\ntwo\r\nx\nüü";
        for piece in 1..9 {
            let chars = find(Documents::Lines, Tokenizer::Chars, &[text, "\n\nlast\n"], piece);
            assert_eq!(chars, (vec![[0, 3], [8, 11], [15, 17], [20, 24]], 1), "{piece}");
            let bytes = find(Documents::Lines, Tokenizer::Bytes, &[text], piece);
            assert_eq!(bytes, (vec![[0, 3], [8, 11], [15, 19]], 1), "{piece}");
        }
        assert!(DocumentFinder::new(Documents::None, Tokenizer::Chars).is_none());
    }

    #[test]
    fn files_keep_their_breaks() {
        for piece in 1..5 {
            let found = find(Documents::Files, Tokenizer::Chars, &["a\nb", "c\n", " \n", "d", "ef"], piece);
            assert_eq!(found, (vec![[0, 3], [4, 6], [10, 12]], 1), "{piece}");
        }
    }

    proptest! {
        #[test]
        fn lines_are_those_of_the_text(text in "[ab \n]{0,60}", piece in 1usize..20) {
            let (bounds, left_out) = find(Documents::Lines, Tokenizer::Chars, &[&text], piece);
            let found: Vec<&str> = bounds.iter().map(|[start, end]| &text[*start as usize..*end as usize]).collect();
            let lines: Vec<&str> = text.split('\n').filter(|line| !line.trim().is_empty()).collect();
            prop_assert_eq!(left_out as usize, lines.iter().filter(|line| line.len() == 1).count());
            let lines: Vec<&str> = lines.into_iter().filter(|line| line.len() > 1).collect();
            prop_assert_eq!(found, lines);
        }
    }
}
