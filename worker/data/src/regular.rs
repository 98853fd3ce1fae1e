//! Opening of regular files only: a named pipe among the images must not hang a run.

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file, or a link to one. Others may wait for a writer or act on a device.
pub(super) fn open(path: &Path) -> io::Result<File> {
    only_file(fs::metadata(path)?.file_type())?;
    // The file may have been replaced since; open without blocking and check again.
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    only_file(file.metadata()?.file_type())?;
    Ok(file)
}

/// Replaces `bytes` with the content of a regular file.
pub(super) fn read(path: &Path, bytes: &mut Vec<u8>) -> io::Result<()> {
    bytes.clear();
    open(path)?.read_to_end(bytes)?;
    Ok(())
}

fn only_file(kind: FileType) -> io::Result<()> {
    let found = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => "a folder",
        () if kind.is_fifo() => "a named pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {found}, not a file; remove it")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn only_files_and_links_to_them_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), b"content").unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        let mut bytes = vec![1];
        for name in ["file", "link"] {
            read(&path(name), &mut bytes).unwrap();
            assert_eq!(bytes, b"content");
        }
        mknodat(CWD, path("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let _socket = UnixListener::bind(path("socket")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path("device")).unwrap();
        for (name, words) in
            [("pipe", "a named pipe"), ("socket", "a socket"), ("device", "a device"), (".", "a folder")]
        {
            let text = open(&path(name)).unwrap_err().to_string();
            assert!(text.contains(words), "{name}: {text}");
        }
        let gone = open(&path("gone")).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }
}
