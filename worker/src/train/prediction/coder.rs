//! Between texts and tokens, by the vocabulary of a checkpoint.

use std::path::Path;

use super::Prediction;
use super::parts::failed;
use crate::checkpoint::broadcast_bytes;
use crate::data::{TextTokenizer, TokenizerFiles, Vocabulary, tokenizer};
use crate::setup::error::{Result, WorkerError};
use crate::setup::predict_error::PredictError;
use crate::tasks::TaskError;

/// The vocabulary, and its tokenizer.
pub(super) struct Coder {
    vocabulary: Vocabulary,
    tokenizer: Option<TextTokenizer>,
    /// Whether tokens that begin a text go before a prompt.
    begins: bool,
}

impl Coder {
    /// Reads the tokenizer's file of the checkpoint for all ranks. Every rank calls this.
    pub(super) fn of(prediction: &Prediction<'_>, vocabulary: &Vocabulary) -> Result<Self> {
        let path = prediction.opening.checkpoint.join(tokenizer::FILE);
        let tokenizer = match vocabulary {
            Vocabulary::Tokenizer(id) => {
                let tokenizer = prediction.tokenizer(&path)?;
                if tokenizer.id().hash != id.hash {
                    return Err(PredictError::Tokenizer(path).into());
                }
                Some(tokenizer)
            }
            Vocabulary::Chars(_) | Vocabulary::Bytes | Vocabulary::Numbers(_) => None,
        };
        // Pieces of a long text have none.
        Ok(Self { vocabulary: vocabulary.clone(), tokenizer, begins: !prediction.recipe.is_text() })
    }

    /// Returns the number of tokens.
    pub(super) fn size(&self) -> usize {
        self.vocabulary.size()
    }

    /// Returns the token that ends a text.
    pub(super) fn end(&self) -> Option<i64> {
        match &self.vocabulary {
            Vocabulary::Tokenizer(id) => id.end.map(i64::from),
            Vocabulary::Chars(_) | Vocabulary::Bytes | Vocabulary::Numbers(_) => None,
        }
    }

    /// Returns the tokens of a prompt, or why there are none.
    pub(super) fn encode(&self, prompt: &str) -> std::result::Result<Vec<i64>, String> {
        let tokens = match &self.tokenizer {
            Some(tokenizer) if self.begins => tokenizer.prompt(prompt).map_err(|error| error.to_string())?,
            Some(tokenizer) => tokenizer.encode(prompt, false).map_err(|error| error.to_string())?,
            None => {
                let tokens = self.vocabulary.encode(prompt).map_err(|error| error.to_string())?;
                let mut all = vec![0; tokens.count()];
                tokens.copy_all(&mut all).map_err(|error| error.to_string())?;
                return filled(all);
            }
        };
        filled(tokens.into_iter().map(i64::from).collect())
    }

    /// Returns the text of the tokens after the first `prompt` ones.
    pub(super) fn decode(&self, tokens: &[i64], prompt: usize) -> Result<String> {
        let tokens: Vec<u32> = tokens.iter().map(|&token| token as u32).collect();
        let Some(tokenizer) = &self.tokenizer else {
            return Ok(self.vocabulary.decode(tokens[prompt..].iter().copied()));
        };
        let decode = |tokens: &[u32]| tokenizer.decode(tokens).map_err(TaskError::from);
        // Alone, the first of them may lose its space.
        let (before, whole) = (decode(&tokens[..prompt])?, decode(&tokens)?);
        match whole.strip_prefix(&before) {
            Some(after) => Ok(after.to_owned()),
            None => Ok(decode(&tokens[prompt..])?),
        }
    }
}

fn filled(tokens: Vec<i64>) -> std::result::Result<Vec<i64>, String> {
    match tokens.is_empty() {
        true => Err("the prompt is empty; write at least one token".to_owned()),
        false => Ok(tokens),
    }
}

impl Prediction<'_> {
    /// Reads a tokenizer on rank 0, and sends it to the others.
    fn tokenizer(&self, path: &Path) -> Result<TextTokenizer> {
        let own = (self.env.rank == 0).then(|| std::fs::read(path));
        let message = own.as_ref().and_then(|read| read.as_ref().ok()).map_or(&[][..], Vec::as_slice);
        let sent = broadcast_bytes(message, self.ranks).map_err(WorkerError::Evaluate)?;
        match own {
            Some(Err(error)) => return Err(failed(path)(error).into()),
            None if sent.is_empty() => return Err(PredictError::OfRankZero.into()),
            _ => {}
        }
        let files = TokenizerFiles::alone(sent).map_err(TaskError::from)?;
        Ok(TextTokenizer::load(path, files).map_err(TaskError::from)?)
    }
}
