//! The token files of a run, and their indexes.

use std::path::{Path, PathBuf};
use std::{fs, io};

use dtrain_recipe::{Documents, TokenType};
use serde::{Deserialize, Serialize};

use super::documents::DocumentBounds;
use super::error::DataError;
use super::names::listed;
use super::token_file::TokenFile;
use super::token_index::{TokenIndex, width};
use super::token_problem::TokenProblem;
use super::tokenizer::TokenizerFiles;
use super::vocabulary::Vocabulary;

/// The tokens of one set of one source, as rank 0 found them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenSource {
    /// The file; a list, since a survey's fingerprint counts only the names of files.
    files: [PathBuf; 1],
    dtype: TokenType,
    /// All tokens.
    pub tokens: u64,
    digest: String,
    /// The borders of its documents; None if it is one sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<DocumentBounds>,
}

/// The token files of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenSources {
    pub vocabulary: Vocabulary,
    /// The tokenizer that made them, if it is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<TokenizerFiles>,
    pub sources: Vec<TokenSets>,
}

/// The files of one source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenSets {
    /// The training tokens, or all.
    pub train: TokenSource,
    /// The test tokens; None if the end of the others is the test part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<TokenSource>,
    /// Its weight in a mixture.
    pub weight: Option<f64>,
}

impl TokenSource {
    /// Returns the files of the training and of the test set in a folder; a root that is a file is both.
    pub fn files(root: &Path, train: &str, test: &str) -> Result<(PathBuf, Option<PathBuf>), DataError> {
        if !root.is_dir() {
            return Ok((root.to_owned(), None));
        }
        let file = |set: &str| {
            let paths = [root.join(set), root.join(format!("{set}.bin"))];
            paths.into_iter().find(|path| path.is_file()).ok_or_else(|| {
                let names = fs::read_dir(root).into_iter().flatten().flatten();
                let mut names: Vec<_> =
                    names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
                names.retain(|name| name.ends_with(".bin"));
                names.sort();
                let has = if names.is_empty() { "no .bin files".to_owned() } else { listed(&names) };
                DataError::BadTokens(root.to_owned(), TokenProblem::NoSet(set.to_owned(), has))
            })
        };
        Ok((file(train)?, Some(file(test)?)))
    }

    /// Reads and checks a file, with its index if documents are wanted. `progress` gets the tokens that were read.
    pub fn scan(
        path: &Path,
        dtype: TokenType,
        documents: Documents,
        vocabulary: usize,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, DataError> {
        let wrong = |problem| DataError::BadTokens(path.to_owned(), problem);
        let place = path.with_extension("idx");
        let index = match fs::read(&place) {
            Ok(bytes) => Some(TokenIndex::parse(&place, &bytes).map_err(wrong)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound && documents != Documents::Index => None,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(wrong(TokenProblem::NoIndex(place)));
            }
            Err(error) => return Err(wrong(TokenProblem::UnreadableIndex(place, error))),
        };
        if let Some(index) = index.as_ref().filter(|index| index.dtype != dtype) {
            return Err(wrong(TokenProblem::OtherType(index.dtype.as_str(), dtype.as_str())));
        }
        let file = TokenFile::open(path, dtype, vocabulary)?;
        let tokens = file.count() as u64;
        if let Some(index) = index.as_ref().filter(|index| index.tokens != tokens) {
            let bytes = tokens * width(dtype);
            return Err(wrong(TokenProblem::OtherLength(index.tokens, dtype.as_str(), bytes)));
        }
        file.check(progress)?;
        let documents = match index.filter(|_| documents == Documents::Index) {
            None => None,
            Some(index) => {
                let all = index.documents.len();
                let mut bounds = index.documents;
                bounds.retain(|[start, end]| end - start > 1);
                let left_out = (all - bounds.len()) as u64;
                Some(DocumentBounds::write(bounds, left_out)?)
            }
        };
        Ok(Self { files: [path.to_owned()], dtype, tokens, digest: file.digest()?, documents })
    }

    /// Opens the file as it was scanned, on any rank.
    pub fn open(&self, vocabulary: usize) -> Result<TokenFile, DataError> {
        let [path] = &self.files;
        let file = TokenFile::open(path, self.dtype, vocabulary)?;
        match file.count() as u64 == self.tokens && file.digest()? == self.digest {
            true => Ok(file),
            false => Err(DataError::TextDiffers(path.clone())),
        }
    }
}
