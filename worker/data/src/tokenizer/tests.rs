#![allow(clippy::unwrap_used)]
use std::fs;

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Returns a folder of tests/parity/reference/tokens.
pub(crate) fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/parity/reference/tokens").join(name)
}

pub(crate) fn expected() -> Value {
    serde_json::from_slice(&fs::read(reference("tokens.json")).unwrap()).unwrap()
}

pub(crate) fn tokenizer(name: &str) -> TextTokenizer {
    TextTokenizer::read(&reference(name).join(FILE)).unwrap()
}

/// Writes a tokenizer and reads it.
fn read_bytes(bytes: &[u8]) -> Result<TextTokenizer, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE);
    fs::write(&path, bytes).unwrap();
    TextTokenizer::read(&path).map_err(|error| error.to_string())
}

#[test]
fn tokens_are_those_of_python() {
    let expected = expected();
    let texts: Vec<String> = serde_json::from_value(expected["texts"].clone()).unwrap();
    for name in ["bytes", "words", "pieces"] {
        let (tokenizer, wanted) = (tokenizer(name), &expected["tokenizers"][name]);
        assert_eq!(json!(tokenizer.id().size), wanted["size"], "{name}");
        for (at, text) in texts.iter().enumerate() {
            let plain = tokenizer.encode(text, false).unwrap();
            assert_eq!(json!(plain), wanted["plain"][at], "{name}: {text:?}");
            assert_eq!(
                json!(tokenizer.encode(text, true).unwrap()),
                wanted["special"][at],
                "{name}: {text:?}"
            );
            assert_eq!(json!(tokenizer.decode(&plain).unwrap()), wanted["decoded"][at], "{name}: {text:?}");
            let places = tokenizer.encode_with_places(text).unwrap();
            assert_eq!(places.iter().map(|(token, _)| *token).collect::<Vec<_>>(), plain, "{name}: {text:?}");
        }
    }
}

#[test]
fn the_end_token_is_the_stated_or_a_usual_one() {
    let bytes = tokenizer("bytes");
    assert_eq!(bytes.id().end, bytes.number("<|endoftext|>"));
    assert_eq!(tokenizer("words").id().end, None);
    assert_eq!(tokenizer("pieces").id().end, tokenizer("pieces").number("</s>"));
    // Another stated one.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE);
    fs::copy(reference("bytes").join(FILE), &path).unwrap();
    fs::write(folder.path().join(CONFIG), r#"{"eos_token": {"content": "<|im_end|>"}}"#).unwrap();
    let other = TextTokenizer::read(&path).unwrap();
    assert_eq!((other.id().end, &other.id().hash), (other.number("<|im_end|>"), &bytes.id().hash));
    assert_eq!(other.files().all().map(|(name, _)| name).collect::<Vec<_>>(), [FILE, CONFIG]);
    fs::write(folder.path().join(CONFIG), "{").unwrap();
    let error = TextTokenizer::read(&path).map(drop).unwrap_err().to_string();
    assert!(error.contains(CONFIG) && error.contains("copy it again"), "{error}");
}

#[test]
fn other_files_are_named() {
    for (bytes, words) in [
        (&b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 3\n"[..], "Git LFS"),
        (b"{\"a\": 1}", "name a tokenizer.json"),
        (b"", "name a tokenizer.json"),
        (b"\xff\xfe\x00", "name a tokenizer.json"),
        (br#"{"model": {"type": "BPE", "vocab": {}, "merges": []}}"#, "it has no tokens"),
    ] {
        let error = read_bytes(bytes).map(drop).unwrap_err();
        assert!(error.contains(words) && error.contains("tokenizer.json"), "{error}");
    }
    // The library panics on a file that ends in its decoder.
    let words = fs::read_to_string(reference("words").join(FILE)).unwrap();
    let until = words.find(r#""decoder""#).unwrap() + r#""decoder":"#.len();
    let error = read_bytes(&words.as_bytes()[..until]).map(drop).unwrap_err();
    assert!(error.contains("it lacks a part; name a tokenizer.json"), "{error}");
    let error = TextTokenizer::read(Path::new("/nowhere/tokenizer.json")).map(drop).unwrap_err().to_string();
    assert!(error.contains("set data.tokenizer to a tokenizer.json"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// A changed file is an error or a tokenizer, never a panic.
    #[test]
    fn changed_files_never_panic(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>(), cuts in any::<bool>()) {
        let mut bytes = fs::read(reference("words").join(FILE)).unwrap();
        let length = bytes.len();
        bytes[at.index(length)] = byte;
        if cuts {
            bytes.truncate(cut.index(length));
        }
        if let Ok(tokenizer) = read_bytes(&bytes)
            && let Ok(tokens) = tokenizer.encode("The king sees the river, doesn't he?", true)
        {
            let _ = tokenizer.decode(&tokens);
        }
    }
}
