//! A log file of bounded size.

use super::split::{LONGEST_LINE, last_end};
use memchr::memchr2;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A log file that rotates when it is full; the full file gets the suffix `.1`.
///
/// Every byte is written at once. Both files hold whole lines or frames of a progress bar, without a gap: an
/// unfinished line moves into the new file. A line larger than the bound has a file alone.
#[derive(Debug)]
pub struct RotatingLog {
    pub(super) path: PathBuf,
    file: File,
    /// Bytes in `file`.
    len: u64,
    /// Bytes of the unfinished line at the end of `file`.
    unfinished: u64,
    /// Whether the last byte is a carriage return: the next byte decides whether a frame has ended.
    ends_with_cr: bool,
    max_bytes: u64,
}

impl RotatingLog {
    /// Creates the file with a bound of `max_bytes` bytes.
    pub fn create(path: PathBuf, max_bytes: u64) -> io::Result<Self> {
        Ok(Self { file: open(&path)?, path, len: 0, unfinished: 0, ends_with_cr: false, max_bytes })
    }

    /// Appends bytes, which need not end with a line. On an error, removes the unfinished line.
    pub fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some(first) = bytes.first() {
            if self.ends_with_cr && *first != b'\n' {
                self.unfinished = 0;
            }
            match self.fitting(bytes) {
                0 => self.rotate()?,
                count => {
                    let (now, later) = bytes.split_at(count);
                    self.append(now)?;
                    bytes = later;
                }
            }
        }
        Ok(())
    }

    /// Returns how many of `bytes` fit into the file; a line that has the file alone is not cut.
    fn fitting(&self, bytes: &[u8]) -> usize {
        let room = usize::try_from(self.max_bytes.saturating_sub(self.len)).unwrap_or(usize::MAX);
        if bytes.len() <= room {
            return bytes.len();
        }
        match last_end(&bytes[..room]) {
            Some(end) => end,
            None if self.unfinished != self.len => 0,
            // Binary data without line ends is bounded too.
            None if self.len >= self.max_bytes.max(LONGEST_LINE as u64) => 0,
            None => memchr2(b'\n', b'\r', bytes).map_or(bytes.len(), |end| end + 1),
        }
    }

    fn rotate(&mut self) -> io::Result<()> {
        let mut old = self.path.clone().into_os_string();
        old.push(".1");
        fs::rename(&self.path, old)?;
        let full = std::mem::replace(&mut self.file, open(&self.path)?);
        let whole = self.len - self.unfinished;
        let moved = if whole == 0 { 0 } else { self.unfinished };
        (self.len, self.unfinished) = (0, 0);
        let mut line = vec![0; moved as usize];
        // Another process may have emptied the full file.
        if moved > 0 && full.read_exact_at(&mut line, whole).is_ok() {
            full.set_len(whole)?;
            self.append(&line)?;
        }
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            match self.file.write(&bytes[written..]) {
                Ok(0) => return self.cut(&bytes[..written], ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.cut(&bytes[..written], error),
            }
        }
        self.count(bytes);
        Ok(())
    }

    fn count(&mut self, bytes: &[u8]) {
        self.len += bytes.len() as u64;
        self.ends_with_cr = bytes.last() == Some(&b'\r');
        self.unfinished = match last_end(bytes) {
            Some(end) => (bytes.len() - end) as u64,
            None => self.unfinished + bytes.len() as u64,
        };
    }

    /// Counts `written`, the bytes written before `error`, and removes the unfinished line.
    fn cut(&mut self, written: &[u8], error: io::Error) -> io::Result<()> {
        self.count(written);
        self.len -= self.unfinished;
        self.unfinished = 0;
        // Never longer: another process may have emptied the file.
        if self.file.metadata().is_ok_and(|meta| meta.len() > self.len) {
            let _ = self.file.set_len(self.len);
        }
        Err(error)
    }
}

