#![allow(clippy::unwrap_used)]

use dtrain_test_kit::programs::test_data;

use super::*;
use crate::tests::images::put;

fn only(path: &Path) -> TextRoot<'_> {
    TextRoot { path, weight: None }
}

fn scan(root: &Path) -> Result<(TextIndex, Corpus), DataError> {
    let index = TextIndex::scan(&[only(root)], Tokenizer::Chars, Documents::None)?;
    let corpus = index.load()?;
    assert_eq!(index.tokens, corpus.tokens.count() as u64);
    Ok((index, corpus))
}

fn text(corpus: &Corpus) -> String {
    let mut out = vec![0; corpus.tokens.count()];
    corpus.tokens.copy_to(0, &mut out).unwrap();
    corpus.vocabulary.decode(out.into_iter().map(|token| token as u32))
}

#[test]
fn a_file_or_all_texts_of_a_folder_are_read() {
    let root = tempfile::tempdir().unwrap();
    for (name, text) in
        [("b.txt", "two"), ("a.TXT", "one\n"), ("c.md", "no"), (".d.txt", "no"), ("d.txt", "three\n")]
    {
        put(root.path().join(name), text.as_bytes());
    }
    let (index, corpus) = scan(root.path()).unwrap();
    assert_eq!(text(&corpus), "one\ntwo\nthree\n");
    assert_eq!((index.files.len(), index.tokens, index.vocabulary.size()), (3, 14, 8));
    assert_eq!(text(&scan(&root.path().join("b.txt")).unwrap().1), "two");
    assert_eq!(text(&scan(&root.path().join("c.md")).unwrap().1), "no", "a file is read whatever its name");
}

#[test]
fn other_ranks_read_the_same_text_or_fail() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("x.txt");
    put(&file, "grüße".as_bytes());
    let (index, corpus) = scan(&file).unwrap();
    let bytes = serde_json::to_vec(&index).unwrap();
    let sent: TextIndex = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(sent, index);
    assert!(Arc::ptr_eq(&sent.load().unwrap().tokens, &corpus.tokens), "it is read once");
    let tokens = (*corpus.tokens).clone();
    drop(corpus);
    assert_eq!(*sent.load().unwrap().tokens, tokens);
    put(&file, "grüsse".as_bytes());
    let error = sent.load().unwrap_err().to_string();
    assert!(error.contains("differs from the text of rank 0"), "{error}");
}

#[test]
fn files_that_are_not_texts_are_errors() {
    let root = tempfile::tempdir().unwrap();
    let error = |path: &Path| scan(path).unwrap_err().to_string();
    let said = error(&root.path().join("nothing.txt"));
    assert!(said.contains("nothing.txt: No such file") && said.contains("set data.root"), "{said}");
    let said = error(root.path());
    assert!(said.contains(" has no .txt files; "), "{said}");
    put(root.path().join("a.txt"), b"");
    let said = error(root.path());
    assert!(said.contains("a.txt is empty"), "{said}");
    put(root.path().join("a.txt"), b"good\xff");
    let said = error(root.path());
    assert!(said.contains("a.txt is not UTF-8 from byte 4 on; convert it"), "{said}");
    for start in ["[Akt 1] ", "{", "<!-- ", "<?xml "] {
        put(root.path().join("a.txt"), &[start.as_bytes(), b"\xe4"].concat());
        let said = error(root.path());
        assert!(said.contains("`iconv -f WINDOWS-1252"), "{start}: {said}");
    }
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_text() {
    let root = tempfile::tempdir().unwrap();
    put(root.path().join("a.txt"), "\u{feff}one\n".as_bytes());
    put(root.path().join("b.txt"), "\u{feff}two \u{feff}".as_bytes());
    let (index, corpus) = scan(root.path()).unwrap();
    assert_eq!(text(&corpus), "one\ntwo \u{feff}", "only at the start of a file");
    assert_eq!(index.load().unwrap().tokens, corpus.tokens);
    // A second mark is part of it, as a text of a run by an earlier build needs it.
    put(root.path().join("b.txt"), "\u{feff}\u{feff}two".as_bytes());
    assert_eq!(text(&scan(root.path()).unwrap().1), "one\n\u{feff}two");
    put(root.path().join("c.txt"), "\u{feff}".as_bytes());
    let error = scan(root.path()).unwrap_err().to_string();
    assert!(error.contains("c.txt is empty"), "{error}");
}

#[test]
fn a_text_of_one_character_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("x.txt");
    for (text, tokenizer, is_error) in [
        ("aaaaaaaa", Tokenizer::Chars, true),
        ("aaaaaaaa", Tokenizer::Bytes, true),
        ("\u{feff}üüüü", Tokenizer::Chars, true),
        ("a", Tokenizer::Chars, true),
        ("aaaaaaab", Tokenizer::Chars, false),
        ("aaaaaaab", Tokenizer::Bytes, false),
    ] {
        put(&file, text.as_bytes());
        let scanned = TextIndex::scan(&[only(&file)], tokenizer, Documents::None);
        assert_eq!(scanned.is_err(), is_error, "{text}");
        if let Err(error) = scanned {
            let said = error.to_string();
            assert!(
                said.contains("x.txt has only the character '") && said.contains("set data.root"),
                "{said}"
            );
        }
    }
}

#[test]
fn the_generated_text_never_changes_and_grows_at_its_end() {
    let first = Corpus::generated(Tokenizer::Chars, 5000, 1).unwrap();
    assert_eq!(first.tokens.count(), 5000);
    let longer = text(&Corpus::generated(Tokenizer::Chars, 9000, 1).unwrap());
    let first = text(&first);
    assert!(longer.starts_with(&first));
    assert_ne!(first, text(&Corpus::generated(Tokenizer::Chars, 5000, 2).unwrap()));
    assert!(first.lines().count() > 10 && first.contains("children "), "{}", &first[..200]);
    // A subject in the plural has a verb without s.
    assert!(
        !first.contains("children sees") && !first.contains("cats sees") && !first.contains("a cat see ")
    );
}

