//! A claim to a folder that machines without locks heed: a file that its holder renews, and that others may take when it
//! is not renewed any more.
//!
//! Whether it is renewed the others see by the beats that it counts, on their own clock: the clocks of two machines, and of a
//! file server, differ. It is weaker than a lock: a holder that was stopped for long loses it, and hears of it when it goes on.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::files::write_atomic;

/// What follows the name of the lock whose place a lease takes.
pub(super) const SUFFIX: &str = ".lease";

/// How the lease of a process ends that has the lock, too.
const BESIDE_A_LOCK: &str = " beside a lock";

/// The times of a lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Between two renewals.
    pub(super) renewal: Duration,
    /// Without a renewal for so long it is nobody's.
    pub(super) stale: Duration,
    /// Of several that take a stale one at a time, the last has it: they look again after this.
    pub(super) settle: Duration,
}

impl Pace {
    /// A file server may answer late: three renewals may be missed, and a fourth be on its way.
    pub(super) const USUAL: Self = Self {
        renewal: Duration::from_secs(5),
        stale: Duration::from_secs(20),
        settle: Duration::from_secs(1),
    };
}

/// Held by this process until it is dropped.
#[derive(Debug)]
pub(super) struct Lease {
    path: PathBuf,
    own: Holder,
    lost: Arc<AtomicBool>,
    renewing: Option<(Sender<()>, JoinHandle<()>)>,
}

/// Why there is no lease.
#[derive(Debug)]
pub(super) enum LeaseError {
    /// Another process renews it; its own words.
    Held(String),
    Io(io::Error),
}

