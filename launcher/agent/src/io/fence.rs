//! The fence of a node whose launcher stands still, and of one that was killed.
//!
//! The guardian makes a few bytes of memory without a name, which launcher and workers open by a link of `/proc`. The
//! launcher writes the end of its lease and the time of its last sign of life there. When the lease has ended and the
//! launcher gives no sign, such as after SIGSTOP, the guardian kills it, and its workers with it: by then, another
//! node may start the next epoch. The workers read the same lease before they change the run directory.
//!
//! The thread of the heartbeats writes here, so no disk may be involved: a file system that does not answer would
//! end the node.

use super::process::proc::path_of;
use super::thread;
use dtrain_common::agent_lease::Lease;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
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

/// Places of the numbers in the memory; the end of the lease is first, as workers expect it.
const END: u64 = 0;
const SIGN_AT: u64 = 8;
const MEMBER: u64 = 16;

/// The memory, on the guardian's side.
#[derive(Clone, Debug)]
pub(super) struct Memory(Arc<File>);

/// The launcher's side.
#[derive(Debug)]
pub struct Fence {
    lease: Lease,
    memory: File,
}

impl Memory {
    /// Makes the memory, with a lease that never ends and no member.
    pub(super) fn create() -> io::Result<Self> {
        let memory = File::from(memfd_create("dtrain-lease", MemfdFlags::CLOEXEC)?);
        for (place, value) in [(END, u64::MAX), (SIGN_AT, 0), (MEMBER, 0)] {
            write(&memory, place, value)?;
        }
        Ok(Self(Arc::new(memory)))
    }

    /// Returns the path by which launcher and workers open it. It is valid while this process lives.
    pub(super) fn path(&self) -> PathBuf {
        path_of(&*self.0)
    }

    /// Returns the number of the launcher's member, if it ended without a word to the leader.
    pub(super) fn member(&self) -> Option<u64> {
        read(&self.0, MEMBER).ok().filter(|number| *number != 0)
    }

    /// Calls `kill` on a new thread when the lease has ended and the launcher stands still.
    pub(super) fn watch(&self, kill: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let memory = self.clone();
        thread::start("fence", move || {
            let mut looks = 0;
            // After a suspension of the machine, the launcher gets the time of some looks for its sign.
            while looks < LOOKS {
                std::thread::sleep(LOOK);
                looks = if memory.stands_still(Lease::now()).unwrap_or(false) { looks + 1 } else { 0 };
            }
            kill();
        })
    }

    fn stands_still(&self, now: Duration) -> io::Result<bool> {
        let time = |place| read(&self.0, place).map(Duration::from_nanos);
        let (end, sign) = (time(END)?, time(SIGN_AT)?);
        Ok(end.saturating_add(GRACE) < now && sign.saturating_add(STILL) < now)
    }
}

impl Fence {
    /// Opens the guardian's memory.
    pub fn open(path: &Path) -> io::Result<Self> {
        let memory = File::options().write(true).open(path)?;
        let fence = Self { lease: Lease::create(path)?, memory };
        fence.sign()?;
        Ok(fence)
    }

    /// Sets the number of this node's member: if the launcher is killed, the guardian tells it to the leader.
    /// `None`: the member has ended, or leads.
    pub fn set_member(&self, number: Option<u64>) -> io::Result<()> {
        write(&self.memory, MEMBER, number.unwrap_or(0))
    }

    /// Writes the end of the lease; `None` while no worker runs. Call it at least once per [`SIGN`].
    pub fn update(&self, end: Option<Duration>) -> io::Result<()> {
        self.sign()?;
        self.lease.write(end)
    }

    fn sign(&self) -> io::Result<()> {
        write(&self.memory, SIGN_AT, u64::try_from(Lease::now().as_nanos()).unwrap_or(u64::MAX))
    }
}

fn write(memory: &File, place: u64, value: u64) -> io::Result<()> {
    memory.write_all_at(&value.to_le_bytes(), place)
}

fn read(memory: &File, place: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    memory.read_exact_at(&mut bytes, place)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn only_a_launcher_without_a_sign_after_its_lease_is_killed() {
        let memory = Memory::create().unwrap();
        let at = |later: u64| memory.stands_still(Lease::now() + Duration::from_millis(later)).unwrap();
        assert!(!at(10_000), "not on several nodes");
        let fence = Fence::open(&memory.path()).unwrap();
        assert!(!at(10_000), "no worker runs");
        fence.update(Some(Lease::now() + Duration::from_secs(1))).unwrap();
        assert!(!at(900), "the lease lasts");
        assert!(at(1200));
        fence.update(Some(Lease::now().saturating_sub(Duration::from_secs(1)))).unwrap();
        assert!(!at(100), "the launcher lives, and kills its workers itself");
        assert!(at(400));
        fence.update(None).unwrap();
        assert!(!at(10_000));
    }

    #[test]
    fn the_guardian_knows_the_member_of_a_killed_launcher_and_workers_read_the_lease() {
        let memory = Memory::create().unwrap();
        let fence = Fence::open(&memory.path()).unwrap();
        assert_eq!(memory.member(), None);
        fence.set_member(Some(7)).unwrap();
        fence.update(Some(Lease::now())).unwrap();
        assert_eq!(memory.member(), Some(7), "the lease does not overwrite it");
        assert!(Lease::open(&memory.path()).unwrap().is_over().unwrap());
        fence.set_member(None).unwrap();
        assert_eq!(memory.member(), None);
    }

    /// A lease on a disk would be written with the disk's delays.
    #[test]
    fn the_lease_is_in_memory() {
        let memory = Memory::create().unwrap();
        let target = std::fs::read_link(memory.path()).unwrap();
        assert!(target.starts_with("/memfd:dtrain-lease (deleted)"), "{target:?}");
    }
}