#[test]
fn the_generated_text_is_easier_than_its_letters() {
    // The entropy of a letter given the three before it must be well below that of a letter alone.
    let text = text(&Corpus::generated(Tokenizer::Chars, 40_000, 1).unwrap()).into_bytes();
    let entropy = |order: usize| {
        let mut counts = std::collections::HashMap::<&[u8], f64>::new();
        for window in text.windows(order + 1) {
            *counts.entry(window).or_default() += 1.0;
            *counts.entry(&window[..order]).or_default() += if order == 0 { 0.0 } else { 1.0 };
        }
        let total = (text.len() - order) as f64;
        text.windows(order + 1)
            .map(|window| {
                let before = if order == 0 { total } else { counts[&window[..order]] };
                -(counts[window] / before).ln() / total
            })
            .sum::<f64>()
    };
    let (alone, after_three) = (entropy(0), entropy(3));
    println!("{alone} {after_three}");
    assert!((2.3..3.2).contains(&alone) && (0.3..0.9).contains(&after_three), "{alone} {after_three}");
}

#[test]
fn a_real_text_is_read() {
    let Ok(root) = test_data("shakespeare") else { return };
    let (index, corpus) = scan(&root).unwrap();
    assert_eq!((index.tokens, corpus.vocabulary.size()), (1_115_394, 65));
}

#[test]
fn pieces_cut_no_character_and_no_file() {
    let root = tempfile::tempdir().unwrap();
    // Characters of one to four bytes across the borders of pieces.
    let long: String = "aü€𝄞".chars().cycle().take(PIECE_BYTES / 2).collect();
    put(root.path().join("a.txt"), long.as_bytes());
    put(root.path().join("b.txt"), "x\n".as_bytes());
    put(root.path().join("c.txt"), "y".as_bytes());
    let expected = format!("{long}\nx\ny");
    let (index, corpus) = scan(root.path()).unwrap();
    assert!(matches!(*corpus.tokens, Tokens::U8(_)));
    assert_eq!((index.tokens, index.vocabulary.size()), (expected.chars().count() as u64, 7));
    assert!(text(&corpus) == expected);
    let bytes = TextIndex::scan(&[only(root.path())], Tokenizer::Bytes, Documents::None).unwrap();
    assert_eq!(bytes.tokens, expected.len() as u64);
    assert!(text(&bytes.load().unwrap()) == expected);
    put(root.path().join("a.txt"), &long.as_bytes()[..long.len() - 2]);
    let error = scan(root.path()).unwrap_err().to_string();
    let last = long.char_indices().last().unwrap().0;
    assert!(error.contains(&format!("a.txt is not UTF-8 from byte {last} on")), "{error}");
}

#[test]
fn documents_are_found_in_a_text_and_sent_with_it() {
    let root = tempfile::tempdir().unwrap();
    for (name, text) in [("a.txt", "\u{feff}one\ntwo"), ("b.txt", "\n"), ("c.txt", "x"), ("d.txt", "three\n")]
    {
        put(root.path().join(name), text.as_bytes());
    }
    let found = |documents| {
        let index = TextIndex::scan(&[only(root.path())], Tokenizer::Chars, documents).unwrap();
        let text = text(&index.load().unwrap());
        let sent: TextIndex = serde_json::from_value(serde_json::to_value(&index).unwrap()).unwrap();
        assert_eq!(sent, index);
        let bounds = sent.documents.unwrap();
        let cut = |[start, end]: &[u64; 2]| text[*start as usize..*end as usize].to_owned();
        (bounds.all().iter().map(cut).collect::<Vec<_>>(), bounds.left_out)
    };
    assert_eq!(found(Documents::Lines), (["one", "two", "three"].map(String::from).to_vec(), 1));
    assert_eq!(found(Documents::Files), (["one\ntwo", "three\n"].map(String::from).to_vec(), 1));
    let (windows, _) = scan(root.path()).unwrap();
    let sent = serde_json::to_value(&windows).unwrap();
    assert!(
        sent.get("documents").is_none(),
        "the fingerprint of a text without documents stays the same: {sent}"
    );
}

#[test]
fn sources_follow_each_other_and_keep_their_weights() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two] = ["one.txt", "two.txt"].map(|name| folder.path().join(name));
    put(&one, b"ab\ncd");
    put(&two, b"efg");
    let roots = [TextRoot { path: &one, weight: Some(1.0) }, TextRoot { path: &two, weight: Some(0.5) }];
    let index = TextIndex::scan(&roots, Tokenizer::Chars, Documents::Lines).unwrap();
    assert_eq!(text(&index.load().unwrap()), "ab\ncd\nefg");
    let parts = index.parts();
    let found: Vec<_> = parts.iter().map(|part| (part.tokens.clone(), part.weight)).collect();
    assert_eq!(found, [(0..5, Some(1.0)), (6..9, Some(0.5))]);
    let documents = index.documents.as_ref().unwrap();
    let within = [0, 1].map(|part: usize| documents.within(&parts[part].tokens).to_vec());
    assert_eq!(within, [vec![[0, 2], [3, 5]], vec![[6, 9]]]);
    let alone = TextIndex::scan(&roots[..1], Tokenizer::Chars, Documents::None).unwrap();
    assert_eq!(alone.parts()[0].tokens, 0..5);
    assert!(!serde_json::to_string(&alone).unwrap().contains("weight"));
}