impl From<io::Error> for LeaseError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Lease {
    /// Takes the lease at `path`, which nobody may have, or a process that is dead or has stopped renewing it. One that is held
    /// is waited for during `patience`, and until it is clear whether it is renewed. `is_locked`: this process has the lock, so
    /// nobody else has who had it.
    pub(super) fn take(
        path: PathBuf,
        patience: Duration,
        pace: Pace,
        is_locked: bool,
    ) -> Result<Self, LeaseError> {
        let own = Holder {
            is_locked,
            ..Holder::this()
        };
        let begun = Instant::now();
        let mut seen: Option<(String, Instant)> = None;
        let mut renewed = false;
        loop {
            match create(&path, &own) {
                Ok(file) => return Ok(Self::keep(path, file, own, pace)?),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error.into()),
            }
            let text = match fs::read_to_string(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                other => other?,
            };
            let since = match &seen {
                Some((earlier, since)) if *earlier == text => *since,
                earlier => {
                    renewed = earlier.is_some();
                    let now = Instant::now();
                    seen = Some((text.clone(), now));
                    now
                }
            };
            let holder = Holder::parse(&text);
            let lost_its_lock = is_locked && holder.as_ref().is_some_and(|holder| holder.is_locked);
            let life = holder.as_ref().and_then(|holder| holder.is_alive(&own));
            // One that lives on this machine is suspended at most.
            let is_nobodys = life == Some(false) || life.is_none() && since.elapsed() >= pace.stale;
            if lost_its_lock || is_nobodys {
                let settle = if lost_its_lock {
                    Duration::ZERO
                } else {
                    pace.settle
                };
                if let Some(file) = overwrite(&path, &text, &own, settle)? {
                    return Ok(Self::keep(path, file, own, pace)?);
                }
            } else if begun.elapsed() >= patience && (life == Some(true) || renewed) {
                return Err(LeaseError::Held(
                    holder.map(|holder| holder.words()).unwrap_or_default(),
                ));
            }
            std::thread::sleep(pace.settle / 10);
        }
    }

    fn keep(path: PathBuf, file: File, own: Holder, pace: Pace) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel::<()>();
        let lost = Arc::new(AtomicBool::new(false));
        let renewal = {
            let (path, own, lost) = (path.clone(), own.clone(), Arc::clone(&lost));
            move || {
                for beat in 1.. {
                    if stopped.recv_timeout(pace.renewal) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                    if is_anothers(&path, &own) {
                        return lost.store(true, Ordering::Relaxed);
                    }
                    // Into the file that is ours, whoever has put another in its place just now. What fails is tried again.
                    let _ = file
                        .write_all_at(own.text(beat).as_bytes(), 0)
                        .and_then(|()| file.sync_data());
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("lease".to_owned())
            .spawn(renewal)?;
        Ok(Self {
            path,
            own,
            lost,
            renewing: Some((stop, thread)),
        })
    }

    /// Whether another process has taken it, as seen at the latest renewal.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}

/// Whether somebody else's lease lies there. Opening a file asks the server; looking at its number may not.
fn is_anothers(path: &Path, own: &Holder) -> bool {
    fs::read_to_string(path).is_ok_and(|text| Holder::parse(&text).as_ref() != Some(own))
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.renewing.take() {
            drop(stop);
            let _ = thread.join();
        }
        if !is_anothers(&self.path, &self.own) {
            // One that stays goes stale.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Makes the file, unless there is one.
fn create(path: &Path, own: &Holder) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all_at(own.text(0).as_bytes(), 0)?;
    file.sync_data()?;
    Ok(file)
}

/// Puts a file of our own in the place of one that nobody renews; none where somebody else was faster, or came after it within
/// `settle` or the time that writing takes.
fn overwrite(path: &Path, stale: &str, own: &Holder, settle: Duration) -> io::Result<Option<File>> {
    let content = |path| match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    };
    if content(path)?.as_deref() != Some(stale) {
        return Ok(None);
    }
    let begun = Instant::now();
    write_atomic(path, own.text(0).as_bytes())?;
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    // Others may be as slow, and have looked at the same moment.
    std::thread::sleep(settle.max(begun.elapsed() * 2));
    let mut ours = String::new();
    file.read_to_string(&mut ours)?;
    let unchanged = content(path)?.as_deref() == Some(&*own.text(0)) && ours == own.text(0);
    Ok(unchanged.then_some(file))
}

/// Who holds a lease, as the file tells.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Holder {
    pid: u32,
    /// When the process began, in the kernel's ticks: another one may get its number.
    began: u64,
    host: String,
    /// The kernel and the namespace in which `pid` is a number.
    place: String,
    /// Whether it has the lock, too.
    is_locked: bool,
}

impl Holder {
    /// This process.
    fn this() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let pid = std::process::id();
        Self {
            pid,
            began: began(pid).unwrap_or_default(),
            host: read("/proc/sys/kernel/hostname"),
            place: format!(
                "{}/{}",
                read("/proc/sys/kernel/random/boot_id"),
                namespace.display()
            ),
            is_locked: false,
        }
    }

    /// The file's content at the renewal of this number. It has the same length at each, so that it is written in place.
    fn text(&self, beat: u64) -> String {
        let Self {
            pid,
            began,
            host,
            place,
            is_locked,
        } = self;
        let beside = if *is_locked { BESIDE_A_LOCK } else { "" };
        format!("process {pid} on {host}\nbegan {began} in {place}\nbeat {beat:020}{beside}\n")
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let (pid, host) = lines.next()?.strip_prefix("process ")?.split_once(" on ")?;
        let (began, place) = lines.next()?.strip_prefix("began ")?.split_once(" in ")?;
        Some(Self {
            pid: pid.parse().ok()?,
            began: began.parse().ok()?,
            host: host.to_owned(),
            place: place.to_owned(),
            is_locked: lines.next()?.ends_with(BESIDE_A_LOCK),
        })
    }

    /// Whether the process lives, where `here` can tell.
    fn is_alive(&self, here: &Self) -> Option<bool> {
        let known = self.place == here.place && self.host == here.host;
        known.then(|| began(self.pid) == Some(self.began))
    }

    fn words(&self) -> String {
        format!("process {} on {}", self.pid, self.host)
    }
}

