#![allow(clippy::unwrap_used)]
use super::super::text_documents::NO_TARGET;
use super::super::token_lists::{TextColumn, names_with_texts};
use super::*;
use crate::tokenizer::{self, tests::tokenizer as read};

fn of_cells(columns: &[&[&str]], form: TextForm) -> Samples {
    let texts = columns.iter().map(|column| Texts::write(column.iter().copied()).unwrap());
    Samples {
        root: "/d".into(),
        set: "train".into(),
        table: None,
        sources: Vec::new(),
        lists: vec![List::new(TOKENS, ListValues::Texts(texts.collect(), form))],
        size: None,
        ignored: Default::default(),
    }
}

fn rules<'a>(texting: Texting<'a>, repeat: &'a BTreeMap<String, usize>) -> TextRules<'a> {
    TextRules { texting, repeat, ends: true }
}

fn columns(samples: &Samples, sample: usize, length: usize) -> [Vec<i64>; 4] {
    let (_, tokens) = samples.token_lists().next().unwrap();
    [TextColumn::Tokens, TextColumn::Mask, TextColumn::Targets, TextColumn::Labels].map(|column| {
        let mut out = vec![7; length];
        tokens.write_column(sample, column, &mut out);
        out
    })
}

#[test]
fn only_answers_are_learnt() {
    let samples = of_cells(&[&["ab", ""], &["cd", "e"]], TextForm::Answer);
    let none = BTreeMap::new();
    let (samples, bad) = samples.tokenized(&rules(Texting::Bytes, &none), 2).unwrap();
    assert!(bad.is_empty());
    let [a, b, c, d, no] = [97, 98, 99, 100, NO_TARGET];
    let expected = [vec![a, b, c, d, 0], vec![1, 1, 1, 1, 0], vec![no, c, d, no, no], vec![no, no, c, d, no]];
    assert_eq!(columns(&samples, 0, 5), expected);
    // The token after the cut is a target, and no input.
    assert_eq!(columns(&samples, 0, 3), [vec![a, b, c], vec![1; 3], vec![no, c, d], vec![no, no, c]]);
    let counts = samples.text_counts(3).unwrap();
    assert_eq!((counts.tokens, counts.cut, counts.without_targets, counts.mean_targets), (5, 0, 1, 1.0));
    assert_eq!(samples.text_counts(1).unwrap().cut, 1);
    assert_eq!(samples.text_lengths(3).unwrap(), [3, 1]);
}

#[test]
fn texts_and_answers_end_with_the_end_token() {
    let tokenizer = read("bytes");
    let repeat = BTreeMap::from([("<image>".to_owned(), 3)]);
    let end = i64::from(tokenizer.id().end.unwrap());
    let image = i64::from(tokenizer.number("<image>").unwrap());
    let samples = of_cells(&[&["<image>"], &["<image>x"]], TextForm::Answer);
    let (samples, _) = samples.tokenized(&rules(Texting::Tokenizer(&tokenizer), &repeat), 1).unwrap();
    let x = i64::from(tokenizer.number("x").unwrap());
    let [tokens, _, _, labels] = columns(&samples, 0, 9);
    assert_eq!(tokens, [image, image, image, image, image, image, x, end, 0]);
    assert_eq!(labels[..3], [NO_TARGET; 3]);
    assert_eq!(labels[3..8], [image, image, image, x, end]);
    let none = BTreeMap::new();
    let without = TextRules { ends: false, ..rules(Texting::Tokenizer(&tokenizer), &none) };
    let (samples, _) = of_cells(&[&["x"]], TextForm::Text).tokenized(&without, 1).unwrap();
    assert_eq!(columns(&samples, 0, 2)[0], [x, 0]);
    let error =
        of_cells(&[&["x"]], TextForm::Text).tokenized(&rules(Texting::Tokenizer(&tokenizer), &repeat), 1);
    assert!(error.unwrap_err().to_string().contains("the text has no `<image>`"));
    let wrong = BTreeMap::from([("<picture>".to_owned(), 3)]);
    let error =
        of_cells(&[&["x"]], TextForm::Text).tokenized(&rules(Texting::Tokenizer(&tokenizer), &wrong), 1);
    assert!(error.unwrap_err().to_string().contains("no token \"<picture>\""));
}

