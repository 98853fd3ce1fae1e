//! A file to which another process appends: each read returns its new bytes only.

use super::files::{self, Problem};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

/// Bytes before the place of the next read. If they change, another process has rewritten the file.
const MARK: u64 = 4096;
/// Bytes of one read of lines.
const CHUNK: u64 = 4 << 20;
/// The longest line that is used.
const LONGEST: usize = 4 << 20;

/// A file, and how far it was read.
#[derive(Debug)]
pub(crate) struct Growing {
    path: PathBuf,
    /// The first read begins this long before the end.
    tail: u64,
    offset: u64,
    mark: Vec<u8>,
    /// Device and number of the file.
    identity: Option<(u64, u64)>,
}

/// What a read returns.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Grown {
    /// Whether this is the beginning of another content: earlier bytes no longer count.
    pub(crate) is_new: bool,
    pub(crate) bytes: Vec<u8>,
    /// Whether more bytes can be read at once.
    pub(crate) has_more: bool,
}

impl Growing {
    /// Reads the file from its beginning, or from `tail` bytes before its end.
    pub(crate) fn new(path: PathBuf, tail: u64) -> Self {
        Self { path, tail, offset: 0, mark: Vec::new(), identity: None }
    }

    /// Reads at most `limit` new bytes. A missing file is an empty one.
    pub(crate) fn read(&mut self, limit: u64) -> Result<Grown, Problem> {
        let Some((file, length)) = files::open(&self.path)? else {
            let was_there = self.identity.take().is_some();
            return Ok(Grown { is_new: was_there, ..Grown::default() });
        };
        self.read_open(&file, length, limit).map_err(|error| Problem::Io(files::name(&self.path), error))
    }

    fn read_open(&mut self, file: &File, length: u64, limit: u64) -> io::Result<Grown> {
        let about = file.metadata()?;
        let identity = Some((about.dev(), about.ino()));
        let is_new = self.identity != identity || length < self.offset || !self.has_mark(file)?;
        if is_new {
            (self.identity, self.mark) = (identity, Vec::new());
            self.offset = length.saturating_sub(self.tail);
        }
        let begins_within_line = is_new && self.offset > 0;
        let count = (length - self.offset).min(limit);
        let mut bytes = Vec::new();
        io::Seek::seek(&mut &*file, io::SeekFrom::Start(self.offset))?;
        file.take(count).read_to_end(&mut bytes)?;
        self.offset += bytes.len() as u64;
        let kept = bytes.len().saturating_sub(MARK as usize);
        if bytes.len() as u64 >= MARK || is_new {
            self.mark = bytes[kept..].to_vec();
        } else {
            self.mark.extend_from_slice(&bytes);
            let old = self.mark.len().saturating_sub(MARK as usize);
            self.mark.drain(..old);
        }
        if begins_within_line {
            let rest = bytes.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            bytes.drain(..rest);
        }
        Ok(Grown { is_new, bytes, has_more: self.offset < length })
    }

    fn has_mark(&self, file: &File) -> io::Result<bool> {
        let mut found = vec![0; self.mark.len()];
        match file.read_exact_at(&mut found, self.offset - self.mark.len() as u64) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            read => read.map(|()| found == self.mark),
        }
    }
}

/// The lines of a file to which another process appends. A line without an end waits for it; a longer one than 4 MiB is damaged.
#[derive(Debug)]
pub(crate) struct Lines {
    file: Growing,
    /// The beginning of a line that is being written.
    rest: Vec<u8>,
}

