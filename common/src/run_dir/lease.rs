//! A claim to a folder where the file system knows no locks: a file that its holder renews, and that others may take when it
//! is not renewed any more.
//!
//! Whether it is renewed the others see by the beats that it counts, on their own clock: the clocks of two machines, and of a
//! file server, differ. It is weaker than a lock: a holder that was stopped for long loses it without hearing of it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::files::write_atomic;

/// What follows the name of the lock whose place a lease takes.
pub(super) const SUFFIX: &str = ".lease";

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
    /// That of the file which is ours; another one at the path is another's.
    inode: u64,
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
    /// is waited for during `patience`, and until it is clear whether it is renewed.
    pub(super) fn take(path: PathBuf, patience: Duration, pace: Pace) -> Result<Self, LeaseError> {
        let own = Holder::this();
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
            let life = holder.as_ref().and_then(|holder| holder.is_alive(&own));
            if life == Some(false) || since.elapsed() >= pace.stale {
                if let Some(file) = overwrite(&path, &text, &own, pace)? {
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
        let inode = file.metadata()?.ino();
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("lease".to_owned())
            .spawn(move || {
                let mut beat = 0;
                while stopped.recv_timeout(pace.renewal) == Err(RecvTimeoutError::Timeout) {
                    beat += 1;
                    // Into the file that is ours, whoever has put another in its place. What fails is tried again.
                    let _ = file
                        .write_all_at(own.text(beat).as_bytes(), 0)
                        .and_then(|()| file.sync_data());
                }
            })?;
        Ok(Self {
            path,
            inode,
            renewing: Some((stop, thread)),
        })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.renewing.take() {
            drop(stop);
            let _ = thread.join();
        }
        if fs::metadata(&self.path).is_ok_and(|meta| meta.ino() == self.inode) {
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

/// Puts a file of our own in the place of one that nobody renews; none where somebody else was faster or came after.
fn overwrite(path: &Path, stale: &str, own: &Holder, pace: Pace) -> io::Result<Option<File>> {
    let content = |path| match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    };
    if content(path)?.as_deref() != Some(stale) {
        return Ok(None);
    }
    write_atomic(path, own.text(0).as_bytes())?;
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    std::thread::sleep(pace.settle);
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
        }
    }

    /// The file's content at the renewal of this number. It has the same length at each, so that it is written in place.
    fn text(&self, beat: u64) -> String {
        let Self {
            pid,
            began,
            host,
            place,
        } = self;
        format!("process {pid} on {host}\nbegan {began} in {place}\nbeat {beat:020}\n")
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
        let first = Lease::take(path.clone(), NONE, QUICK).unwrap();
        match Lease::take(path.clone(), NONE, QUICK).unwrap_err() {
            LeaseError::Held(who) => assert_eq!(who, Holder::this().words()),
            LeaseError::Io(error) => panic!("{error}"),
        }
        drop(first);
        assert!(!path.exists());
        Lease::take(path, NONE, QUICK).unwrap();
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
        let lease = Lease::take(path.clone(), NONE, pace).unwrap();
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
        match Lease::take(path.clone(), NONE, QUICK).unwrap_err() {
            LeaseError::Held(who) => assert!(who.ends_with("on far"), "{who}"),
            LeaseError::Io(error) => panic!("{error}"),
        }
        drop(stop);
        renewing.join().unwrap();
        let begun = Instant::now();
        Lease::take(path, NONE, QUICK).unwrap();
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
            let first = scope.spawn(|| overwrite(&path, &elsewhere(0), &own, QUICK).unwrap());
            while fs::read_to_string(&path).unwrap() == elsewhere(0) {
                std::thread::yield_now();
            }
            write_atomic(&path, other.text(0).as_bytes()).unwrap();
            assert!(first.join().unwrap().is_none());
        });
        assert!(
            overwrite(&path, &elsewhere(0), &own, QUICK).unwrap().is_none(),
            "it is not stale any more"
        );
    }

    #[test]
    fn a_lease_that_somebody_else_has_taken_is_neither_renewed_nor_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.lease");
        let lost = Lease::take(path.clone(), NONE, QUICK).unwrap();
        write_atomic(&path, elsewhere(3).as_bytes()).unwrap();
        std::thread::sleep(QUICK.renewal * 5);
        drop(lost);
        assert_eq!(fs::read_to_string(&path).unwrap(), elsewhere(3));
    }

    #[test]
    fn a_lease_is_renewed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.lease");
        let _lease = Lease::take(path.clone(), NONE, QUICK).unwrap();
        let first = fs::read_to_string(&path).unwrap();
        let begun = Instant::now();
        while fs::read_to_string(&path).unwrap() == first {
            assert!(begun.elapsed() < Duration::from_secs(30));
            std::thread::sleep(QUICK.renewal);
        }
    }
}
