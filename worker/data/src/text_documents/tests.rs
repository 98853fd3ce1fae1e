#![allow(clippy::unwrap_used)]

use dtrain_recipe::{Documents, Tokenizer};
use proptest::prelude::*;

use super::super::dataset::load_one;
use super::super::documents::DocumentFinder;
use super::*;

/// Makes a set of the lines of a text; a token is a byte.
fn lines(
    text: &str,
    split: Split,
    test_fraction: f64,
    context: usize,
    is_packed: bool,
) -> Result<TextDocuments, DataError> {
    let mut finder = DocumentFinder::new(Documents::Lines, Tokenizer::Bytes).unwrap();
    finder.add(Some(0), text);
    let corpus = Corpus::new(Tokenizer::Bytes, text).unwrap();
    TextDocuments::new(corpus, finder.finish().unwrap().all(), split, test_fraction, context, is_packed)
}

/// Returns tokens, targets, documents and positions of a sample; tokens as text, with `-` for no token or target.
fn load(set: &TextDocuments, index: usize) -> [String; 4] {
    let columns = load_one(set, index, None).unwrap();
    let [tokens, targets, documents, positions] = &columns[..] else { panic!("{columns:?}") };
    let text = |column: &Column, none: i64| -> String {
        let letter = |&value: &i64| if value == none { '-' } else { value as u8 as char };
        column.as_i64().unwrap().iter().map(letter).collect()
    };
    let digits = |column: &Column| column.as_i64().unwrap().iter().map(i64::to_string).collect();
    [text(tokens, 0), text(targets, NO_TARGET), digits(documents), digits(positions)]
}

#[test]
fn a_sample_is_a_document_or_a_piece_of_a_long_one() {
    let set = lines("abc\nx\n\nabcd\nabcde\nabcdefghi\nzz\n", Split::Train, 0.1, 4, false).unwrap();
    let samples: Vec<_> = (0..set.len()).map(|index| load(&set, index)).collect();
    assert_eq!(
        samples,
        [
            ["abc-", "bc--", "1110", "0120"],
            ["abcd", "bcd-", "1111", "0123"],
            ["abcd", "bcde", "1111", "0123"],
            ["abcd", "bcde", "1111", "0123"],
            ["efgh", "fghi", "1111", "0123"],
        ]
    );
    assert_eq!(set.lengths(), [3, 4, 4, 4, 4]);
    assert_eq!(set.mean_targets(), (2.0 + 3.0 + 4.0 + 4.0 + 4.0) / 5.0);
    assert_eq!(set.describe(0), "tokens 0 to 2 of the text (training)");
    let test = lines("abc\nx\n\nabcd\nabcde\nabcdefghi\nzz\n", Split::Test, 0.1, 4, false).unwrap();
    assert_eq!((test.len(), load(&test, 0)), (1, ["zz--", "z---", "1100", "0100"].map(String::from)));
}

#[test]
fn packed_documents_are_numbered_and_begin_at_position_0() {
    let set = lines("abc\nde\nfghij\nkl\nzz\n", Split::Train, 0.1, 8, true).unwrap();
    let samples: Vec<_> = (0..set.len()).map(|index| load(&set, index)).collect();
    assert_eq!(
        samples,
        [["abcfghij", "bc-ghij-", "11122222", "01201234"], ["dekl----", "e-l-----", "11220000", "01010000"],]
    );
    assert_eq!((set.lengths(), set.mean_targets()), (vec![8, 4], 4.0));
    assert_eq!(set.describe(1), "tokens 4 to 5 of the text and 1 more documents (training)");
}

#[test]
fn parts_without_documents_name_the_settings() {
    let said = |text: &str, split| lines(text, split, 0.5, 4, false).unwrap_err().to_string();
    for (text, split, part, count) in [
        ("ab\nx\n", Split::Train, "training", 1),
        ("a\n\nx\n", Split::Train, "training", 0),
        ("a\n\nx\n", Split::Test, "test", 0),
        ("a\n\nx\n", Split::Val, "validation", 0),
    ] {
        let said = said(text, split);
        let start =
            format!("the {part} part of the text has none of its {count} documents of two or more tokens;");
        let setting = if split == Split::Val { "data.val" } else { "data.test_fraction" };
        assert!(said.starts_with(&start) && said.contains(setting), "{said}");
    }
}

proptest! {
    /// Every token of a document but its first is predicted once, from the token before it in the same document.
    #[test]
    fn pieces_lose_no_token_and_cross_no_border(
        text in "([a-e]{0,14}\n){4,20}", context in 1usize..9, fraction in 0.1f64..0.9, is_packed: bool,
    ) {
        let part = |split| lines(&text, split, fraction, context, is_packed);
        let (Ok(train), Ok(test)) = (part(Split::Train), part(Split::Test)) else { return Ok(()) };
        let pairs = |set: &TextDocuments| {
            let mut pairs = Vec::new();
            for index in 0..set.len() {
                let columns = load_one(set, index, None).unwrap();
                let [tokens, targets, documents, positions] = &columns[..] else { panic!("{columns:?}") };
                let [tokens, targets, documents, positions] = [tokens, targets, documents, positions].map(|it| it.as_i64().unwrap());
                prop_assert_eq!(documents.iter().filter(|&&number| number > 0).count(), set.lengths()[index] as usize);
                for at in 0..context {
                    let is_first = at == 0 || documents[at] != documents[at - 1];
                    let position = if is_first || documents[at] == 0 { 0 } else { positions[at - 1] + 1 };
                    prop_assert_eq!(positions[at], position);
                    if targets[at] != NO_TARGET {
                        pairs.push([tokens[at] as u8, targets[at] as u8]);
                        let next = (at + 1 < context).then(|| (documents[at + 1], tokens[at + 1]));
                        prop_assert!(next.is_none_or(|(document, token)| document != documents[at] || token == targets[at]));
                    }
                }
            }
            Ok(pairs)
        };
        let lines: Vec<&[u8]> = text.as_bytes().split(|&byte| byte == b'\n').filter(|line| line.len() > 1).collect();
        let tests = ((lines.len() as f64 * fraction).round() as usize).max(1);
        let (first, last) = lines.split_at(lines.len() - tests);
        for (set, lines) in [(train, first), (test, last)] {
            let mut found = pairs(&set)?;
            let targets: Vec<[u8; 2]> = lines.iter().flat_map(|line| line.windows(2).map(|pair| [pair[0], pair[1]])).collect();
            prop_assert!((set.mean_targets() * set.len() as f64 - targets.len() as f64).abs() < 1e-9);
            if is_packed {
                found.sort_unstable();
                let mut targets = targets;
                targets.sort_unstable();
                prop_assert_eq!(found, targets);
            } else {
                prop_assert_eq!(found, targets);
            }
        }
    }
}
