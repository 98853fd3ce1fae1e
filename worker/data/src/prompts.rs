//! Prompts: the tokens before what a language model writes, as in its training.

use std::collections::BTreeMap;

use minijinja::Value;

use super::chat::ChatTemplate;
use super::error::DataError;
use super::sample_texts::{Texting, repeat, repeated};
use super::tokenizer::TextTokenizer;

/// The kinds of prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptForm {
    /// A piece of a long text.
    Piece,
    /// The begin of a text.
    Begin,
    /// Messages of a chat, as JSON. An answer at its end is left out.
    Chat,
}

/// A tokenizer of prompts.
pub struct Prompts {
    tokenizer: TextTokenizer,
    form: PromptForm,
    chat: Option<ChatTemplate>,
    repeat: BTreeMap<String, usize>,
    repeated: BTreeMap<u32, usize>,
}

impl Prompts {
    /// Makes a tokenizer of prompts; `repeat` is `data.repeat`.
    ///
    /// # Errors
    /// If chats have no template, or a token of `repeat` is unknown.
    pub fn new(
        tokenizer: TextTokenizer,
        form: PromptForm,
        repeat: BTreeMap<String, usize>,
    ) -> Result<Self, DataError> {
        let chat = match form {
            PromptForm::Chat => Some(ChatTemplate::of(&tokenizer)?),
            PromptForm::Piece | PromptForm::Begin => None,
        };
        let repeated = repeated(&Texting::Tokenizer(&tokenizer), &repeat)?;
        Ok(Self { tokenizer, form, chat, repeat, repeated })
    }

    /// Returns the tokenizer.
    pub fn tokenizer(&self) -> &TextTokenizer {
        &self.tokenizer
    }

    /// Returns the tokens of a prompt, or the reason why it cannot be used.
    pub fn encode(&self, prompt: &str) -> Result<Result<Vec<u32>, String>, DataError> {
        if prompt.trim().is_empty() {
            // Tokens that begin a text would stand for it.
            return Ok(Err("the prompt is empty; write at least one token".to_owned()));
        }
        let tokens = match (self.form, &self.chat) {
            (PromptForm::Piece, _) => self.tokenizer.encode(prompt, false)?,
            (PromptForm::Chat, Some(chat)) => match of_chat(prompt, chat) {
                // The template writes the tokens that begin a text.
                Ok(text) => self.tokenizer.encode(&text, false)?,
                Err(reason) => return Ok(Err(reason)),
            },
            (PromptForm::Begin | PromptForm::Chat, _) => self.tokenizer.prompt(prompt)?,
        };
        Ok(repeat(tokens, &self.repeated, &self.repeat))
    }
}

/// Returns a text as the only message of a chat.
pub fn chat_of(text: &str) -> String {
    serde_json::json!([{"role": "user", "content": text}]).to_string()
}

/// Returns the text of a chat up to what the assistant writes next.
fn of_chat(messages: &str, chat: &ChatTemplate) -> Result<String, String> {
    let messages = serde_json::from_str::<Value>(messages).map_err(|error| {
        format!("the chat is no JSON ({error}); write a list such as [{{\"role\": \"user\", \"content\": \"...\"}}, ...]")
    })?;
    chat.prompt(&messages)
}

#[cfg(test)]
mod tests;
