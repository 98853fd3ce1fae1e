//! A lease on a folder, for machines that do not share locks: a file that its holder renews. Others may take
//! it when it is no longer renewed.
//!
//! Every renewal counts a beat up. Others time the beats on their own clock, because clocks of machines and
//! file servers differ. A lease is weaker than a lock: a holder that is suspended for long loses it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::files::{self, write_atomic};

pub(super) mod holder;

use holder::Holder;

pub(super) const SUFFIX: &str = ".lease";

#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    pub(super) renewal: Duration,
    /// Time without a renewal after which others may take it.
    pub(super) stale: Duration,
    /// Wait after taking a stale lease: of several takers the last writer has it, and each looks again.
    pub(super) settle: Duration,
}

impl Timing {
    /// A file server may answer late: three renewals may be missed while a fourth is under way.
    pub(super) const USUAL: Self = Self {
        renewal: Duration::from_secs(5),
        stale: Duration::from_secs(20),
        settle: Duration::from_secs(1),
    };
}

/// A lease that this process holds until the value is dropped.
#[derive(Debug)]
pub(super) struct Lease {
    path: PathBuf,
    own: Holder,
    state: Arc<State>,
    renewing: Option<(Sender<()>, JoinHandle<()>)>,
}

#[derive(Debug, Default)]
struct State {
    lost: AtomicBool,
    failed: Mutex<Option<io::Error>>,
}

