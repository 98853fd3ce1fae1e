#![allow(clippy::unwrap_used)]
use std::fs;

use dtrain_recipe::Documents;

use super::super::token_sources::TokenSource;
use super::*;

fn write(folder: &Path, name: &str, tokens: &[u32], width: usize) -> PathBuf {
    let path = folder.join(name);
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()[..width].to_vec()).collect();
    fs::write(&path, bytes).unwrap();
    path
}

fn scan(
    path: &Path,
    dtype: TokenType,
    documents: Documents,
    vocabulary: usize,
) -> Result<TokenSource, String> {
    TokenSource::scan(path, dtype, documents, vocabulary, &mut |_| {}).map_err(|error| error.to_string())
}

#[test]
fn tokens_of_both_types_are_read_at_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let tokens: Vec<u32> = (0..5000).map(|at| at * 13 % 50_257).collect();
    for (dtype, width) in [(TokenType::Uint16, 2), (TokenType::Uint32, 4)] {
        let path = write(folder.path(), "a.bin", &tokens, width);
        let source = scan(&path, dtype, Documents::None, 50_257).unwrap();
        assert_eq!((source.tokens, &source.documents), (5000, &None));
        let file = source.open(50_257).unwrap();
        let mut out = [0; 7];
        file.copy_to(4993, &mut out).unwrap();
        assert_eq!(out.map(|token| token as u32), tokens[4993..]);
        assert!(file.copy_to(4994, &mut out).is_err(), "beyond the end");
    }
}

#[test]
fn a_token_outside_of_the_vocabulary_is_named_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let mut tokens = vec![5; 1000];
    (tokens[700], tokens[900]) = (300, 301);
    let path = write(folder.path(), "a.bin", &tokens, 2);
    let error = scan(&path, TokenType::Uint16, Documents::None, 300).unwrap_err();
    assert!(
        error.contains("the token 300 at place 700 (byte 1400)") && error.contains("1 others of 1000"),
        "{error}"
    );
    assert!(error.contains("data.vocabulary"), "{error}");
    scan(&path, TokenType::Uint16, Documents::None, 302).unwrap();
    // Of the other type.
    let large: Vec<u32> = (0..1000).map(|at| at % 200).collect();
    let path = write(folder.path(), "b.bin", &large, 4);
    let error = scan(&path, TokenType::Uint16, Documents::None, 150).unwrap_err();
    assert!(error.contains("set data.dtype = \"uint32\""), "{error}");
    let path = write(folder.path(), "c.bin", &large, 2);
    let error = scan(&path, TokenType::Uint32, Documents::None, 200).unwrap_err();
    assert!(error.contains("set data.dtype = \"uint16\""), "{error}");
}

#[test]
fn files_that_change_are_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "a.bin", &[1, 2, 3, 4], 2);
    let source = scan(&path, TokenType::Uint16, Documents::None, 5).unwrap();
    let file = source.open(5).unwrap();
    write(folder.path(), "a.bin", &[1, 2, 3, 9], 2);
    assert!(source.open(5).unwrap_err().to_string().contains("differs from the text of rank 0"));
    let error = file.copy_to(0, &mut [0; 4]).unwrap_err().to_string();
    assert!(error.contains("the token 9 at place 3"), "{error}");
    write(folder.path(), "a.bin", &[1, 2], 2);
    assert!(file.copy_to(0, &mut [0; 4]).is_err(), "too short");
}

#[test]
fn other_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let header = [20_240_520u32.to_le_bytes(), 1u32.to_le_bytes()].concat();
    for (bytes, words) in [
        (&b""[..], "it is empty"),
        (b"abc", "3 bytes"),
        (b"\x93NUMPY\x01\x00", "a NumPy file"),
        (b"MMIDIDX\0\0\x01\0\0\0\0\0\0\0", "the index of a token file"),
        (&header, "a header; remove them by `tail -c +1025"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 30\n\n", "lfs pull"),
    ] {
        let path = folder.path().join("a.bin");
        fs::write(&path, bytes).unwrap();
        let error = scan(&path, TokenType::Uint16, Documents::None, 65_536).unwrap_err();
        assert!(error.contains(words) && error.contains("a.bin"), "{error}");
    }
    assert!(scan(&folder.path().join("none.bin"), TokenType::Uint16, Documents::None, 9).is_err());
}

#[test]
fn a_folder_has_a_file_for_each_set() {
    let folder = tempfile::tempdir().unwrap();
    let (train, val) = (write(folder.path(), "train.bin", &[1], 2), write(folder.path(), "val.bin", &[2], 2));
    assert_eq!(TokenSource::files(folder.path(), "train", "val.bin").unwrap(), (train.clone(), Some(val)));
    assert_eq!(TokenSource::files(&train, "x", "y").unwrap(), (train, None));
    let error = TokenSource::files(folder.path(), "train", "test").unwrap_err().to_string();
    assert!(
        error.contains("neither test nor test.bin") && error.contains("`train.bin`, `val.bin`"),
        "{error}"
    );
}

#[test]
fn documents_are_those_of_the_index() {
    use super::super::token_index::tests::index;
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "a.bin", &[1, 2, 3, 4, 5, 6], 2);
    let error = scan(&path, TokenType::Uint16, Documents::Index, 9).unwrap_err();
    assert!(error.contains("a.idx, which is missing"), "{error}");
    fs::write(folder.path().join("a.idx"), index(8, &[3, 1, 2], &[0, 1, 2, 3])).unwrap();
    let source = scan(&path, TokenType::Uint16, Documents::Index, 9).unwrap();
    let documents = source.documents.unwrap();
    assert_eq!((documents.all(), documents.left_out), (&[[0, 3], [4, 6]][..], 1));
    assert_eq!(scan(&path, TokenType::Uint16, Documents::None, 9).unwrap().documents, None);
    let error = scan(&path, TokenType::Uint32, Documents::Index, 9).unwrap_err();
    assert!(error.contains("set data.dtype = \"uint16\""), "{error}");
    fs::write(folder.path().join("a.idx"), index(8, &[3, 1], &[0, 1, 2])).unwrap();
    let error = scan(&path, TokenType::Uint16, Documents::Index, 9).unwrap_err();
    assert!(error.contains("4 tokens of uint16, but the file has 12 bytes"), "{error}");
}
