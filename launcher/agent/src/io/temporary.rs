//! The temporary folder of a run. The guardian creates it, and removes it after the launcher, however that
//! ended. If the guardian was killed, the launcher empties and removes the folder. If both were killed, a later
//! guardian does: both hold a lock of the folder while they live.

use anyhow::Context;
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Only the user may access it, whatever the umask.
const MODE: u32 = 0o700;

/// The beginning of the folders' names.
const PREFIX: &str = "dtrain-agent-";

/// A folder without a lock may be one that was just made.
const NEW: Duration = Duration::from_secs(60);

/// The folders to try if TMPDIR's folder cannot be used.
const OTHERS: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// The folder of one run. On drop, its creator removes it; any other process only if it is empty.
#[derive(Debug)]
pub struct Temporary {
    folder: PathBuf,
    _made: Option<TempDir>,
    /// `None` on a file system without locks, where nobody removes the folder of another.
    _lock: Option<File>,
}

impl Temporary {
    /// Creates it in TMPDIR, or in another folder.
    pub fn make() -> anyhow::Result<Self> {
        Self::make_with(drop)
    }

    /// Creates it in TMPDIR. If that is impossible, warns and uses another folder.
    pub fn make_with(warn: impl FnOnce(String)) -> anyhow::Result<Self> {
        let (folder, warning) = make_in(&prefix(), &std::env::temp_dir(), &OTHERS.map(Path::new))?;
        if let Some(warning) = warning {
            warn(format!("dtrain: warning: {warning}"));
        }
        let lock = lock(folder.path(), FlockOperation::NonBlockingLockShared).ok();
        Ok(Self { folder: folder.path().to_owned(), _made: Some(folder), _lock: lock })
    }

    pub fn of_guardian(folder: PathBuf) -> Self {
        let lock = lock(&folder, FlockOperation::NonBlockingLockShared).ok();
        Self { folder, _made: None, _lock: lock }
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

/// Locks a folder until the file is closed.
fn lock(folder: &Path, how: FlockOperation) -> io::Result<File> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(folder, flags | OFlags::RDONLY, Mode::empty())?;
    rustix::fs::flock(&file, how)?;
    Ok(file.into())
}

/// Removes folders beside this one whose processes were all killed.
pub(super) fn remove_abandoned_beside(folder: &Path) {
    if let Some(parent) = folder.parent() {
        // What cannot be removed stays.
        let _ = remove_abandoned(parent, &prefix(), NEW);
    }
}

/// Returns the beginning of the names of this machine's folders: several machines may share a file system, but no locks.
fn prefix() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("{PREFIX}{}-", boot.split('-').next().unwrap_or_default())
}

/// Removes this user's folders of launches in `parent` that nobody has locked, and that are older than `new`.
fn remove_abandoned(parent: &Path, prefix: &str, new: Duration) -> io::Result<()> {
    let user = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(parent)?.flatten() {
        if !entry.file_name().as_encoded_bytes().starts_with(prefix.as_bytes()) {
            continue;
        }
        let Ok(found) = entry.metadata() else { continue };
        let age = found.modified().ok().and_then(|time| time.elapsed().ok());
        if found.is_dir()
            && found.uid() == user
            && age.is_some_and(|age| age >= new)
            && let Ok(_lock) = lock(&entry.path(), FlockOperation::NonBlockingLockExclusive)
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
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
    fn only_folders_whose_processes_are_gone_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let folder = parent.path().join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("file"), "").unwrap();
            folder
        };
        let [gone, used, other] = ["dtrain-agent-1", "dtrain-agent-2", "dtrain-logs-1"].map(make);
        let launcher = Temporary::of_guardian(used.clone());
        remove_abandoned(parent.path(), PREFIX, NEW).unwrap();
        assert!(gone.exists(), "it may have no lock yet");
        remove_abandoned(parent.path(), PREFIX, Duration::ZERO).unwrap();
        assert_eq!([&gone, &used, &other].map(|folder| folder.exists()), [false, true, true]);
        drop(launcher);
        assert!(used.exists(), "it is not empty");
        remove_abandoned(parent.path(), PREFIX, Duration::ZERO).unwrap();
        assert!(!used.exists());
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
