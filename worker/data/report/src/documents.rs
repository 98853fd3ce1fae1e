//! The text of a run: its files, its tokens and its documents.

use std::collections::HashMap;

use dtrain_data::{Corpus, Moments, TextIndex};
use serde::Serialize;

use crate::spread::Spread;

/// A text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TextReport {
    pub files: usize,
    pub first_file: String,
    pub tokens: u64,
    /// Different tokens.
    pub vocabulary: usize,
    /// Its documents; None if it is one sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub documents: Option<DocumentsReport>,
}

/// The documents of a text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DocumentsReport {
    pub documents: usize,
    /// Documents of one token, which predict nothing.
    pub left_out: u64,
    /// Tokens of a document.
    pub lengths: Spread,
    /// Documents that are longer than a sample, and the tokens of a sample; None without a model.
    pub longer: Option<(usize, usize)>,
    /// Documents that repeat an earlier one.
    pub repeated: usize,
    /// Test documents that repeat a training document.
    pub leaked: usize,
    /// The number of the first of these, from 1, and of the one that it repeats.
    pub first_leak: Option<(usize, usize)>,
}

impl TextReport {
    /// Describes a text in samples of `context` tokens, of which the last `test_fraction` of each source is for the test.
    pub fn of(index: &TextIndex, corpus: &Corpus, context: Option<usize>, test_fraction: f64) -> Self {
        Self {
            files: index.files.len(),
            first_file: index.files.first().map(|file| file.display().to_string()).unwrap_or_default(),
            tokens: index.tokens,
            vocabulary: index.vocabulary.size(),
            documents: index
                .documents
                .as_ref()
                .map(|_| DocumentsReport::of(index, corpus, context, test_fraction)),
        }
    }
}

impl DocumentsReport {
    fn of(index: &TextIndex, corpus: &Corpus, context: Option<usize>, test_fraction: f64) -> Self {
        let Some(bounds) = &index.documents else { unreachable!("the text has documents") };
        let lengths: Vec<f32> = bounds.all().iter().map(|[start, end]| (end - start) as f32).collect();
        // The first document of each content, and whether it is for training.
        let mut first_of: HashMap<[u8; 32], (usize, bool)> = HashMap::new();
        let (mut repeated, mut leaked, mut first_leak) = (0, 0, None);
        let mut number = 0;
        for part in index.parts() {
            let documents = bounds.within(&part.tokens);
            let (train, _) = dtrain_data::split_documents(documents, test_fraction);
            for (at, &[start, end]) in documents.iter().enumerate() {
                number += 1;
                let is_training = at < train.len();
                // A text of documents is in memory.
                let Ok(content) = corpus.tokens.hash(start as usize..end as usize) else { continue };
                let (first, first_trains) = *first_of.entry(content).or_insert((number, is_training));
                if first == number {
                    continue;
                }
                repeated += 1;
                if first_trains && !is_training {
                    leaked += 1;
                    first_leak.get_or_insert((number, first));
                }
            }
        }
        Self {
            documents: bounds.all().len(),
            left_out: bounds.left_out,
            longer: context.map(|context| {
                (lengths.iter().filter(|length| **length > context as f32 + 1.0).count(), context)
            }),
            lengths: Spread::of(&Moments::of(lengths.iter().copied()), lengths),
            repeated,
            leaked,
            first_leak,
        }
    }
}
