//! Between texts and tokens, by the vocabulary of a checkpoint.

use std::path::Path;

use dtrain_recipe::{ColumnKind, Recipe};

use crate::data::{PromptForm, Prompts, TextTokenizer, TokenizerFiles, Vocabulary, tokenizer};
use crate::setup::error::Result;
use crate::setup::predict_error::PredictError;
use crate::tasks::TaskError;
use crate::tasks::predict::columns;

/// The vocabulary, and its tokenizer.
pub(super) struct Coder {
    vocabulary: Vocabulary,
    prompts: Option<Prompts>,
}

/// Reads the tokenizer of a checkpoint; None if its vocabulary has no tokenizer.
pub(super) fn of_checkpoint(
    checkpoint: &Path,
    vocabulary: Option<&Vocabulary>,
) -> Result<Option<TextTokenizer>> {
    let Some(Vocabulary::Tokenizer(id)) = vocabulary else { return Ok(None) };
    let path = checkpoint.join(tokenizer::FILE);
    let tokenizer = TextTokenizer::read(&path).map_err(TaskError::from)?;
    match tokenizer.id().hash == id.hash {
        true => Ok(Some(tokenizer)),
        false => Err(PredictError::Tokenizer(path).into()),
    }
}

/// Returns what the prompts of the recipe's model are.
pub(super) fn form(recipe: &Recipe) -> PromptForm {
    let is_chat = columns(recipe).iter().any(|field| field.kind == ColumnKind::Chat);
    match is_chat {
        // Pieces of a long text have no begin.
        _ if recipe.is_text() => PromptForm::Piece,
        true => PromptForm::Chat,
        false => PromptForm::Begin,
    }
}

impl Coder {
    /// Loads the files of the tokenizer that rank 0 has read.
    pub(super) fn new(
        recipe: &Recipe,
        vocabulary: &Vocabulary,
        files: Option<&TokenizerFiles>,
    ) -> Result<Self> {
        let load = |files: &TokenizerFiles| {
            let tokenizer = TextTokenizer::load(Path::new(tokenizer::FILE), files.clone())?;
            Prompts::new(tokenizer, form(recipe), recipe.data.repeat.clone())
        };
        let prompts = files.map(load).transpose().map_err(TaskError::from)?;
        Ok(Self { vocabulary: vocabulary.clone(), prompts })
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

    /// Returns the tokens of a prompt, or why it has no tokens.
    pub(super) fn encode(&self, prompt: &str) -> std::result::Result<Vec<i64>, String> {
        let Some(prompts) = &self.prompts else {
            let tokens = self.vocabulary.encode(prompt).map_err(|error| error.to_string())?;
            let mut all = vec![0; tokens.count()];
            tokens.copy_all(&mut all).map_err(|error| error.to_string())?;
            return filled(all);
        };
        let tokens = prompts.encode(prompt).map_err(|error| error.to_string())??;
        filled(tokens.into_iter().map(i64::from).collect())
    }

    /// Returns the text of the tokens after the first `prompt` ones.
    pub(super) fn decode(&self, tokens: &[i64], prompt: usize) -> Result<String> {
        let tokens: Vec<u32> = tokens.iter().map(|&token| token as u32).collect();
        let Some(tokenizer) = self.prompts.as_ref().map(Prompts::tokenizer) else {
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
