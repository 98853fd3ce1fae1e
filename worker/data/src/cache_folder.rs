//! The user's folder for files that can be made anew: `$XDG_CACHE_HOME/dtrain`, else `~/.cache/dtrain`.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns the folder of all; None without a home.
pub(super) fn folder() -> Option<PathBuf> {
    if cfg!(test) {
        return Some(env::temp_dir().join("dtrain-tests-cache"));
    }
    let of = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    of("XDG_CACHE_HOME").or_else(|| Some(of("HOME")?.join(".cache"))).map(|folder| folder.join("dtrain"))
}

/// Returns the path for what is kept of one file: the hash of its path, in a folder of this kind.
pub(super) fn of_file(kind: &str, path: &Path) -> Option<PathBuf> {
    let whole = path.canonicalize().ok()?;
    let hash = blake3::hash(whole.as_os_str().as_bytes()).to_hex();
    Some(folder()?.join(kind).join(&hash[..32]))
}

/// Writes a file as a whole: other processes see the old one or the new one.
pub(super) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    write_by(path, |file| file.write_all(content))
}

/// As [`write`], by a function.
pub(super) fn write_by(path: &Path, write: impl FnOnce(&mut fs::File) -> io::Result<()>) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    if folder.file_name().is_some() && !folder.exists() {
        fs::create_dir_all(folder)?;
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Several threads of several processes may write at once.
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let part = path.with_file_name(format!("{name}.{}-{number}.part", std::process::id()));
    let written = fs::File::create(&part).and_then(|mut file| write(&mut file));
    let moved = written.and_then(|()| fs::rename(&part, path));
    if moved.is_err() {
        let _ = fs::remove_file(&part);
    }
    moved
}
