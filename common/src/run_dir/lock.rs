//! Locks that keep two runs out of one folder. Each has a lease, for machines that share no locks.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::error::failed;
use super::lease::{Lease, LeaseError, SUFFIX, Timing};
use super::{RunDir, RunDirError};
use crate::progress::Progress;

/// Lock of the process that began the run: a launcher, or rank 0 without a launcher.
pub(super) const RUN: &str = ".lock";
/// Lock of rank 0, which may outlive a killed launcher for a moment.
pub(super) const TRAINER: &str = ".trainer.lock";
/// Time for which a claim waits for a launcher that was just killed.
const ENDING: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);

/// A claim to a run directory, until the value is dropped or the process ends in any way.
#[derive(Debug)]
pub struct RunLock {
    root: PathBuf,
    /// For machines that do not see the lock. `None` if a locked run could not write it. Dropped first.
    lease: Option<Lease>,
    /// `Err`: the lease alone protects the folder.
    file: Result<File, WithoutLock>,
}

/// Why a run has only a lease.
#[derive(Debug)]
enum WithoutLock {
    /// The file system has no locks.
    Unsupported(io::Error),
    /// A file server still has the lock of this process, whose machine renews its lease no longer.
    HeldByLost(String),
}

impl RunLock {
    /// Returns a message for the user if there is no lock: a lease protects the folder instead.
    pub fn no_lock_message(&self) -> Option<String> {
        let (root, renewal) = (self.root.display(), Timing::USUAL.renewal.as_secs());
        let stale = Timing::USUAL.stale.as_secs();
        Some(match self.file.as_ref().err()? {
            WithoutLock::Unsupported(why) => format!(
                "the file system of {root} has no locks ({why}): a lease file, renewed every {renewal} s, keeps other runs \
                 out; after a crash on another machine the next start waits {stale} s"
            ),
            WithoutLock::HeldByLost(holder) => format!(
                "took {root} over from {holder}, which did not renew its lease for {stale} s; the file server still has its \
                 lock, so a lease file keeps other runs out"
            ),
        })
    }

    /// Returns whether another run has taken the folder because the lease was not renewed in time.
    pub fn is_lost(&self) -> bool {
        self.lease.as_ref().is_some_and(Lease::is_lost)
    }

    /// Returns a message for the user, once, if the lease cannot be renewed and may be taken.
    pub fn renewal_warning(&self) -> Option<String> {
        let why = self.lease.as_ref()?.failure()?;
        Some(format!(
            "cannot renew the lease in {}: {why}; trying again every {} s; after {} s without a renewal another machine may \
             use the folder; check the file system",
            self.root.display(),
            Timing::USUAL.renewal.as_secs(),
            Timing::USUAL.stale.as_secs()
        ))
    }
}

type TryLock = fn(&File) -> Result<(), TryLockError>;

impl RunDir {
    /// Claims the folder for a run, and waits a moment for an ending run. Without locks it takes a lease.
    ///
    /// A file server may keep the lock of a machine that died. Its lease decides then: without a renewal, this run takes
    /// the lease over.
    pub fn claim(&self) -> Result<RunLock, RunDirError> {
        self.lock(RUN, ENDING, File::try_lock, Timing::USUAL)
    }

    /// Claims the folder for rank 0; waits up to `patience` for a rank 0 whose launcher is gone.
    pub fn claim_training(&self, patience: Duration) -> Result<RunLock, RunDirError> {
        self.lock(TRAINER, patience, File::try_lock, Timing::USUAL)
    }

