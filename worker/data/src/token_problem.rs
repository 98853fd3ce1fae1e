//! What is wrong with a file of tokens.

use std::io;
use std::path::PathBuf;

/// Why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenProblem {
    #[error(
        "it has {0} bytes, which is no multiple of the {1} bytes of {2}; set data.dtype to the type of its numbers, or copy it again"
    )]
    Length(u64, u64, &'static str),
    #[error("it is empty; remove it, or set data.root to another file")]
    Empty,
    #[error("it is {0}")]
    Foreign(String),
    #[error(
        "the token {token} at place {place} (byte {byte}) is outside of the vocabulary of {vocabulary} tokens, and so are {more} \
         others of {tokens}; {remedy}"
    )]
    Outside {
        token: u32,
        place: u64,
        byte: u64,
        vocabulary: usize,
        more: u64,
        tokens: u64,
        remedy: &'static str,
    },
    #[error("its index {}: {}", .0.display(), .1)]
    Index(PathBuf, String),
    #[error("the index {} cannot be read: {}", .0.display(), .1)]
    UnreadableIndex(PathBuf, io::Error),
    #[error("its index states {0} tokens of {1}, but the file has {2} bytes; copy both again")]
    OtherLength(u64, &'static str, u64),
    #[error("its index states tokens of {0}, but data.dtype is {1:?}; set data.dtype = {0:?}")]
    OtherType(&'static str, &'static str),
    #[error("data.documents = \"index\" needs its index {}, which is missing; copy it beside the file, or set data.documents = \"none\"", .0.display())]
    NoIndex(PathBuf),
    #[error(
        "neither {0} nor {0}.bin is in this folder; it has {1}; set data.train and data.test to the names of its files"
    )]
    NoSet(String, String),
}
