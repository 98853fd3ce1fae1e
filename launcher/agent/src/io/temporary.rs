//! The temporary folder of a run. The guardian creates it, and removes it after the launcher, however that
//! ended. If the guardian was killed, the launcher empties and removes the folder.

use anyhow::Context;
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Only the user may access it, whatever the umask.
const MODE: u32 = 0o700;

/// The folders to try if TMPDIR's folder cannot be used.
const OTHERS: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// The folder of one run. On drop, its creator removes it; any other process only if it is empty.
#[derive(Debug)]
pub struct Temporary {
    folder: PathBuf,
    _made: Option<TempDir>,
}

impl Temporary {
    /// Creates it in TMPDIR. If that is impossible, warns on standard error and uses another folder.
    pub fn make() -> anyhow::Result<Self> {
        let (folder, warning) = make_in("dtrain-", &std::env::temp_dir(), &OTHERS.map(Path::new))?;
        if let Some(warning) = warning {
            // If standard error is closed, no user can be warned.
            let _ = writeln!(io::stderr(), "dtrain: warning: {warning}");
        }
        Ok(Self { folder: folder.path().to_owned(), _made: Some(folder) })
    }

    pub fn of_guardian(folder: PathBuf) -> Self {
        Self { folder, _made: None }
    }

    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Creates a subfolder whose name begins with `prefix`. Dropping removes it.
    pub fn folder(&self, prefix: &str) -> anyhow::Result<TempDir> {
        private(&self.folder, prefix)
            .with_context(|| format!("cannot create a temporary folder in {}", self.folder.display()))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Fails if the folder is not empty; its creator removes it then.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Creates a lasting folder in TMPDIR or elsewhere; the guardian has warned then.
pub fn make_lasting(prefix: &str) -> anyhow::Result<PathBuf> {
    let (folder, _) = make_in(prefix, &std::env::temp_dir(), &OTHERS.map(Path::new))?;
    Ok(folder.keep())
}

/// Creates the folder in `wanted`, or in the first usable folder of `others`, with a warning.
fn make_in(prefix: &str, wanted: &Path, others: &[&Path]) -> anyhow::Result<(TempDir, Option<String>)> {
    let refused = match private(wanted, prefix) {
        Ok(folder) => return Ok((folder, None)),
        Err(error) => error,
    };
    let mut others = others.iter();
    let Some((other, folder)) = others.find_map(|other| Some((other, private(other, prefix).ok()?))) else {
        return Err(refused).with_context(|| {
            format!(
                "cannot create a temporary folder in {}; set TMPDIR to a writable folder",
                wanted.display()
            )
        });
    };
    let warning = format!(
        "temporary folder {}: {refused}; using {}; set TMPDIR to a writable folder",
        wanted.display(),
        other.display()
    );
    Ok((folder, Some(warning)))
}

fn private(parent: &Path, prefix: &str) -> io::Result<TempDir> {
    tempfile::Builder::new().prefix(prefix).permissions(Permissions::from_mode(MODE)).tempdir_in(parent)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_wanted_place_comes_first_and_others_are_warned_of() {
        let good = tempfile::tempdir().unwrap();
        let missing = good.path().join("missing");
        let (folder, warning) = make_in("a-", good.path(), &[]).unwrap();
        assert_eq!((folder.path().parent(), warning), (Some(good.path()), None));
        let (folder, warning) = make_in("a-", &missing, &[&missing, good.path()]).unwrap();
        assert_eq!(folder.path().parent(), Some(good.path()));
        let warning = warning.unwrap();
        assert!(warning.contains(missing.to_str().unwrap()), "{warning}");
        let error = make_in("a-", &missing, &[]).unwrap_err().to_string();
        assert!(error.contains("TMPDIR"), "{error}");
    }

    #[test]
    fn folders_are_private_and_go_when_dropped() {
        let temporary = Temporary::make().unwrap();
        let inner = temporary.folder("beat-").unwrap();
        for folder in [temporary.path(), inner.path()] {
            let mode = fs::metadata(folder).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, MODE);
        }
        let path = temporary.path().to_owned();
        drop(temporary);
        assert!(!path.exists());
    }
}