    fn lock(
        &self,
        name: &str,
        patience: Duration,
        try_lock: TryLock,
        timing: Timing,
    ) -> Result<RunLock, RunDirError> {
        let root = self.root().to_owned();
        let path = root.join(name);
        let lease_path = root.join(format!("{name}{SUFFIX}"));
        let start = Instant::now();
        let in_use = |holder: &str| RunDirError::InUse(root.clone(), holder.trim().to_owned());
        // Seconds pass until a lease of another is stale.
        let _progress = Progress::start(format!("waiting for the process that uses {}", root.display()));
        let lease = |is_locked| match Lease::take(lease_path.clone(), patience, timing) {
            Ok(lease) => Ok(Some(lease)),
            Err(LeaseError::Held(holder)) => Err(in_use(&holder)),
            // A lock does not need a lease.
            Err(LeaseError::Io(_)) if is_locked => Ok(None),
            Err(LeaseError::Io(source)) => Err(failed("write", &lease_path)(source)),
        };
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(failed("write", &path))?;
        loop {
            match try_lock(&file) {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if start.elapsed() < patience => std::thread::sleep(PAUSE),
                Err(TryLockError::WouldBlock) => {
                    let holder = fs::read_to_string(&path).unwrap_or_default().trim().to_owned();
                    // Also without access to the lease the lock is another's.
                    let lost = Lease::take_from_lost(lease_path, &holder, timing);
                    let lease = Some(lost.map_err(|_| in_use(&holder))?);
                    // The next claim compares it with the lease.
                    let _ = write_holder(&mut file);
                    return Ok(RunLock { root, lease, file: Err(WithoutLock::HeldByLost(holder)) });
                }
                Err(TryLockError::Error(why)) if is_unsupported(&why) => {
                    let lease = lease(false)?;
                    return Ok(RunLock { root, lease, file: Err(WithoutLock::Unsupported(why)) });
                }
                Err(TryLockError::Error(source)) => return Err(failed("lock", &path)(source)),
            }
        }
        let lease = lease(true)?;
        // Only for the error message of the next claim.
        let _ = write_holder(&mut file);
        Ok(RunLock { root, lease, file: Ok(file) })
    }
}