impl State {
    fn failed(&self) -> MutexGuard<'_, Option<io::Error>> {
        // The value is whole also after a panic.
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum LeaseError {
    #[error("another process holds the lease: {0}")]
    Held(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Lease {
    /// Takes the lease at `path`, unless another process renews it. If it is held, waits at least `patience`,
    /// and until it is clear whether it is renewed.
    pub(super) fn take(path: PathBuf, patience: Duration, timing: Timing) -> Result<Self, LeaseError> {
        let own = Holder::this();
        let start = Instant::now();
        let mut watch = Watch::default();
        loop {
            let read_start = Instant::now();
            match create(&path, &own) {
                Ok(()) => return Ok(Self::keep(path, own, timing)?),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error.into()),
            }
            let Some(text) = content(&path)? else { continue };
            let now = Instant::now();
            let unchanged = watch.unchanged_for(&text, now - read_start, now, timing.settle);
            let holder = Holder::parse(&text);
            let life = holder.as_ref().and_then(|holder| holder.is_alive(&own));
            // A holder that lives on this machine is at most suspended.
            let is_free = life == Some(false) || life.is_none() && unchanged >= timing.stale;
            if is_free {
                if overwrite(&path, &text, &own, timing.settle)? {
                    return Ok(Self::keep(path, own, timing)?);
                }
            } else if start.elapsed() >= patience && (life == Some(true) || watch.renewed) {
                return Err(LeaseError::Held(holder.map(|holder| holder.describe()).unwrap_or_default()));
            }
            std::thread::sleep(timing.settle / 10);
        }
    }

    /// Takes the lease of `holder`, a process of another machine that holds the lock beside it, if the lease is not renewed
    /// for long enough. A process of this machine, and one without its own lease, keep their lock.
    pub(super) fn take_from_lost(path: PathBuf, holder: &str, timing: Timing) -> Result<Self, LeaseError> {
        let own = Holder::this();
        let held = || LeaseError::Held(holder.to_owned());
        let mut watch = Watch::default();
        loop {
            let read_start = Instant::now();
            let text = content(&path)?.ok_or_else(held)?;
            let now = Instant::now();
            let unchanged = watch.unchanged_for(&text, now - read_start, now, timing.settle);
            // The lock of a process on this kernel proves that the process lives, also in another container.
            let is_lost = |found: &Holder| found.is_alive(&own).is_none() && !found.is_on_this_kernel(&own);
            let is_of_holder =
                Holder::parse(&text).is_some_and(|found| found.describe() == holder && is_lost(&found));
            if !is_of_holder || watch.renewed {
                return Err(held());
            }
            if unchanged >= timing.stale {
                return match overwrite(&path, &text, &own, timing.settle)? {
                    true => Ok(Self::keep(path, own, timing)?),
                    false => Err(held()),
                };
            }
            std::thread::sleep(timing.settle / 10);
        }
    }

    fn keep(path: PathBuf, own: Holder, timing: Timing) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel::<()>();
        let state = Arc::<State>::default();
        let renewal = {
            let (path, own, state) = (path.clone(), own.clone(), Arc::clone(&state));
            move || {
                let mut latest = Instant::now();
                let mut has_failed = false;
                for beat in 1.. {
                    if stopped.recv_timeout(timing.renewal) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                    match renew(&path, &own, beat) {
                        Ok(Renewal::Renewed) => {}
                        // The file was removed; after `stale`, another run may have taken it and ended.
                        Ok(Renewal::Missing) if latest.elapsed() < timing.stale => {}
                        Ok(Renewal::Missing | Renewal::OtherHolder) => {
                            return state.lost.store(true, Ordering::Relaxed);
                        }
                        // The next renewal tries again.
                        Err(error) => {
                            if !std::mem::replace(&mut has_failed, true) {
                                *state.failed() = Some(error);
                            }
                            continue;
                        }
                    }
                    latest = Instant::now();
                }
            }
        };
        let thread = std::thread::Builder::new().name("lease".to_owned()).spawn(renewal)?;
        Ok(Self { path, own, state, renewing: Some((stop, thread)) })
    }

    /// Returns whether another process had taken the lease at the latest renewal.
    pub(super) fn is_lost(&self) -> bool {
        self.state.lost.load(Ordering::Relaxed)
    }

    /// Returns the first failure of a renewal, once.
    pub(super) fn failure(&self) -> Option<io::Error> {
        self.state.failed().take()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.renewing.take() {
            drop(stop);
            let _ = thread.join();
        }
        if content(&self.path).is_ok_and(|text| text.is_some_and(|text| !has_other_holder(&text, &self.own)))
        {
            // If this fails, the file goes stale.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Observations of a lease that another process may renew.
#[derive(Default)]
struct Watch {
    /// The latest content and the time of its first sight.
    seen: Option<(String, Instant)>,
    renewed: bool,
}

impl Watch {
    /// Returns how long the content has been the same. Starts again after a read longer than `settle`: the
    /// server was away.
    fn unchanged_for(&mut self, text: &str, looking: Duration, now: Instant, settle: Duration) -> Duration {
        let is_same = self.seen.as_ref().is_some_and(|(earlier, _)| earlier == text);
        self.renewed |= self.seen.is_some() && !is_same;
        match &self.seen {
            Some((_, since)) if is_same && looking <= settle => now.saturating_duration_since(*since),
            _ => {
                self.seen = Some((text.to_owned(), now));
                Duration::ZERO
            }
        }
    }
}

enum Renewal {
    /// Our own lease, or a file without a readable holder: renewed.
    Renewed,
    /// No lease: made again.
    Missing,
    /// The lease of another process: left unchanged.
    OtherHolder,
}

/// Renews our own lease. Opens the file each time: an open file may become invalid (ESTALE).
fn renew(path: &Path, own: &Holder, beat: u64) -> io::Result<Renewal> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    let Some(mut file) = files::none_if_missing(opened)? else {
        create(path, own)?;
        return Ok(Renewal::Missing);
    };
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    if has_other_holder(&String::from_utf8_lossy(&text), own) {
        return Ok(Renewal::OtherHolder);
    }
    write(&file, own, beat)?;
    Ok(Renewal::Renewed)
}

/// Returns whether the content names another holder. A file that was cut off has no readable holder.
fn has_other_holder(text: &str, own: &Holder) -> bool {
    Holder::parse(text).is_some_and(|holder| holder != *own)
}

fn create(path: &Path, own: &Holder) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    write(&file, own, 0).inspect_err(|_| {
        // No process would renew it.
        let _ = fs::remove_file(path);
    })
}

fn write(file: &File, own: &Holder, beat: u64) -> io::Result<()> {
    file.write_all_at(own.text(beat).as_bytes(), 0)?;
    files::sync(file).map(drop)
}

/// Reads the file; `None` if it no longer exists.
fn content(path: &Path) -> io::Result<Option<String>> {
    match fs::read(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::StaleNetworkFileHandle) => {
            Ok(None)
        }
        other => other.map(|bytes| Some(String::from_utf8_lossy(&bytes).into_owned())),
    }
}

/// Replaces a stale file with our own; false if another process was faster or follows within `settle`.
fn overwrite(path: &Path, stale: &str, own: &Holder, settle: Duration) -> io::Result<bool> {
    if content(path)?.as_deref() != Some(stale) {
        return Ok(false);
    }
    let start = Instant::now();
    write_atomic(path, own.text(0).as_bytes())?;
    // Other processes may be as slow and have looked at the same moment.
    std::thread::sleep(settle.max(start.elapsed() * 2));
    Ok(content(path)?.as_deref() == Some(&*own.text(0)))
}

#[cfg(test)]
mod tests;
