//! The secret that the agents of a run share.

use rustix::fs::OFlags;
use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use std::fmt;
use std::fs::{OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// In bytes.
const SHORTEST: usize = 16;
const LONGEST: usize = 4 << 10;

/// A key derived from the secret's text.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    key: [u8; 32],
}

/// The reasons for refusing a secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("cannot read the secret {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("the secret {} is not a regular file", path.display())]
    NotAFile { path: PathBuf },
    #[error(
        "group or others can read the secret {0} (its mode is {mode:03o}); run `chmod 600 {0}`",
        path.display()
    )]
    Readable { path: PathBuf, mode: u32 },
    #[error(
        "the secret has {bytes} bytes, but at least {SHORTEST} are needed; to make one, run `head -c 32 /dev/urandom | \
         base64 > FILE; chmod 600 FILE`"
    )]
    Short { bytes: usize },
    #[error("the secret has more than {LONGEST} bytes; use a shorter one")]
    Long,
}

impl Secret {
    /// Reads a secret from a file that only its owner can read.
    pub fn from_file(path: &Path) -> Result<Self, SecretError> {
        let error = |source| SecretError::Read { path: path.to_owned(), source };
        // Opening a named pipe must not wait.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(error)?;
        let metadata = file.metadata().map_err(error)?;
        if !metadata.is_file() {
            return Err(SecretError::NotAFile { path: path.to_owned() });
        }
        let mode = Permissions::mode(&metadata.permissions()) & 0o777;
        if mode & 0o077 != 0 {
            return Err(SecretError::Readable { path: path.to_owned(), mode });
        }
        let mut text = Vec::new();
        file.take(LONGEST as u64 + 1).read_to_end(&mut text).map_err(error)?;
        Self::from_text(&text)
    }

    /// Derives the key from a secret's text, such as the value of an environment variable. Newlines at the end
    /// do not count.
    pub fn from_text(text: &[u8]) -> Result<Self, SecretError> {
        let end = text.iter().rposition(|byte| !b"\r\n".contains(byte)).map_or(0, |last| last + 1);
        match end {
            _ if text.len() > LONGEST => Err(SecretError::Long),
            ..SHORTEST => Err(SecretError::Short { bytes: end }),
            _ => Ok(Self { key: hash(&text[..end]) }),
        }
    }

    /// For runs without a secret: their connections are encrypted, but anyone can open one.
    pub fn none() -> Self {
        Self { key: [0; 32] }
    }

    pub fn is_none(&self) -> bool {
        self.key == [0; 32]
    }

    pub(super) fn key(&self) -> &[u8; 32] {
        &self.key
    }
}

/// Shows nothing of the key.
impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret")
    }
}

fn hash(text: &[u8]) -> [u8; 32] {
    let mut key = [0; 32];
    let hash = DefaultResolver.resolve_hash(&HashChoice::Blake2s);
    let mut hash = hash.expect("this build of snow has BLAKE2s");
    hash.input(b"dtrain secret\0");
    hash.input(text);
    hash.result(&mut key);
    key
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::fs;

    const TEXT: &[u8] = b"0123456789abcdef";

    fn file(text: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        (folder, path)
    }

    #[test]
    fn a_file_and_a_variable_with_the_same_text_are_the_same_secret() {
        let (_folder, path) = file(&[TEXT, b"\n"].concat(), 0o600);
        let secret = Secret::from_file(&path).unwrap();
        assert_eq!(secret, Secret::from_text(TEXT).unwrap());
        assert_ne!(secret, Secret::from_text(b"0123456789abcdeg").unwrap());
        assert!(!secret.is_none() && Secret::none().is_none());
        assert_eq!(format!("{secret:?}"), "Secret");
    }

    #[test]
    fn a_secret_that_others_can_read_is_refused() {
        for mode in [0o640, 0o604, 0o620, 0o601] {
            let (_folder, path) = file(TEXT, mode);
            let error = Secret::from_file(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("its mode is {mode:o}")), "{error}");
            assert!(error.ends_with(&format!("run `chmod 600 {}`", path.display())), "{error}");
        }
        let (_folder, path) = file(TEXT, 0o400);
        Secret::from_file(&path).unwrap();
    }

    #[test]
    fn a_short_or_long_text_is_refused() {
        for text in [&b""[..], b"\n", b"0123456789abcde\n"] {
            let error = Secret::from_text(text).unwrap_err().to_string();
            assert!(error.contains("at least 16 are needed") && error.contains("head -c 32 /dev/urandom"));
        }
        Secret::from_text(&[b'a'; LONGEST]).unwrap();
        assert!(matches!(Secret::from_text(&[b'a'; LONGEST + 1]), Err(SecretError::Long)));
        let (_folder, path) = file(&[b'a'; LONGEST + 1], 0o600);
        assert!(matches!(Secret::from_file(&path), Err(SecretError::Long)));
    }

    #[test]
    fn a_missing_file_and_a_folder_and_a_pipe_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let missing = Secret::from_file(&folder.path().join("none")).unwrap_err().to_string();
        assert!(
            missing.contains("cannot read the secret") && missing.contains("none: No such file"),
            "{missing}"
        );
        assert!(matches!(Secret::from_file(folder.path()), Err(SecretError::NotAFile { .. })));
        let pipe = folder.path().join("pipe");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, rustix::fs::Mode::RUSR, 0).unwrap();
        assert!(matches!(Secret::from_file(&pipe), Err(SecretError::NotAFile { .. })));
    }
}
