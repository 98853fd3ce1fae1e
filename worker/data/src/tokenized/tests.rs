#![allow(clippy::unwrap_used)]
use super::super::tokenizer::tests::tokenizer;
use super::*;

/// A text that is longer than a piece, with line breaks.
fn long() -> String {
    (0..30_000)
        .map(|line| format!("Line {line}: the  queen's brother\n{}", ["", " ", "\n\t"][line % 3]))
        .collect()
}

fn tokens(documents: Documents, name: &str, texts: &[&str], threads: usize) -> (Vec<u32>, Vec<[u64; 2]>) {
    let tokenizer = tokenizer(name);
    let mut tokenized = Tokenized::new(&tokenizer, documents, threads);
    for (number, text) in texts.iter().enumerate() {
        if number > 0 {
            tokenized.separate();
        }
        tokenized.add(text).unwrap();
    }
    let bounds = tokenized.documents().unwrap().map(|bounds| bounds.all().to_vec()).unwrap_or_default();
    (tokenized.tokens, bounds)
}

#[test]
fn pieces_and_threads_change_no_token() {
    let text = long();
    for name in ["bytes", "words", "pieces"] {
        let whole = tokenizer(name).encode(&text, false).unwrap();
        for threads in [1, 3] {
            assert_eq!(tokens(Documents::None, name, &[&text], threads).0, whole, "{name}");
        }
    }
    // A tokenizer that writes a token before each text takes no piece.
    let (bytes, pieces) = (tokenizer("bytes"), tokenizer("pieces"));
    let count = |tokenizer: &TextTokenizer| {
        Tokenized::new(tokenizer, Documents::None, 1).pieces(&text).unwrap().len()
    };
    assert!(count(&bytes) > 2);
    assert_eq!(count(&pieces), 1);
}

#[test]
fn the_end_token_ends_documents_and_separates_files() {
    let tokenizer = tokenizer("bytes");
    let end = tokenizer.id().end.unwrap();
    let of = |text: &str| tokenizer.encode(text, false).unwrap();
    let (all, bounds) = tokens(Documents::None, "bytes", &["the king", "the queen\n"], 2);
    assert_eq!((all, bounds.len()), ([of("the king"), vec![end], of("the queen\n")].concat(), 0));
    let (all, bounds) = tokens(Documents::Lines, "bytes", &["the king\r\n\n  \nx\n", "queen"], 2);
    assert_eq!(all, [of("the king"), vec![end], of("x"), vec![end], of("queen"), vec![end]].concat());
    let king = of("the king").len() as u64 + 1;
    assert_eq!(bounds, [[0, king], [king, king + 2], [king + 2, all.len() as u64]]);
    let (all, bounds) = tokens(Documents::Files, "bytes", &["a\nb", " \n"], 1);
    assert_eq!((all, bounds.len()), ([of("a\nb"), vec![end]].concat(), 1));
}

#[test]
fn documents_of_one_token_are_left_out_without_an_end() {
    let tokenizer = tokenizer("words");
    let mut tokenized = Tokenized::new(&tokenizer, Documents::Lines, 1);
    tokenized.add("the\nthe king\n").unwrap();
    let bounds = tokenized.documents().unwrap().unwrap();
    assert_eq!((bounds.all(), bounds.left_out), (&[[1, 3]][..], 1));
}

#[test]
fn the_first_error_in_order_is_returned() {
    let value = |at: usize| match at {
        70 | 400 => Err(DataError::NoToken(at.to_string())),
        at => Ok(at),
    };
    assert_eq!(in_threads(50, 4, value).unwrap(), (0..50).collect::<Vec<_>>());
    assert!(in_threads(1000, 4, value).unwrap_err().to_string().contains("\"70\""));
    assert!(in_threads(0, 4, value).unwrap().is_empty());
}