/// Returns whether an error of locking means that the file system has no locks.
fn is_unsupported(error: &io::Error) -> bool {
    let known = [Errno::NOSYS, Errno::OPNOTSUPP, Errno::NOTSUP, Errno::NOLCK];
    known.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Returns whether a file is a lock or lease; a folder with these alone holds no run.
pub(super) fn is_lock(name: &Path) -> bool {
    let name = name.to_string_lossy();
    let name = name.strip_suffix(SUFFIX).unwrap_or(&name);
    [RUN, TRAINER].contains(&name)
}

fn write_holder(file: &mut File) -> io::Result<()> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    file.set_len(0)?;
    writeln!(file, "process {} on {}", std::process::id(), host.trim())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::run_dir::lease::holder::Holder;

    #[test]
    fn a_folder_has_one_run_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let first = run_dir.claim().unwrap();
        let refused = run_dir.claim().unwrap_err().to_string();
        assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
        // The trainer has a separate lock.
        let trainer = run_dir.claim_training(Duration::ZERO).unwrap();
        drop(first);
        run_dir.claim().unwrap();
        let waiting = std::thread::spawn({
            let run_dir = run_dir.clone();
            move || run_dir.claim_training(Duration::from_secs(30)).is_ok()
        });
        drop(trainer);
        assert!(waiting.join().unwrap());
    }

    #[test]
    fn a_file_system_without_locks_uses_a_lease_and_reports_it() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let without: [TryLock; 3] = [
            |_| Err(TryLockError::Error(Errno::NOSYS.into())),
            |_| Err(TryLockError::Error(Errno::OPNOTSUPP.into())),
            |_| Err(TryLockError::Error(Errno::NOLCK.into())),
        ];
        for without in without {
            let first = run_dir.lock(RUN, Duration::ZERO, without, Timing::USUAL).unwrap();
            let note = first.no_lock_message().unwrap();
            assert!(
                note.contains("has no locks") && note.contains(&folder.path().display().to_string()),
                "{note}"
            );
            let refused = run_dir.lock(RUN, Duration::ZERO, without, Timing::USUAL).unwrap_err();
            assert!(matches!(refused, RunDirError::InUse { .. }), "{refused}");
            assert_eq!(run_dir.first_entry().unwrap(), None, "a lease is no run");
        }
        assert_eq!(run_dir.claim().unwrap().no_lock_message(), None);
    }

    #[test]
    fn a_machine_with_locks_and_one_without_keep_each_other_out() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let without: TryLock = |_| Err(TryLockError::Error(Errno::NOLCK.into()));
        let locked = run_dir.claim().unwrap();
        let refused = run_dir.lock(RUN, Duration::ZERO, without, Timing::USUAL).unwrap_err();
        assert!(matches!(refused, RunDirError::InUse { .. }), "{refused}");
        drop(locked);
        let leased = run_dir.lock(RUN, Duration::ZERO, without, Timing::USUAL).unwrap();
        let refused = run_dir.claim().unwrap_err();
        assert!(matches!(refused, RunDirError::InUse { .. }), "{refused}");
        drop(leased);
        assert!(!run_dir.claim().unwrap().is_lost());
    }

    #[test]
    fn the_lease_protects_a_folder_whose_locks_are_per_machine() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let path = folder.path().join(format!("{RUN}{SUFFIX}"));
        // A healthy run of another machine, with its lock there and a lease marked as in earlier versions.
        let beat = |count: u32| {
            let text =
                format!("process 7 on far\nbegan 1 in other/pid:[1]\nbeat {count:020} beside a lock\n");
            fs::write(folder.path().join(".beat"), text).unwrap();
            fs::rename(folder.path().join(".beat"), &path).unwrap();
        };
        beat(0);
        std::thread::scope(|scope| {
            let claimed = scope.spawn(|| run_dir.claim());
            let mut count = 0;
            while !claimed.is_finished() {
                std::thread::sleep(PAUSE);
                count += 1;
                beat(count);
            }
            let refused = claimed.join().unwrap().unwrap_err().to_string();
            assert!(refused.contains("process 7 on far"), "{refused}");
        });
    }

    /// A file server that still has the lock of another machine.
    fn held(_: &File) -> Result<(), TryLockError> {
        Err(TryLockError::WouldBlock)
    }

    const QUICK: Timing = Timing {
        renewal: Duration::from_millis(30),
        stale: Duration::from_secs(1),
        settle: Duration::from_millis(100),
    };

    fn holder_elsewhere(pid: u32) -> String {
        format!("process {pid} on far\nbegan 1 in other/pid:[1]\nbeat {:020}\n", 3)
    }

    #[test]
    fn the_lock_of_a_lost_machine_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        fs::write(folder.path().join(RUN), "process 7 on far\n").unwrap();
        fs::write(folder.path().join(format!("{RUN}{SUFFIX}")), holder_elsewhere(7)).unwrap();
        let begun = Instant::now();
        let taken = run_dir.lock(RUN, Duration::ZERO, held, QUICK).unwrap();
        assert!(begun.elapsed() >= QUICK.stale);
        let message = taken.no_lock_message().unwrap();
        assert!(message.contains("over from process 7 on far"), "{message}");
        // The next run finds this process, whether the file server still has the lock or not.
        for try_lock in [held, File::try_lock] {
            let refused = run_dir.lock(RUN, Duration::ZERO, try_lock, QUICK).unwrap_err().to_string();
            assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
        }
        assert!(!taken.is_lost());
    }

    #[test]
    fn a_lock_is_respected_unless_its_own_lease_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let lease = folder.path().join(format!("{RUN}{SUFFIX}"));
        fs::write(folder.path().join(RUN), "process 7 on far\n").unwrap();
        let refused = || {
            let error = run_dir.lock(RUN, Duration::ZERO, held, QUICK).unwrap_err().to_string();
            assert!(error.contains("process 7 on far"), "{error}");
        };
        // Without a lease nothing proves that the holder is lost.
        refused();
        // A run that could not write its lease beside an older one of another process.
        fs::write(&lease, holder_elsewhere(8)).unwrap();
        refused();
        assert_eq!(fs::read_to_string(&lease).unwrap(), holder_elsewhere(8));
        // A process of another container of this machine: the kernel would have released its lock.
        let here = Holder { pid: 7, host: "far".to_owned(), ..Holder::this() };
        let (kernel, _) = here.namespace.split_once('/').unwrap();
        let elsewhere = Holder { namespace: format!("{kernel}/pid:[1]"), ..here.clone() };
        fs::write(&lease, elsewhere.text(3)).unwrap();
        refused();
        // A process of this machine, without a lease that can be read.
        fs::write(&lease, "process 7 on far\n").unwrap();
        refused();
    }

    #[test]
    fn another_error_of_locking_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let broken: TryLock = |_| Err(TryLockError::Error(Errno::IO.into()));
        let error = run_dir.lock(RUN, Duration::ZERO, broken, Timing::USUAL).unwrap_err().to_string();
        assert!(error.starts_with("cannot lock "), "{error}");
    }
}
