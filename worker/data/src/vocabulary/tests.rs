#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

fn numbers(tokens: &Tokens) -> Vec<u32> {
    let mut out = vec![0; tokens.count()];
    tokens.copy_to(0, &mut out).unwrap();
    out.into_iter().map(|token| u32::try_from(token).unwrap()).collect()
}

#[test]
fn characters_are_numbered_in_their_order() {
    let vocabulary = Vocabulary::of(Tokenizer::Chars, "hello, würld");
    assert_eq!(vocabulary, Vocabulary::Chars(" ,dehlorwü".to_owned()));
    assert_eq!(vocabulary.size(), 10);
    assert_eq!(numbers(&vocabulary.encode("hü d").unwrap()), [4, 9, 0, 2]);
    let json = serde_json::to_string(&vocabulary).unwrap();
    assert_eq!(json, "{\"chars\":\" ,dehlorwü\"}");
    assert_eq!(serde_json::from_str::<Vocabulary>(&json).unwrap(), vocabulary);
    assert_eq!(serde_json::to_string(&Vocabulary::Bytes).unwrap(), "\"bytes\"");
}

#[test]
fn bytes_are_themselves() {
    let vocabulary = Vocabulary::of(Tokenizer::Bytes, "whatever");
    assert_eq!(vocabulary.size(), 256);
    assert_eq!(numbers(&vocabulary.encode("aü").unwrap()), [97, 195, 188]);
    assert_eq!(vocabulary.decode([97, 195, 188, 195, 300]), "aü\u{fffd}\u{fffd}");
}

#[test]
fn an_unknown_character_is_named_with_its_position() {
    let vocabulary = Vocabulary::of(Tokenizer::Chars, "abü");
    for (text, start) in [
        ("abc", "the text has the character 'c' (character 2), which the vocabulary of 3"),
        ("aé", "the text has the character 'é' (character 1)"),
    ] {
        let error = vocabulary.encode(text).unwrap_err().to_string();
        assert!(error.starts_with(start), "{error}");
    }
    assert_eq!(vocabulary.decode([0, 7, 2]), "a\u{fffd}ü");
}

#[test]
fn many_characters_take_wider_tokens() {
    let all: String = (0..=0x2_0000u32).filter_map(char::from_u32).collect();
    let vocabulary = Vocabulary::of(Tokenizer::Chars, &all);
    let tokens = vocabulary.encode(&all).unwrap();
    assert!(matches!(tokens, Tokens::U32(_)) && tokens.count() > 0);
    assert_eq!(numbers(&tokens), (0..tokens.count() as u32).collect::<Vec<_>>());
}

proptest! {
    #[test]
    fn a_text_is_split_where_ascii_begins_and_ends(text in "[a-c]{0,80}[é漢🙂]{0,9}[a-cé]{0,40}") {
        let (ascii, others, rest) = split(&text);
        prop_assert_eq!([ascii, others, rest].concat(), &text[..]);
        prop_assert!(ascii.is_ascii() && others.chars().all(|character| !character.is_ascii()));
        prop_assert!(rest.is_empty() || rest.starts_with(|character: char| character.is_ascii()));
        let vocabulary = Vocabulary::of(Tokenizer::Chars, &text);
        let tokens = numbers(&vocabulary.encode(&text).unwrap());
        prop_assert_eq!(tokens.len(), text.chars().count());
        prop_assert_eq!(vocabulary.decode(tokens), text);
    }

    #[test]
    fn text_survives_the_journey(text in "\\PC{0,60}", bytes: bool) {
        let tokenizer = if bytes { Tokenizer::Bytes } else { Tokenizer::Chars };
        let vocabulary = Vocabulary::of(tokenizer, &text);
        let tokens = numbers(&vocabulary.encode(&text).unwrap());
        prop_assert!(tokens.iter().all(|&token| (token as usize) < vocabulary.size()));
        prop_assert_eq!(vocabulary.decode(tokens), text);
    }
}