impl Lines {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { file: Growing::new(path, u64::MAX), rest: Vec::new() }
    }

    /// Adds a part of the new lines to `state`, which begins anew if the file was rewritten. Returns whether there is more to read.
    pub(crate) fn read<S: Default>(
        &mut self,
        state: &mut S,
        add: fn(&mut S, &[u8]),
    ) -> Result<bool, Problem> {
        let grown = self.file.read(CHUNK)?;
        if grown.is_new {
            self.rest.clear();
            *state = S::default();
        }
        let mut bytes = grown.bytes.as_slice();
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            if self.rest.is_empty() {
                add(state, &bytes[..end]);
            } else {
                self.keep(&bytes[..end]);
                add(state, &std::mem::take(&mut self.rest));
            }
            bytes = &bytes[end + 1..];
        }
        self.keep(bytes);
        Ok(grown.has_more)
    }

    /// Keeps the beginning of a line. One that is too long is no JSON any more.
    fn keep(&mut self, bytes: &[u8]) {
        let room = LONGEST.saturating_sub(self.rest.len());
        self.rest.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Returns whether the last line has no end: it is being written, or its writer was killed.
    pub(crate) fn is_cut(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Returns whether the file was there at the last reading.
    pub(crate) fn is_there(&self) -> bool {
        self.file.identity.is_some()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::fs;
    use std::io::Write;

    fn scene() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        (folder, path)
    }

    fn append(path: &PathBuf, text: &str) {
        File::options().append(true).create(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Returns whether the content is another one, and the new bytes.
    fn next(growing: &mut Growing) -> (bool, String) {
        let mut all = (false, String::new());
        loop {
            let grown = growing.read(7).unwrap();
            all.0 |= grown.is_new;
            all.1 += &String::from_utf8(grown.bytes).unwrap();
            if !grown.has_more {
                return all;
            }
        }
    }

    #[test]
    fn each_byte_is_read_once() {
        let (_folder, path) = scene();
        let mut growing = Growing::new(path.clone(), u64::MAX);
        assert_eq!(next(&mut growing), (false, String::new()));
        append(&path, "one\ntwo\nthr");
        assert_eq!(next(&mut growing), (true, "one\ntwo\nthr".into()));
        append(&path, "ee\n");
        assert_eq!(next(&mut growing), (false, "ee\n".into()));
        append(&path, &"long ".repeat(50));
        assert_eq!(next(&mut growing), (false, "long ".repeat(50)));
        assert_eq!(next(&mut growing), (false, String::new()));
    }

    #[test]
    fn a_rewritten_file_is_read_again() {
        let (_folder, path) = scene();
        let mut growing = Growing::new(path.clone(), u64::MAX);
        append(&path, "1\n2\n3\n");
        next(&mut growing);
        // A resumed run cuts the lines of steps that it repeats; soon the file is longer than before.
        File::options().write(true).open(&path).unwrap().set_len(2).unwrap();
        append(&path, "X\nY\nZ\n");
        assert_eq!(next(&mut growing), (true, "1\nX\nY\nZ\n".into()));
        File::options().write(true).open(&path).unwrap().set_len(2).unwrap();
        assert_eq!(next(&mut growing), (true, "1\n".into()));
        // Log rotation: another file of that name.
        fs::rename(&path, path.with_extension("old")).unwrap();
        append(&path, "1\n");
        assert_eq!(next(&mut growing), (true, "1\n".into()));
        fs::remove_file(&path).unwrap();
        assert_eq!(next(&mut growing), (true, String::new()));
        assert_eq!(next(&mut growing), (false, String::new()));
        append(&path, "1\n2\n");
        assert_eq!(next(&mut growing), (true, "1\n2\n".into()));
    }

    #[test]
    fn a_tail_begins_with_a_whole_line() {
        let (_folder, path) = scene();
        append(&path, "1234\n5678\n90");
        assert_eq!(next(&mut Growing::new(path.clone(), 10)), (true, "5678\n90".into()));
        assert_eq!(next(&mut Growing::new(path.clone(), 12)), (true, "1234\n5678\n90".into()));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(Growing::new(path, 10).read(9).is_err());
    }

    #[test]
    fn a_line_without_end_does_not_fill_the_memory() {
        let (_folder, path) = scene();
        fs::write(&path, "x".repeat(LONGEST + 10) + "\nlast\ncut").unwrap();
        let mut lines = Lines::new(path);
        let mut found = Vec::new();
        let add = |found: &mut Vec<usize>, line: &[u8]| found.push(line.len());
        while lines.read(&mut found, add).unwrap() {}
        assert_eq!(found, [LONGEST, 4]);
        assert!(lines.is_cut() && lines.rest == b"cut");
    }
}