#[test]
fn chats_learn_what_the_assistant_says() {
    let tokenizer = read("bytes");
    let chat = r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": "king"}]"#;
    let none = BTreeMap::new();
    let samples = of_cells(&[&[chat]], TextForm::Chat);
    let (samples, _) = samples.tokenized(&rules(Texting::Tokenizer(&tokenizer), &none), 1).unwrap();
    let labels = columns(&samples, 0, 64)[3].clone();
    let learnt: Vec<u32> = labels.iter().filter(|label| **label >= 0).map(|label| *label as u32).collect();
    assert_eq!(learnt, tokenizer.encode("king<|im_end|>\n", false).unwrap());
}

#[test]
fn tokens_of_white_space_are_learnt() {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(tokenizer::tests::reference("bytes")).unwrap().flatten() {
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let path = folder.path().join(tokenizer::FILE);
    let text =
        std::fs::read_to_string(&path).unwrap().replace(r#""trim_offsets":false"#, r#""trim_offsets":true"#);
    std::fs::write(&path, text).unwrap();
    let trims = TextTokenizer::read(&path).unwrap();
    let said = "a\n\n\n  king";
    assert!(trims.encode_with_places(said).unwrap().iter().any(|(_, place)| place.is_empty()));
    let chat = serde_json::json!([{"role": "user", "content": "a  \n\n\n b"}, {"role": "assistant", "content": said}]);
    let none = BTreeMap::new();
    let samples = of_cells(&[&[&chat.to_string()]], TextForm::Chat);
    let (samples, _) = samples.tokenized(&rules(Texting::Tokenizer(&trims), &none), 1).unwrap();
    let labels = columns(&samples, 0, 64)[3].clone();
    let learnt: Vec<u32> = labels.iter().filter(|label| **label >= 0).map(|label| *label as u32).collect();
    assert_eq!(learnt, trims.encode(&format!("{said}<|im_end|>\n"), false).unwrap());
}

#[test]
fn an_answer_follows_its_prompt_without_the_end_of_a_text() {
    let words = read("words");
    let [begin, end] = ["[CLS]", "[SEP]"].map(|name| words.number(name).unwrap());
    let [the, king] = ["the", "king"].map(|word| words.encode(word, false).unwrap());
    let none = BTreeMap::new();
    let samples = of_cells(&[&["the", ""], &["king", "king"]], TextForm::Answer);
    let (samples, _) = samples.tokenized(&rules(Texting::Tokenizer(&words), &none), 1).unwrap();
    for (sample, prompt) in [(0, &the[..]), (1, &[])] {
        let expected: Vec<i64> = [&[begin], prompt, &king].concat().into_iter().map(i64::from).collect();
        assert_eq!(columns(&samples, sample, expected.len())[0], expected);
    }
    assert!(words.encode("the", true).unwrap().ends_with(&[end]));
}

#[test]
fn unusable_texts_are_left_out_or_an_error() {
    let none = BTreeMap::new();
    let many: Vec<&str> = (0..200).map(|at| if at == 7 { " " } else { "x" }).collect();
    let (samples, bad) =
        of_cells(&[&many], TextForm::Text).tokenized(&rules(Texting::Bytes, &none), 3).unwrap();
    assert_eq!((samples.count(), bad.len(), bad[0].index), (199, 1, 7));
    assert!(bad[0].reason.contains("the field `tokens`: the text is empty"), "{}", bad[0].reason);
    let tokenizer = read("bytes");
    for (columns, form, words) in [
        (&[&["a"][..], &[""]][..], TextForm::Answer, "the answer is empty"),
        (&[&["nonsense"]], TextForm::Chat, "is no JSON"),
        (&[&["[]"]], TextForm::Chat, "no message of the assistant"),
        (&[&[r#"[{"role": "user"}]"#]], TextForm::Chat, "lacks"),
    ] {
        let samples = of_cells(columns, form);
        let error =
            samples.tokenized(&rules(Texting::Tokenizer(&tokenizer), &none), 1).unwrap_err().to_string();
        assert!(error.contains("1 of 1 texts cannot be used") && error.contains(words), "{error}");
    }
    let error = of_cells(&[&["[]"]], TextForm::Chat).tokenized(&rules(Texting::Bytes, &none), 1).unwrap_err();
    assert!(error.to_string().contains("needs the template of a tokenizer"), "{error}");
}

#[test]
fn names_depend_on_the_target() {
    assert_eq!(
        names_with_texts(&[("image", false), ("tokens", true)]),
        ["image", "tokens", "attention_mask", "targets", "labels"]
    );
    assert_eq!(
        names_with_texts(&[("label", false), ("tokens", true)]),
        ["label", "tokens", "attention_mask"]
    );
    assert_eq!(names_with_texts(&[("question", true)]), ["question", "question_mask"]);
}
