//! Texts to train language models on: one file or a folder of files, as one sequence of tokens.

use std::fs;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use blake3::Hasher;
use dtrain_common::content::{Content, shell_word};
use dtrain_common::files::unused;
use dtrain_recipe::{Documents, Tokenizer};
use serde::{Deserialize, Serialize};

use super::documents::{DocumentBounds, DocumentFinder};
use super::error::DataError;
use super::generated_text::sentence;
use super::regular;
use super::rng::{Domain, keyed};
use super::tokenized::{PackedTokens, Tokenized};
use super::tokenizer::{TextTokenizer, TokenizerFiles};
use super::vocabulary::{Characters, Encoder, Tokens, Vocabulary};

/// A text in memory. Clones share it.
#[derive(Debug, Clone)]
pub struct Corpus {
    /// All tokens, in the order of the text.
    pub tokens: Arc<Tokens>,
    pub vocabulary: Vocabulary,
}

impl Corpus {
    /// Reads a text and makes its vocabulary.
    pub fn new(tokenizer: Tokenizer, text: &str) -> Result<Self, DataError> {
        Self::with_vocabulary(Vocabulary::of(tokenizer, text), text)
    }

    /// Reads a text with a vocabulary that must have its characters.
    fn with_vocabulary(vocabulary: Vocabulary, text: &str) -> Result<Self, DataError> {
        Ok(Self { tokens: Arc::new(vocabulary.encode(text)?), vocabulary })
    }

    /// Generates a text of `characters` characters with a small grammar, from the seed alone. A shorter text
    /// is a prefix of a longer one.
    pub fn generated(tokenizer: Tokenizer, characters: usize, seed: u64) -> Result<Self, DataError> {
        let mut rng = keyed(Domain::GeneratedText, seed, 0, 0);
        let mut text = String::new();
        while text.len() < characters {
            sentence(&mut rng, &mut text);
        }
        // The text is ASCII: a byte is a character.
        text.truncate(characters);
        // The vocabulary must not depend on the length.
        Self::with_vocabulary(Vocabulary::of(tokenizer, "\n .abcdefghijklmnopqrstuvwxyz"), &text)
    }
}

/// The texts that this process has in memory: a run and the prediction of its memory have the same.
static IN_USE: Mutex<Vec<(TextIndex, Weak<Tokens>)>> = Mutex::new(Vec::new());

/// A source of text.
#[derive(Debug, Clone, Copy)]
pub struct TextRoot<'a> {
    /// A file or a folder.
    pub path: &'a Path,
    /// Its weight in a mixture.
    pub weight: Option<f64>,
}

/// The text of one of several sources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TextPart {
    /// The number of its first token, and the one after its last.
    pub tokens: Range<u64>,
    pub weight: Option<f64>,
}

/// The text of a run, as rank 0 found it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TextIndex {
    pub files: Vec<PathBuf>,
    pub vocabulary: Vocabulary,
    /// Tokens of all files together.
    pub tokens: u64,
    /// The BLAKE3 hash of the text; the other ranks compare it.
    digest: String,
    /// The borders of its documents; None if the text is one sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<DocumentBounds>,
    /// The sources; empty if it is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    sources: Vec<TextPart>,
    /// The tokens and the files of a tokenizer; None for characters and bytes, which every rank reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tokenized: Option<(PackedTokens, TokenizerFiles)>,
}

