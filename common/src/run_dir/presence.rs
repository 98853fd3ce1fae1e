//! The process that uses a run directory, for readers: nothing is locked or written.

use std::fs::{self, File};
use std::io::{self, Read};
use std::time::{Duration, SystemTime};

use super::RunDir;
use super::lease::{SUFFIX, holder::Holder};
use super::lock::{RUN, TRAINER};
use crate::files::none_if_missing;

/// The most bytes read of a lease; its holder writes far fewer.
const LONGEST: u64 = 4096;

/// The launcher or rank 0 that a lease in the run directory names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presence {
    pub pid: u32,
    pub host: String,
    pub life: Life,
}

/// What a reader can know of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    Running,
    /// It ended without removing its lease: it was killed, or its machine stopped.
    Ended,
    /// On another machine or in another container. Its lease was renewed this long ago, by the clocks of this
    /// machine and of the file server.
    Unseen(Duration),
}

impl RunDir {
    /// Returns the process that uses this folder, or that ended without giving it up; `None` without a lease.
    ///
    /// # Errors
    ///
    /// A lease that cannot be read. Text that is not a lease is none.
    pub fn presence(&self, now: SystemTime) -> io::Result<Option<Presence>> {
        let launcher = self.presence_of(RUN, now)?;
        // Rank 0 may run without a launcher, and may outlive it for a moment.
        match launcher {
            Some(Presence { life: Life::Running, .. }) => Ok(launcher),
            _ => Ok(self.presence_of(TRAINER, now)?.filter(|_| launcher.is_none()).or(launcher)),
        }
    }

    fn presence_of(&self, name: &str, now: SystemTime) -> io::Result<Option<Presence>> {
        let path = self.root().join(format!("{name}{SUFFIX}"));
        // Opening a pipe would wait for its writer.
        let Some(kind) = none_if_missing(fs::symlink_metadata(&path))? else { return Ok(None) };
        if !kind.is_file() {
            return Ok(None);
        }
        let Some(file) = none_if_missing(File::open(&path))? else { return Ok(None) };
        // Of the open file: a network file system then asks its server.
        let renewed = file.metadata()?.modified()?;
        let mut bytes = Vec::new();
        file.take(LONGEST).read_to_end(&mut bytes)?;
        let Some(holder) = Holder::parse(&String::from_utf8_lossy(&bytes)) else { return Ok(None) };
        let life = match holder.is_alive(&Holder::this()) {
            Some(true) => Life::Running,
            Some(false) => Life::Ended,
            None => Life::Unseen(now.duration_since(renewed).unwrap_or_default()),
        };
        Ok(Some(Presence { pid: holder.pid, host: holder.host, life }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_run_is_present_until_it_gives_the_folder_up() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let now = SystemTime::now();
        assert_eq!(run_dir.presence(now).unwrap(), None);
        for claim in [RunDir::claim, |run_dir: &RunDir| run_dir.claim_training(Duration::ZERO)] {
            let lock = claim(&run_dir).unwrap();
            let presence = run_dir.presence(now).unwrap().unwrap();
            assert_eq!((presence.pid, presence.life), (std::process::id(), Life::Running));
            assert_eq!(presence.host, crate::host::name());
            drop(lock);
            assert_eq!(run_dir.presence(now).unwrap(), None);
        }
    }

    #[test]
    fn a_process_that_ended_and_one_elsewhere_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let lease = folder.path().join(".lock.lease");
        let own = Holder::this();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let ended = Holder { pid: child.id(), ..own.clone() };
        fs::write(&lease, ended.text(3)).unwrap();
        let later = fs::metadata(&lease).unwrap().modified().unwrap() + Duration::from_secs(90);
        let life = |now| run_dir.presence(now).unwrap().map(|presence| presence.life);
        assert_eq!(life(later), Some(Life::Ended));
        // The launcher's lease decides, unless it is absent.
        fs::write(folder.path().join(".trainer.lock.lease"), own.text(0)).unwrap();
        assert_eq!(life(later), Some(Life::Ended));
        let far = Holder { host: "far".to_owned(), ..own };
        fs::write(&lease, far.text(3)).unwrap();
        let renewed = fs::metadata(&lease).unwrap().modified().unwrap();
        let later = renewed + Duration::from_secs(90);
        assert_eq!(life(later), Some(Life::Unseen(Duration::from_secs(90))));
        assert_eq!(life(SystemTime::UNIX_EPOCH), Some(Life::Unseen(Duration::ZERO)), "clocks differ");
        fs::write(&lease, "process").unwrap();
        assert_eq!(life(later), Some(Life::Running), "rank 0 alone");
    }
}
