//! The text of a run: its files, its tokens and its documents.

use std::collections::{HashMap, HashSet};

use dtrain_data::{Corpus, Moments, TextIndex};
use serde::Serialize;

use crate::spread::Spread;

/// A text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TextReport {
    pub files: usize,
    pub first_file: String,
    pub tokens: u64,
    /// Tokens that it may have.
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
    /// Validation and test documents that repeat a training document.
    pub leaked: usize,
    /// The number of the first of these, from 1, and of the one that it repeats.
    pub first_leak: Option<(usize, usize)>,
}

/// The parts of each source that are not for training.
#[derive(Debug, Clone, Copy)]
pub struct HeldOut {
    /// Of all.
    pub test: f64,
    /// Of what the test leaves.
    pub val: f64,
}

impl TextReport {
    /// Describes a text in samples of `context` tokens.
    pub fn of(index: &TextIndex, corpus: &Corpus, context: Option<usize>, held_out: HeldOut) -> Self {
        Self {
            files: index.files.len(),
            first_file: index.files.first().map(|file| file.display().to_string()).unwrap_or_default(),
            tokens: index.tokens,
            vocabulary: index.vocabulary.size(),
            documents: index
                .documents
                .as_ref()
                .map(|_| DocumentsReport::of(index, corpus, context, held_out)),
        }
    }
}

impl DocumentsReport {
    fn of(index: &TextIndex, corpus: &Corpus, context: Option<usize>, held_out: HeldOut) -> Self {
        let Some(bounds) = &index.documents else { unreachable!("the text has documents") };
        let lengths: Vec<f32> = bounds.all().iter().map(|[start, end]| (end - start) as f32).collect();
        // The content of each document, and whether it is for training.
        let mut contents = Vec::with_capacity(bounds.all().len());
        for part in index.parts() {
            let documents = bounds.within(&part.tokens);
            let (rest, _) = dtrain_data::split_documents(documents, held_out.test);
            let (train, _) = dtrain_data::split_documents(rest, held_out.val);
            for (at, &[start, end]) in documents.iter().enumerate() {
                // A text of documents is in memory.
                contents.push((corpus.tokens.hash(start as usize..end as usize).ok(), at < train.len()));
            }
        }
        let known = || {
            (1..)
                .zip(&contents)
                .filter_map(|(number, (content, trains))| Some((number, (*content)?, *trains)))
        };
        let (mut all, mut of_training, mut repeated) = (HashSet::new(), HashMap::new(), 0);
        for (number, content, trains) in known() {
            repeated += usize::from(!all.insert(content));
            if trains {
                of_training.entry(content).or_insert(number);
            }
        }
        let (mut leaked, mut first_leak) = (0, None);
        for (number, content, _) in known().filter(|(.., trains)| !trains) {
            if let Some(&first) = of_training.get(&content) {
                leaked += 1;
                first_leak.get_or_insert((number, first));
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