/// When a process of this machine began; none where it has ended.
fn began(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold anything; the start time is the 20th field behind it, the state the first.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let ended = matches!(state, "Z" | "X");
    fields.nth(18)?.parse().ok().filter(|_| !ended)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const QUICK: Pace = Pace {
        renewal: Duration::from_millis(30),
        stale: Duration::from_secs(2),
        settle: Duration::from_millis(100),
    };
    const NONE: Duration = Duration::ZERO;

    /// What the lease of a process elsewhere says.
    fn elsewhere(beat: u64) -> String {
        let holder = Holder {
            host: "far".to_owned(),
            place: "other/pid:[1]".to_owned(),
            ..Holder::this()
        };
        holder.text(beat)
    }

    #[test]
    fn a_lease_that_is_held_here_is_refused_at_once_and_free_after_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.lease");
        let first = Lease::take(path.clone(), NONE, QUICK, false).unwrap();
        match Lease::take(path.clone(), NONE, QUICK, false).unwrap_err() {
            LeaseError::Held(who) => assert_eq!(who, Holder::this().words()),
            LeaseError::Io(error) => panic!("{error}"),
        }
        drop(first);
        assert!(!path.exists());
        Lease::take(path, NONE, QUICK, false).unwrap();
    }

    #[test]
    fn a_lease_of_a_dead_process_of_this_machine_is_taken_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.lease");
        let dead = Holder {
            began: 1,
            ..Holder::this()
        };
        fs::write(&path, dead.text(7)).unwrap();
        let pace = Pace {
            stale: Duration::from_secs(3600),
            ..QUICK
        };
        let lease = Lease::take(path.clone(), NONE, pace, false).unwrap();
        assert_eq!(
            Holder::parse(&fs::read_to_string(&path).unwrap()),
            Some(Holder::this())
        );
        drop(lease);
    }

    #[test]
    fn a_lease_elsewhere_is_refused_while_it_is_renewed_and_taken_when_it_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.lease");
        fs::write(&path, elsewhere(0)).unwrap();
        let (stop, stopped) = mpsc::channel::<()>();
        let renewing = std::thread::spawn({
            let path = path.clone();
            move || {
                let file = OpenOptions::new().write(true).open(path).unwrap();
                for beat in 1.. {
                    file.write_all_at(elsewhere(beat).as_bytes(), 0).unwrap();
                    if stopped.recv_timeout(QUICK.renewal) != Err(RecvTimeoutError::Timeout) {
                        break;
                    }
                }
            }
        });
        match Lease::take(path.clone(), NONE, QUICK, false).unwrap_err() {
            LeaseError::Held(who) => assert!(who.ends_with("on far"), "{who}"),
            LeaseError::Io(error) => panic!("{error}"),
        }
        drop(stop);
        renewing.join().unwrap();
        let begun = Instant::now();
        Lease::take(path, NONE, QUICK, false).unwrap();
        assert!(begun.elapsed() >= QUICK.stale);
    }

    #[test]
    fn of_two_that_take_a_stale_lease_at_a_time_the_last_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.lease");
        fs::write(&path, elsewhere(0)).unwrap();
        let own = Holder::this();
        let other = Holder {
            pid: own.pid + 1,
            ..own.clone()
        };
        std::thread::scope(|scope| {
            let first = scope.spawn(|| overwrite(&path, &elsewhere(0), &own, QUICK.settle).unwrap());
            while fs::read_to_string(&path).unwrap() == elsewhere(0) {
                std::thread::yield_now();
            }
            write_atomic(&path, other.text(0).as_bytes()).unwrap();
            assert!(first.join().unwrap().is_none());
        });
        assert!(
            overwrite(&path, &elsewhere(0), &own, QUICK.settle)
                .unwrap()
                .is_none(),
            "it is not stale any more"
        );
    }

    #[test]
    fn a_lease_that_somebody_else_has_taken_is_neither_renewed_nor_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.lease");
        let lost = Lease::take(path.clone(), NONE, QUICK, false).unwrap();
        write_atomic(&path, elsewhere(3).as_bytes()).unwrap();
        wait_until_lost(&lost);
        drop(lost);
        assert_eq!(fs::read_to_string(&path).unwrap(), elsewhere(3));
    }

    fn wait_until_lost(lease: &Lease) {
        let begun = Instant::now();
        while !lease.is_lost() {
            assert!(begun.elapsed() < Duration::from_secs(30));
            std::thread::sleep(QUICK.renewal);
        }
    }

    #[test]
    fn a_suspended_process_of_this_machine_keeps_its_lease() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.lease");
        fs::write(&path, Holder::this().text(7)).unwrap();
        let patience = QUICK.stale + Duration::from_millis(200);
        match Lease::take(path, patience, QUICK, false).unwrap_err() {
            LeaseError::Held(who) => assert_eq!(who, Holder::this().words()),
            LeaseError::Io(error) => panic!("{error}"),
        }
    }

    #[test]
    fn who_has_the_lock_takes_the_lease_of_one_that_had_it_at_once_and_heeds_that_of_one_without() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.lease");
        let far = Holder {
            host: "far".to_owned(),
            place: "other/pid:[1]".to_owned(),
            is_locked: true,
            ..Holder::this()
        };
        let pace = Pace {
            stale: Duration::from_secs(3600),
            ..QUICK
        };
        fs::write(&path, far.text(7)).unwrap();
        let lease = Lease::take(path.clone(), NONE, pace, true).unwrap();
        // Another machine has no locks, and is faster than the next renewal.
        write_atomic(&path, elsewhere(0).as_bytes()).unwrap();
        wait_until_lost(&lease);
        drop(lease);
        let begun = Instant::now();
        Lease::take(path, NONE, QUICK, true).unwrap();
        assert!(begun.elapsed() >= QUICK.stale, "it may live");
    }

    #[test]
    fn a_lease_is_renewed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.lease");
        let _lease = Lease::take(path.clone(), NONE, QUICK, false).unwrap();
        let first = fs::read_to_string(&path).unwrap();
        let begun = Instant::now();
        while fs::read_to_string(&path).unwrap() == first {
            assert!(begun.elapsed() < Duration::from_secs(30));
            std::thread::sleep(QUICK.renewal);
        }
    }
}
