//! The fence of a node whose launcher stands still.
//!
//! The launcher writes the end of its lease and the time of its last sign of life to two files in the folder of
//! its guardian. When the lease has ended and the launcher gives no sign, such as after SIGSTOP, the guardian
//! kills it, and its workers with it: by then, another node may start the next epoch. The workers read the
//! same lease before they change the run directory.

use super::thread;
use dtrain_common::agent_lease::Lease;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time between two looks of the guardian, and the number of looks that must agree.
const LOOK: Duration = Duration::from_millis(50);
const LOOKS: u32 = 4;
/// A launcher that lives gives a sign at least this often while its workers run.
pub const SIGN: Duration = Duration::from_millis(100);
/// Without a sign for this time, the launcher stands still.
const STILL: Duration = Duration::from_millis(300);
/// A launcher whose lease has ended gets this time to kill its workers itself.
const GRACE: Duration = Duration::from_millis(100);

/// The launcher's side.
#[derive(Debug)]
pub struct Fence {
    lease: Lease,
    sign: File,
}

impl Fence {
    /// Creates the files in the guardian's folder, with a lease that never ends.
    pub fn create(folder: &Path) -> io::Result<Self> {
        let lease = Lease::create(&lease_file(folder))?;
        lease.write(None)?;
        let fence = Self { lease, sign: File::create(sign_file(folder))? };
        fence.sign()?;
        Ok(fence)
    }

    /// Writes the end of the lease; `None` while no worker runs. Call it at least once per [`SIGN`].
    pub fn update(&self, end: Option<Duration>) -> io::Result<()> {
        self.sign()?;
        self.lease.write(end)
    }

    fn sign(&self) -> io::Result<()> {
        let now = u64::try_from(Lease::now().as_nanos()).unwrap_or(u64::MAX);
        self.sign.write_all_at(&now.to_le_bytes(), 0)
    }
}

/// Returns the file of the lease, for the workers.
pub fn lease_file(folder: &Path) -> PathBuf {
    folder.join("lease")
}

fn sign_file(folder: &Path) -> PathBuf {
    folder.join("sign")
}

/// Calls `kill` on a new thread when the lease has ended and the launcher stands still. The files may be
/// created later.
pub(super) fn watch(folder: PathBuf, kill: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::start("fence", move || {
        let mut looks = 0;
        // After a suspension of the machine, the launcher gets the time of some looks for its sign.
        while looks < LOOKS {
            std::thread::sleep(LOOK);
            looks = if stands_still(&folder, Lease::now()).unwrap_or(false) { looks + 1 } else { 0 };
        }
        kill();
    })
}

fn stands_still(folder: &Path, now: Duration) -> io::Result<bool> {
    let read = |path: PathBuf| {
        let mut bytes = [0; 8];
        File::open(path)?.read_exact_at(&mut bytes, 0)?;
        Ok::<_, io::Error>(Duration::from_nanos(u64::from_le_bytes(bytes)))
    };
    let (end, sign) = (read(lease_file(folder))?, read(sign_file(folder))?);
    Ok(end.saturating_add(GRACE) < now && sign.saturating_add(STILL) < now)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn only_a_launcher_without_a_sign_after_its_lease_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |later: u64| stands_still(folder.path(), Lease::now() + Duration::from_millis(later));
        assert!(at(10_000).is_err(), "not on several nodes");
        let fence = Fence::create(folder.path()).unwrap();
        assert!(!at(10_000).unwrap(), "no worker runs");
        fence.update(Some(Lease::now() + Duration::from_secs(1))).unwrap();
        assert!(!at(900).unwrap(), "the lease lasts");
        assert!(at(1200).unwrap());
        fence.update(Some(Lease::now().saturating_sub(Duration::from_secs(1)))).unwrap();
        assert!(!at(100).unwrap(), "the launcher lives, and kills its workers itself");
        assert!(at(400).unwrap());
        fence.update(None).unwrap();
        assert!(!at(10_000).unwrap());
    }
}
