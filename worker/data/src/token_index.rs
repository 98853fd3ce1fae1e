//! The index of a token file: the `.idx` file of Megatron-LM and GPT-NeoX, which states where sequences and documents stand.

use std::path::Path;

use dtrain_recipe::TokenType;

use super::token_problem::TokenProblem;

/// The first bytes of an index, and of the older form that cannot be mapped.
const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
const OLDER: &[u8; 8] = b"TNTIDX\0\0";
const VERSION: u64 = 1;
/// The codes of the types of tokens; 4 is a signed type, of which no token is negative.
const CODES: [(u8, TokenType); 2] = [(4, TokenType::Uint32), (8, TokenType::Uint16)];
const NAMES: [&str; 9] = [
    "nothing",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "a floating-point type",
    "a floating-point type",
    "uint16",
];

/// What an index states.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TokenIndex {
    pub(super) dtype: TokenType,
    /// All tokens.
    pub(super) tokens: u64,
    /// The first token of each document and the one after its last, in the order of the file.
    pub(super) documents: Vec<[u64; 2]>,
}

/// Reads numbers from the start of bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: u64) -> Option<&'a [u8]> {
        let count = usize::try_from(count).ok()?;
        let (first, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(first)
    }

    fn number(&mut self) -> Option<u64> {
        self.bytes(8)?.try_into().map(u64::from_le_bytes).ok()
    }

    /// Returns `count` numbers of W bytes.
    fn numbers<const W: usize>(&mut self, count: u64) -> Option<&'a [[u8; W]]> {
        Some(self.bytes(count.checked_mul(W as u64)?)?.as_chunks().0)
    }
}

impl TokenIndex {
    /// Reads the content of an index; `path` is its place in messages.
    pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Self, TokenProblem> {
        let wrong = |reason: String| TokenProblem::Index(path.to_owned(), reason);
        if bytes.starts_with(OLDER) {
            return Err(wrong(
                "it is of the older form; write it again with the data set's form \"mmap\"".to_owned(),
            ));
        }
        let Some(rest) = bytes.strip_prefix(MAGIC) else {
            return Err(wrong(
                "it does not begin as an index of Megatron-LM; write it again, or move it away".to_owned(),
            ));
        };
        let short = || wrong("it is too short for the numbers that it states; copy it again".to_owned());
        let mut reader = Reader(rest);
        let version = reader.number().ok_or_else(short)?;
        if version != VERSION {
            return Err(wrong(format!(
                "it has version {version}, and dtrain reads version {VERSION}; write it again"
            )));
        }
        let code = reader.bytes(1).ok_or_else(short)?[0];
        let Some(&(_, dtype)) = CODES.iter().find(|(known, _)| *known == code) else {
            let name = NAMES.get(usize::from(code)).unwrap_or(&"an unknown type");
            return Err(wrong(format!(
                "its tokens are of {name}, and dtrain reads uint16 and int32; write the file again"
            )));
        };
        let (sequences, bounds) = (reader.number().ok_or_else(short)?, reader.number().ok_or_else(short)?);
        let sizes = reader.numbers::<4>(sequences).ok_or_else(short)?;
        let starts = reader.numbers::<8>(sequences).ok_or_else(short)?;
        let bounds = reader.numbers::<8>(bounds).ok_or_else(short)?;
        let width = width(dtype);
        // The first token of each sequence, and the end of the last.
        let mut ends = vec![0u64];
        for (number, (size, start)) in sizes.iter().zip(starts).enumerate() {
            let (size, start, end) = (u32::from_le_bytes(*size), u64::from_le_bytes(*start), ends[number]);
            if start != end * width {
                return Err(wrong(format!(
                    "sequence {number} begins at byte {start}, and those before it end at byte {}; write it again",
                    end * width
                )));
            }
            ends.push(end + u64::from(size));
        }
        let mut documents = Vec::with_capacity(bounds.len().saturating_sub(1));
        for (number, pair) in bounds.windows(2).enumerate() {
            let [first, last] = [pair[0], pair[1]].map(|bound| u64::from_le_bytes(bound) as usize);
            match (ends.get(first), ends.get(last)) {
                (Some(&start), Some(&end)) if first <= last => documents.push([start, end]),
                _ => {
                    let (first, last, count) = (first as i64, last as i64, ends.len() - 1);
                    return Err(wrong(format!(
                        "document {number} has the sequences {first} to {last}, and there are {count}; write it again"
                    )));
                }
            }
        }
        let tokens = ends.last().copied().unwrap_or_default();
        Ok(Self { dtype, tokens, documents })
    }
}

/// Returns the bytes of a token.
pub(super) fn width(dtype: TokenType) -> u64 {
    match dtype {
        TokenType::Uint16 => 2,
        TokenType::Uint32 => 4,
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    /// Writes an index as Megatron-LM does.
    pub(crate) fn index(code: u8, sizes: &[u32], bounds: &[u64]) -> Vec<u8> {
        let width = if code == 8 { 2 } else { 4 };
        let mut bytes = MAGIC.to_vec();
        bytes.extend(1u64.to_le_bytes());
        bytes.push(code);
        bytes.extend((sizes.len() as u64).to_le_bytes());
        bytes.extend((bounds.len() as u64).to_le_bytes());
        sizes.iter().for_each(|size| bytes.extend(size.to_le_bytes()));
        let mut at = 0u64;
        for size in sizes {
            bytes.extend(at.to_le_bytes());
            at += u64::from(*size) * width;
        }
        bounds.iter().for_each(|bound| bytes.extend(bound.to_le_bytes()));
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<TokenIndex, String> {
        TokenIndex::parse(Path::new("a.idx"), bytes).map_err(|problem| problem.to_string())
    }

    #[test]
    fn documents_are_sequences_that_follow_each_other() {
        let read = parse(&index(8, &[3, 1, 4], &[0, 1, 3])).unwrap();
        assert_eq!(read, TokenIndex { dtype: TokenType::Uint16, tokens: 8, documents: vec![[0, 3], [3, 8]] });
        assert_eq!(parse(&index(4, &[], &[0])).unwrap().dtype, TokenType::Uint32);
    }

    #[test]
    fn wrong_indices_name_the_cause() {
        let good = index(8, &[3, 1], &[0, 2]);
        let mut moved = good.clone();
        moved[9 + 8 + 1 + 16 + 8 + 8] = 9;
        for (bytes, words) in [
            (&b"TNTIDX\0\0\x01"[..], "older form"),
            (b"PK\x03\x04", "does not begin"),
            (&good[..good.len() - 1], "too short"),
            (&index(5, &[3], &[0, 1]), "int64"),
            (&index(8, &[3], &[0, 2]), "document 0 has the sequences 0 to 2, and there are 1"),
            (&index(8, &[3, 3], &[2, 0]), "document 0"),
            (&moved, "sequence 1 begins at byte 9"),
        ] {
            let error = parse(bytes).unwrap_err();
            assert!(error.contains(words) && error.contains("a.idx"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn changed_bytes_never_panic(at in 0usize..80, byte in any::<u8>(), cut in 0usize..90) {
            let mut bytes = index(8, &[3, 1, 4], &[0, 1, 3]);
            let length = bytes.len();
            bytes[at % length] = byte;
            bytes.truncate(cut.min(length));
            if let Ok(read) = parse(&bytes) {
                prop_assert!(read.documents.iter().all(|[start, end]| start <= end && *end <= read.tokens));
            }
        }
    }
}
