//! Messages as JSON.

use super::session::LONGEST_MESSAGE;
use serde::Serialize;

/// The reasons why a message is not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    #[error("the message has {bytes} bytes; the limit is {LONGEST_MESSAGE}")]
    TooLong { bytes: usize },
    #[error("the message cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

pub(super) fn encode(message: &impl Serialize) -> Result<Vec<u8>, SendError> {
    let text = serde_json::to_vec(message)?;
    match text.len() {
        bytes if bytes > LONGEST_MESSAGE => Err(SendError::TooLong { bytes }),
        _ => Ok(text),
    }
}
