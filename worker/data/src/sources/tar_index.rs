//! The members of a tar archive: where each lies, so that any can be read alone.
//!
//! An index is made once, and kept beside the archive or, if that folder cannot be written, in the user's cache folder. It counts as
//! long as the archive has the same size and time of change.

use std::fs;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use dtrain_common::content::Content;
use serde::{Deserialize, Serialize};
use tar::{Archive, EntryType};

use super::super::error::DataError;
use super::super::pack_problem::PackProblem;
use super::super::{cache_folder, regular};

/// Raised when the form of an index changes.
const VERSION: u32 = 2;
/// The longest text that an index has itself: a class, not a caption.
const LONGEST_TEXT: u64 = 64;
/// Archives are made of blocks of this many bytes.
const BLOCK: u64 = 512;

/// The members of an archive with content, in its order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct TarIndex {
    version: u32,
    /// The size of the archive in bytes.
    size: u64,
    /// When it was changed, in seconds and nanoseconds since 1970.
    changed: (i64, i64),
    pub(super) members: Vec<Member>,
}

/// A member: a file of the archive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Member {
    #[serde(rename = "n")]
    pub(super) name: String,
    /// The offset of its content.
    #[serde(rename = "s")]
    pub(super) start: u64,
    /// The bytes of its content.
    #[serde(rename = "l")]
    pub(super) length: u64,
    /// Its content, if that is a short text.
    #[serde(rename = "t", default, skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<String>,
}

impl TarIndex {
    /// Returns the index of an archive: a kept one, or a new one, which is kept.
    pub(super) fn of(path: &Path) -> Result<Self, DataError> {
        let failed = |problem| DataError::pack(path.to_owned(), problem);
        let file = regular::open_file(path).map_err(|error| failed(PackProblem::Unreadable(error)))?;
        let about = file.metadata().map_err(|error| failed(PackProblem::Unreadable(error)))?;
        let (size, changed) = (about.len(), (about.mtime(), about.mtime_nsec()));
        let places = places(path);
        let kept = places.iter().filter_map(|place| serde_json::from_slice(&fs::read(place).ok()?).ok());
        let is_valid = |index: &Self| (index.version, index.size, index.changed) == (VERSION, size, changed);
        if let Some(index) = { kept }.find(is_valid) {
            return Ok(index);
        }
        let members = members(file, size).map_err(|problem| match (problem, Content::of_file(path)) {
            (PackProblem::Damaged(..) | PackProblem::Cut { .. } | PackProblem::NoEnd(_), Some(content))
                if content != Content::Tar =>
            {
                failed(foreign(content, path))
            }
            (problem, _) => failed(problem),
        })?;
        let index = Self { version: VERSION, size, changed, members };
        index.keep(&places);
        Ok(index)
    }

    /// Writes the index to the first of the places that can be written. Without one it is made anew by the next run.
    fn keep(&self, places: &[PathBuf]) {
        let Ok(text) = serde_json::to_vec(self) else { return };
        let is_kept = places.iter().any(|place| cache_folder::write(place, &text).is_ok());
        if !is_kept {
            tracing::debug!("the index of an archive cannot be kept: {places:?}");
        }
    }
}

fn foreign(content: Content, path: &Path) -> PackProblem {
    let remedy = match content.unpacker() {
        Some(program) => format!(
            "members of a compressed archive cannot be read one by one: unpack it with `{program} -d`, and name the .tar file"
        ),
        None => content.remedy(path).unwrap_or_else(|| "expected a tar archive".to_owned()),
    };
    PackProblem::Foreign(content.to_string(), remedy)
}

/// Returns where an index may be: beside the archive, and in the user's cache folder.
fn places(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.dtrain-index"));
    let of_user = cache_folder::of_file("indexes", path).map(|folder| folder.with_extension("json"));
    std::iter::once(beside).chain(of_user).collect()
}

fn members(file: fs::File, size: u64) -> Result<Vec<Member>, PackProblem> {
    if size == 0 {
        return Err(PackProblem::Empty);
    }
    let mut members: Vec<Member> = Vec::new();
    let before = |members: &[Member]| {
        members.last().map_or("(the beginning)".to_owned(), |member| member.name.clone())
    };
    // Where the last member ends, with its padding.
    let mut end = 0;
    let contents = file.try_clone().map_err(PackProblem::Unreadable)?;
    let mut archive = Archive::new(BufReader::new(file));
    for entry in archive.entries_with_seek().map_err(PackProblem::Unreadable)? {
        let mut entry = match entry {
            Ok(entry) => entry,
            // The rest is less than a header.
            Err(_) if size - end < BLOCK => return Err(PackProblem::NoEnd(before(&members))),
            Err(error) => return Err(PackProblem::Damaged(before(&members), error.to_string())),
        };
        let name = String::from_utf8(entry.path_bytes().into_owned()).map_err(|error| {
            PackProblem::NotUnicode(String::from_utf8_lossy(error.as_bytes()).into_owned())
        })?;
        let (start, length) = (entry.raw_file_position(), entry.size());
        let needed = start.saturating_add(length);
        if needed > size {
            return Err(PackProblem::Cut { member: name, needed: length, there: size.saturating_sub(start) });
        }
        end = needed.div_ceil(BLOCK) * BLOCK;
        let kind = entry.header().entry_type();
        match kind {
            EntryType::Regular | EntryType::Continuous => {}
            EntryType::Symlink => return Err(PackProblem::Link(name, "a symbolic link")),
            EntryType::Link => return Err(PackProblem::Link(name, "a link to another member")),
            EntryType::GNUSparse => return Err(PackProblem::Link(name, "a file with holes")),
            _ => continue,
        }
        let inner = name.trim_start_matches("./");
        let is_below = Path::new(inner).components().all(|part| matches!(part, Component::Normal(_)));
        if inner.is_empty() || !is_below || inner.contains('\0') {
            return Err(PackProblem::Escapes(name));
        }
        let text = match length <= LONGEST_TEXT {
            true => {
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes).map_err(PackProblem::Unreadable)?;
                String::from_utf8(bytes).ok()
            }
            false => None,
        };
        members.push(Member { name: inner.to_owned(), start, length, text });
    }
    // The reader takes the end of a file for the end of the archive.
    let mut mark = [0u8; BLOCK as usize];
    match contents.read_exact_at(&mut mark, end) {
        Ok(()) => match rest_is_zero(&contents, end) {
            Ok(true) => Ok(members),
            Ok(false) => Err(PackProblem::Joined(before(&members))),
            Err(error) => Err(PackProblem::Unreadable(error)),
        },
        Err(_) if members.is_empty() => Err(PackProblem::NoSamples),
        Err(_) => Err(PackProblem::NoEnd(before(&members))),
    }
}

/// Returns whether nothing but zeros follows, as after the last member of one archive.
fn rest_is_zero(file: &fs::File, mut start: u64) -> io::Result<bool> {
    let mut bytes = vec![0u8; 1 << 16];
    loop {
        match file.read_at(&mut bytes, start)? {
            0 => return Ok(true),
            read if bytes[..read].iter().all(|byte| *byte == 0) => start += read as u64,
            _ => return Ok(false),
        }
    }
}

#[cfg(test)]
mod tests;
