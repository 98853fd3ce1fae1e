//! A log file of bounded size.

use memchr::{memchr, memrchr};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// A log file that is begun anew when it is full; the full one stays beside it, with `.1` after its name, until the
/// next is full.
///
/// Both hold whole lines only, and nothing is missing between them. A line that is larger than the bound has a file
/// to itself.
#[derive(Debug)]
pub(crate) struct RotatingLog {
    path: PathBuf,
    file: File,
    /// Bytes in `file`, all of them whole lines.
    len: u64,
    most: u64,
}

impl RotatingLog {
    /// Makes the file, of at most `most` bytes.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn create(path: PathBuf, most: Option<u64>) -> io::Result<Self> {
        Ok(Self {
            file: open(&path)?,
            path,
            len: 0,
            most: most.unwrap_or(u64::MAX),
        })
    }

    /// Where it lies.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds whole lines; only the last of a stream may have no end.
    ///
    /// # Errors
    /// They cannot be written, or a full file not be put aside. What was written of a line is taken back then.
    pub(crate) fn write(&mut self, mut lines: &[u8]) -> io::Result<()> {
        while !lines.is_empty() {
            match self.fitting(lines) {
                0 => self.rotate()?,
                count => {
                    let (now, later) = lines.split_at(count);
                    self.append(now)?;
                    lines = later;
                }
            }
        }
        Ok(())
    }

    /// How many bytes of `lines` go into the file before it is full; at least one line into an empty one.
    fn fitting(&self, lines: &[u8]) -> usize {
        let room = usize::try_from(self.most.saturating_sub(self.len)).unwrap_or(usize::MAX);
        if lines.len() <= room {
            return lines.len();
        }
        match memrchr(b'\n', &lines[..room]) {
            Some(end) => end + 1,
            None if self.len > 0 => 0,
            None => memchr(b'\n', lines).map_or(lines.len(), |end| end + 1),
        }
    }

    fn rotate(&mut self) -> io::Result<()> {
        let mut old = self.path.clone().into_os_string();
        old.push(".1");
        fs::rename(&self.path, old)?;
        self.file = open(&self.path)?;
        self.len = 0;
        Ok(())
    }

    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < lines.len() {
            match self.file.write(&lines[written..]) {
                Ok(0) => return self.cut(&lines[..written], ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.cut(&lines[..written], error),
            }
        }
        self.len += lines.len() as u64;
        Ok(())
    }

    /// Takes back the line that is only begun in `written`, what was written before `error`.
    fn cut(&mut self, written: &[u8], error: io::Error) -> io::Result<()> {
        self.len += memrchr(b'\n', written).map_or(0, |end| end as u64 + 1);
        // Only ever shortened: somebody else may have emptied it.
        if self.file.metadata().is_ok_and(|meta| meta.len() > self.len) {
            // What cannot be taken back stays; the error is told in any case.
            let _ = self.file.set_len(self.len);
        }
        Err(error)
    }
}

/// Opens for appending, so that somebody who empties the file while it is written leaves no hole in it.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_default()
    }

    /// What lies in `.1` and in the log after these pieces.
    fn after(most: Option<u64>, pieces: &[&str]) -> (String, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stdout.log");
        let mut log = RotatingLog::create(path.clone(), most).unwrap();
        for piece in pieces {
            log.write(piece.as_bytes()).unwrap();
        }
        assert_eq!(log.path(), path);
        (read(&folder.path().join("stdout.log.1")), read(&path))
    }

    fn owned(old: &str, new: &str) -> (String, String) {
        (old.to_owned(), new.to_owned())
    }

    #[test]
    fn a_full_file_is_put_aside() {
        assert_eq!(after(Some(6), &["ab\n", "cd\n"]), owned("", "ab\ncd\n"));
        assert_eq!(after(Some(6), &["ab\n", "cd\n", "e\n"]), owned("ab\ncd\n", "e\n"));
        assert_eq!(after(Some(6), &["ab\ncd\ne\n"]), owned("ab\ncd\n", "e\n"));
        assert_eq!(
            after(Some(6), &["a\nb\nc\nd\ne\nf\ng\n"]),
            owned("d\ne\nf\n", "g\n")
        );
        assert_eq!(after(None, &["ab\n"; 100]), owned("", &"ab\n".repeat(100)));
    }

    #[test]
    fn a_line_beyond_the_bound_has_a_file_to_itself() {
        assert_eq!(after(Some(4), &["a\n0123456\nb\n"]), owned("0123456\n", "b\n"));
        assert_eq!(after(Some(4), &["0123456\n"]), owned("", "0123456\n"));
        assert_eq!(after(Some(4), &["ab\n", "last"]), owned("ab\n", "last"));
    }

    #[test]
    fn a_full_disk_is_an_error_and_no_line_stays_begun() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stdout.log");
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        let mut log = RotatingLog::create(path, None).unwrap();
        let error = log.write(b"lost\n").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);

        let path = folder.path().join("begun.log");
        let mut log = RotatingLog::create(path.clone(), None).unwrap();
        log.write(b"one\n").unwrap();
        fs::write(&path, "one\ntwo\nthr").unwrap();
        log.cut(b"two\nthr", ErrorKind::StorageFull.into()).unwrap_err();
        assert_eq!(read(&path), "one\ntwo\n");
    }

    #[test]
    fn a_file_that_cannot_be_put_aside_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logs/stdout.log");
        fs::create_dir(folder.path().join("logs")).unwrap();
        let mut log = RotatingLog::create(path, Some(3)).unwrap();
        log.write(b"ab\n").unwrap();
        fs::remove_dir_all(folder.path().join("logs")).unwrap();
        assert_eq!(log.write(b"cd\n").unwrap_err().kind(), ErrorKind::NotFound);
    }

    proptest! {
        #[test]
        fn the_files_hold_the_last_lines_whole_and_within_the_bound(
            pieces in prop::collection::vec("([a-c]{0,5}\n){0,4}", 0..20),
            most in 6_u64..30,
        ) {
            let all = pieces.concat();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let (old, new) = after(Some(most), &pieces);
            prop_assert!(all.ends_with(&[old.as_str(), &new].concat()));
            prop_assert!(old.is_empty() || old.ends_with('\n'));
            prop_assert!(old.len() as u64 <= most && new.len() as u64 <= most);
            // Nothing is given up before it has to be.
            prop_assert!(old.len() + new.len() == all.len() || old.len() as u64 > most - 6);
            let before = all.len() - old.len() - new.len();
            prop_assert!(before == 0 || all.as_bytes()[before - 1] == b'\n');
        }
    }
}