impl TextIndex {
    /// Reads the texts at `roots`, of which each is a file, or all `*.txt` files of a folder by name, except hidden ones. Adds a
    /// missing line break between two files. Holds none of it. A text without two different characters is an error.
    pub fn scan(
        roots: &[TextRoot<'_>],
        tokenizer: Tokenizer,
        documents: Documents,
    ) -> Result<Self, DataError> {
        let (files, source_of) = files_of(roots)?;
        let (mut characters, mut digest) = (Characters::new(tokenizer.clone()), Hasher::new());
        let mut finder = DocumentFinder::new(documents, tokenizer);
        let mut ranges = vec![0..0; roots.len()];
        read_pieces(&files, &mut |file, piece| {
            let before = characters.count;
            characters.add(piece);
            digest.update(piece.as_bytes());
            if let Some(finder) = &mut finder {
                finder.add(file, piece);
            }
            // A line break between two sources is of neither.
            if let Some(file) = file {
                let range: &mut Range<u64> = &mut ranges[source_of[file]];
                range.start = if range.end == 0 { before } else { range.start };
                range.end = characters.count;
            }
        })?;
        if let (Some(character), Some(first)) = (characters.only(), roots.first()) {
            return Err(DataError::OneCharacter(first.path.to_path_buf(), character));
        }
        let digest = digest.finalize().to_string();
        let documents = finder.map(DocumentFinder::finish).transpose()?;
        let (vocabulary, tokens) = (characters.vocabulary(), characters.count);
        Ok(Self {
            files,
            vocabulary,
            tokens,
            digest,
            documents,
            sources: parts(roots, ranges),
            tokenized: None,
        })
    }

    /// As [`TextIndex::scan`] with the tokens of a tokenizer, which are kept in shared memory. The tokenizer's end token, if it
    /// has one, stands between two files of one sequence, and ends each document. `report` gets a sentence now and then.
    pub fn tokenize(
        roots: &[TextRoot<'_>],
        tokenizer: &TextTokenizer,
        documents: Documents,
        threads: usize,
        report: &mut dyn FnMut(String),
    ) -> Result<Self, DataError> {
        /// Bytes between two reports.
        const REPORT_EVERY: u64 = 256 << 20;
        let (files, source_of) = files_of(roots)?;
        let mut tokenized = Tokenized::new(tokenizer, documents, threads);
        let mut ranges = vec![0..0; roots.len()];
        let (mut digest, mut bytes, mut reported) = (Hasher::new(), 0, 0);
        for (number, file) in files.iter().enumerate() {
            let mut text = String::new();
            read_pieces(std::slice::from_ref(file), &mut |_, piece| text.push_str(piece))?;
            digest.update(text.as_bytes());
            if number > 0 {
                tokenized.separate();
            }
            let before = tokenized.count();
            tokenized.add(&text)?;
            let range: &mut Range<u64> = &mut ranges[source_of[number]];
            range.start = if range.end == 0 { before } else { range.start };
            range.end = tokenized.count();
            bytes += text.len() as u64;
            if bytes - reported >= REPORT_EVERY {
                reported = bytes;
                report(format!("tokenized {} MiB of text: {} tokens", bytes >> 20, tokenized.count()));
            }
        }
        let (id, documents) = (tokenizer.id().clone(), tokenized.documents()?);
        let packed = PackedTokens::write(&tokenized.tokens, id.size)?;
        Ok(Self {
            files,
            tokens: packed.count() as u64,
            vocabulary: Vocabulary::Tokenizer(id),
            digest: digest.finalize().to_string(),
            documents,
            sources: parts(roots, ranges),
            tokenized: Some((packed, tokenizer.files().clone())),
        })
    }

    /// Returns the files of the tokenizer, if there is one.
    pub fn tokenizer(&self) -> Option<&TokenizerFiles> {
        self.tokenized.as_ref().map(|(_, files)| files)
    }

    /// Returns the text of each source.
    pub fn parts(&self) -> Vec<TextPart> {
        let whole = || TextPart { tokens: 0..self.tokens, weight: None };
        if self.sources.is_empty() { vec![whole()] } else { self.sources.clone() }
    }

    /// Reads the text as it was scanned, on any rank. As long as this process has it in use, it is not read again.
    pub fn load(&self) -> Result<Corpus, DataError> {
        if let Some((packed, _)) = &self.tokenized {
            let tokens = Arc::new(Tokens::Shared(packed.clone()));
            return Ok(Corpus { tokens, vocabulary: self.vocabulary.clone() });
        }
        let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        in_use.retain(|(_, tokens)| tokens.strong_count() > 0);
        let found = in_use.iter().find(|(index, _)| index == self).and_then(|(_, tokens)| tokens.upgrade());
        if let Some(tokens) = found {
            return Ok(Corpus { tokens, vocabulary: self.vocabulary.clone() });
        }
        let corpus = self.read()?;
        in_use.push((self.clone(), Arc::downgrade(&corpus.tokens)));
        Ok(corpus)
    }

    fn read(&self) -> Result<Corpus, DataError> {
        let mut encoder = Encoder::new(&self.vocabulary, self.tokens as usize);
        let (mut digest, mut unknown) = (Hasher::new(), None);
        read_pieces(&self.files, &mut |_, piece| {
            digest.update(piece.as_bytes());
            // Another text also has other characters, but that is not its first difference.
            unknown = unknown.take().or_else(|| encoder.add(piece).err());
        })?;
        if digest.finalize().to_string() != self.digest {
            return Err(DataError::TextDiffers(self.files.first().cloned().unwrap_or_default()));
        }
        match unknown {
            Some(error) => Err(error),
            None => Ok(Corpus { tokens: Arc::new(encoder.finish()), vocabulary: self.vocabulary.clone() }),
        }
    }
}

/// Returns the files of all roots, and the number of the root of each.
fn files_of(roots: &[TextRoot<'_>]) -> Result<(Vec<PathBuf>, Vec<usize>), DataError> {
    let (mut files, mut source_of) = (Vec::new(), Vec::new());
    for (source, root) in roots.iter().enumerate() {
        let found = match root.path.is_dir() {
            true => texts(root.path).map_err(|error| error.in_source(source, roots.len()))?,
            false => vec![root.path.to_path_buf()],
        };
        files.extend(found);
        source_of.resize(files.len(), source);
    }
    Ok((files, source_of))
}

/// Returns the parts of several sources; nothing for one.
fn parts(roots: &[TextRoot<'_>], ranges: Vec<Range<u64>>) -> Vec<TextPart> {
    let part = |(root, tokens): (&TextRoot<'_>, Range<u64>)| TextPart { tokens, weight: root.weight };
    match roots.len() {
        1 => Vec::new(),
        _ => roots.iter().zip(ranges).map(part).collect(),
    }
}

fn texts(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let unreadable = |source| DataError::UnreadableText(folder.to_path_buf(), source);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let is_text = path.extension().is_some_and(|it| it.eq_ignore_ascii_case("txt"));
        if is_text && !hidden && !path.is_dir() {
            files.push(path);
        }
    }
    if files.is_empty() {
        return Err(DataError::NoTexts(folder.to_path_buf()));
    }
    files.sort_unstable();
    Ok(files)
}

/// Bytes of a text that are read at once.
const PIECE_BYTES: usize = 1 << 20;

/// Reads the files as one text, in pieces, so that a large text needs little memory besides its tokens. `act` gets the number of
/// a piece's file, or None for the line break between two files.
fn read_pieces(files: &[PathBuf], act: &mut dyn FnMut(Option<usize>, &str)) -> Result<(), DataError> {
    let mut bytes = vec![0; PIECE_BYTES];
    let mut ends_line = true;
    for (number, path) in files.iter().enumerate() {
        let unreadable = |source| DataError::UnreadableText(path.clone(), source);
        let mut file = regular::open_file(path).map_err(unreadable)?;
        if !ends_line {
            act(None, "\n");
        }
        // `kept` bytes of a character that the last piece cut off are at the beginning; `before` are done.
        let (mut kept, mut before, mut is_empty) = (0, 0, true);
        loop {
            let read = match file.read(&mut bytes[kept..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read.map_err(unreadable)?,
            };
            let all = kept + read;
            let mut piece = match std::str::from_utf8(&bytes[..all]) {
                Ok(piece) => piece,
                Err(error) if error.error_len().is_none() && read > 0 => {
                    std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
                }
                Err(error) => {
                    let reason = not_utf8(path, before + error.valid_up_to());
                    return Err(DataError::ForeignText(path.clone(), reason));
                }
            };
            if read == 0 {
                break;
            }
            let valid = piece.len();
            if before == 0 {
                // A pointer is a text, which would be trained.
                if Content::of(&bytes[..all], &[]) == Some(Content::LfsPointer) {
                    return Err(DataError::ForeignText(path.clone(), foreign(Content::LfsPointer, path)));
                }
                // Some editors begin a text with a byte order mark, which is no part of it.
                piece = piece.strip_prefix('\u{feff}').unwrap_or(piece);
            }
            if !piece.is_empty() {
                (ends_line, is_empty) = (piece.ends_with('\n'), false);
                act(Some(number), piece);
            }
            bytes.copy_within(valid..all, 0);
            (kept, before) = (all - valid, before + valid);
        }
        if is_empty {
            return Err(DataError::EmptyText(path.clone()));
        }
    }
    Ok(())
}

fn foreign(content: Content, path: &Path) -> String {
    let usual = || "write its text into a file in UTF-8, and use that in its place".to_owned();
    format!("{content}; {}", content.remedy(path).unwrap_or_else(usual))
}

/// Says what a file that is not UTF-8 is, and how to convert it. The command writes a new file, which no folder of texts
/// lists.
fn not_utf8(path: &Path, bad: usize) -> String {
    let from = match Content::of_file(path) {
        Some(Content::Utf16) => "UTF-16",
        // Of Western Windows, which has almost all bytes. A text may begin as JSON or HTML does.
        None | Some(Content::Json | Content::WeightIndex | Content::Html | Content::Xml) => "WINDOWS-1252",
        Some(content) => return foreign(content, path),
    };
    let new = unused(&path.with_extension("utf8"));
    let word = |path: &Path| shell_word(&path.to_string_lossy());
    format!(
        "not UTF-8 from byte {bad} on; convert it with `iconv -f {from} -t UTF-8 {} > {}` (name its own encoding if it is \
         another, and another folder if you cannot write to this one), and use the new file in its place",
        word(path),
        word(&new)
    )
}

#[cfg(test)]
mod tests;