/// Opens for appending, so that emptying the file during the run leaves no hole in it.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).read(true).open(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_default()
    }

    /// Returns the contents of `.1` and of the log after these pieces.
    fn contents_after(max_bytes: Option<u64>, pieces: &[&str]) -> (String, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stdout.log");
        let mut log = RotatingLog::create(path.clone(), max_bytes.unwrap_or(u64::MAX)).unwrap();
        for piece in pieces {
            log.write(piece.as_bytes()).unwrap();
        }
        assert_eq!(log.path, path);
        (read(&folder.path().join("stdout.log.1")), read(&path))
    }

    fn owned(old: &str, new: &str) -> (String, String) {
        (old.to_owned(), new.to_owned())
    }

    #[test]
    fn a_full_file_is_put_aside() {
        assert_eq!(contents_after(Some(6), &["ab\n", "cd\n"]), owned("", "ab\ncd\n"));
        assert_eq!(contents_after(Some(6), &["ab\n", "cd\n", "e\n"]), owned("ab\ncd\n", "e\n"));
        assert_eq!(contents_after(Some(6), &["ab\ncd\ne\n"]), owned("ab\ncd\n", "e\n"));
        assert_eq!(contents_after(Some(6), &["a\nb\nc\nd\ne\nf\ng\n"]), owned("d\ne\nf\n", "g\n"));
        assert_eq!(contents_after(None, &["ab\n"; 100]), owned("", &"ab\n".repeat(100)));
    }

    #[test]
    fn a_line_beyond_the_bound_has_a_file_to_itself() {
        assert_eq!(contents_after(Some(4), &["a\n0123456\nb\n"]), owned("0123456\n", "b\n"));
        assert_eq!(contents_after(Some(4), &["0123456\n"]), owned("", "0123456\n"));
        assert_eq!(contents_after(Some(4), &["ab\n", "last"]), owned("ab\n", "last"));
    }

    #[test]
    fn a_line_that_has_only_begun_in_the_full_file_moves_into_the_new_one() {
        assert_eq!(contents_after(Some(8), &["ab\n", "cd", "ef", "gh\n"]), owned("ab\n", "cdefgh\n"));
        assert_eq!(
            contents_after(Some(8), &["ab\n", "cd", "efghijklm", "n\n"]),
            owned("ab\n", "cdefghijklmn\n")
        );
        assert_eq!(contents_after(Some(8), &["ab\n", "cd"]), owned("", "ab\ncd"));
    }

    #[test]
    fn frames_of_a_bar_keep_to_the_bound_too() {
        assert_eq!(
            contents_after(Some(8), &["\r10%", "\r20%", "\r30%", "\r40%"]),
            owned("20%\r", "30%\r40%")
        );
        for all in [
            (0..100).map(|n| format!("\r{n:03}%")).collect::<Vec<_>>(),
            (0..100).map(|n| format!("{n:03}%\r")).collect(),
        ] {
            let pieces: Vec<&str> = all.iter().map(String::as_str).collect();
            let (old, new) = contents_after(Some(50), &pieces);
            assert!(old.len() <= 50 && new.len() <= 50, "{old:?} {new:?}");
            assert!(all.concat().ends_with(&[old, new].concat()));
        }
    }

    #[test]
    fn a_full_disk_is_an_error_and_no_line_stays_begun() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stdout.log");
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        let mut log = RotatingLog::create(path, u64::MAX).unwrap();
        let error = log.write(b"lost\n").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);

        let path = folder.path().join("begun.log");
        let mut log = RotatingLog::create(path.clone(), u64::MAX).unwrap();
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
        let mut log = RotatingLog::create(path, 3).unwrap();
        log.write(b"ab\n").unwrap();
        fs::remove_dir_all(folder.path().join("logs")).unwrap();
        assert_eq!(log.write(b"cd\n").unwrap_err().kind(), ErrorKind::NotFound);
    }

    proptest! {
        #[test]
        fn the_files_hold_the_last_lines_whole_and_within_the_bound(
            pieces in prop::collection::vec("([a-c]{0,5}\n){0,4}", 0..20),
            max_bytes in 6_u64..30,
            chunk in 1_usize..12,
        ) {
            let all = pieces.concat();
            // The bytes arrive in pieces of any size.
            let pieces: Vec<&str> = (0..all.len()).step_by(chunk).map(|at| &all[at..all.len().min(at + chunk)]).collect();
            let (old, new) = contents_after(Some(max_bytes), &pieces);
            prop_assert!(all.ends_with(&[old.as_str(), &new].concat()));
            prop_assert!(old.is_empty() || old.ends_with('\n'));
            prop_assert!(old.len() as u64 <= max_bytes && new.len() as u64 <= max_bytes);
            // The file rotates only when it must.
            prop_assert!(old.len() + new.len() == all.len() || old.len() as u64 > max_bytes - 6);
            let before = all.len() - old.len() - new.len();
            prop_assert!(before == 0 || all.as_bytes()[before - 1] == b'\n');
        }
    }
}
