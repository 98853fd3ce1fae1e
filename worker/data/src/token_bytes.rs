//! The bytes of text that each token stands for.

use serde_json::Value;

use super::tokenizer::{FILE, TokenizerFiles};
use super::vocabulary::Vocabulary;

/// Returns the number of bytes of each token, by number; special tokens have none. The error says why it is unknown.
///
/// # Errors
/// Token files, and tokenizers whose tokens are not all bytes of a text.
pub fn token_bytes(vocabulary: &Vocabulary, tokenizer: Option<&TokenizerFiles>) -> Result<Vec<f64>, String> {
    match vocabulary {
        Vocabulary::Chars(characters) => Ok(characters.chars().map(|one| one.len_utf8() as f64).collect()),
        Vocabulary::Bytes => Ok(vec![1.0; 256]),
        Vocabulary::Numbers(_) => {
            Err("the bytes of the tokens of a token file are not known without their tokenizer; set data.tokenizer to it".to_owned())
        }
        Vocabulary::Tokenizer(id) => {
            let file = tokenizer.and_then(|files| files.get(FILE)).unwrap_or_default();
            let file: Value = serde_json::from_slice(file).map_err(|error| error.to_string())?;
            of_file(&file, id.size)
        }
    }
}

fn of_file(file: &Value, size: usize) -> Result<Vec<f64>, String> {
    let length = length_by(file).ok_or(
        "the bytes of the tokens are not known: the tokenizer loses some, such as spaces; remove it, or use one by bytes or by pieces",
    )?;
    let mut all = vec![0.0; size];
    let mut set = |number: Option<u64>, bytes: usize| {
        if let Some(bytes_of) = number.and_then(|number| all.get_mut(number as usize)) {
            *bytes_of = bytes as f64;
        }
    };
    match &file["model"]["vocab"] {
        Value::Object(tokens) => tokens.iter().for_each(|(text, number)| set(number.as_u64(), length(text))),
        Value::Array(tokens) => {
            let text = |entry: &Value| entry[0].as_str().map_or(0, length);
            tokens.iter().enumerate().for_each(|(number, entry)| set(Some(number as u64), text(entry)));
        }
        _ => return Err("tokenizer.json has no vocabulary".to_owned()),
    }
    for token in file["added_tokens"].as_array().into_iter().flatten() {
        let is_special = token["special"].as_bool() == Some(true);
        let text = token["content"].as_str().unwrap_or_default();
        set(token["id"].as_u64(), if is_special { 0 } else { text.len() });
    }
    Ok(all)
}

/// Returns how the bytes of a token are counted; None if a text cannot be made of tokens again.
fn length_by(file: &Value) -> Option<fn(&str) -> usize> {
    let mut decoders = vec![&file["decoder"]];
    decoders.extend(file["decoder"]["decoders"].as_array().into_iter().flatten());
    let has = |kind: &str| decoders.iter().any(|decoder| decoder["type"] == kind);
    let replaces = decoders
        .iter()
        .any(|decoder| decoder["type"] == "Replace" && decoder["pattern"]["String"] == "\u{2581}");
    if has("ByteLevel") {
        // Each byte is one character.
        return Some(|text| text.chars().count());
    }
    (has("Metaspace") || replaces).then_some(|text| {
        let is_byte = text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
        // The mark of a space has three bytes, and a space one.
        if is_byte {
            1
        } else {
            text.chars().map(|one| if one == '\u{2581}' { 1 } else { one.len_utf8() }).sum()
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn tokens_have_the_bytes_of_their_text() {
        assert_eq!(token_bytes(&Vocabulary::Chars("aé€".to_owned()), None).unwrap(), [1.0, 2.0, 3.0]);
        assert_eq!(token_bytes(&Vocabulary::Bytes, None).unwrap(), [1.0; 256]);
        assert!(token_bytes(&Vocabulary::Numbers(3), None).unwrap_err().contains("token file"));
        let special = json!([{ "id": 2, "content": "<end>", "special": true }]);
        let by_bytes = json!({ "decoder": { "type": "ByteLevel" }, "added_tokens": special,
            "model": { "vocab": { "\u{120}the": 0, "\u{c3}\u{a9}": 1, "<end>": 2 } } });
        assert_eq!(of_file(&by_bytes, 3).unwrap(), [4.0, 2.0, 0.0]);
        let of_pieces = json!({ "decoder": { "type": "Sequence", "decoders": [{ "type": "Metaspace" }] },
            "model": { "vocab": [["\u{2581}thé", -1.0], ["<0xE2>", -2.0]] } });
        assert_eq!(of_file(&of_pieces, 2).unwrap(), [5.0, 1.0]);
        assert!(
            of_file(&json!({ "decoder": { "type": "WordPiece" } }), 1).unwrap_err().contains("loses some")
        );
    }
}
