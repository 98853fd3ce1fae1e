//! A claim to a folder that machines heed which share no locks: a file that its holder renews, and that others may take when it
//! is not renewed any more.
//!
//! Whether it is renewed the others see by the beats that it counts, on their own clock: the clocks of two machines, and of a
//! file server, differ. It is weaker than a lock: a holder that was stopped for long loses it, and hears of it when it goes on.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::files::write_atomic;

mod holder;

use holder::Holder;

pub(super) const SUFFIX: &str = ".lease";

#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    pub(super) renewal: Duration,
    /// Without a renewal for so long it is nobody's.
    pub(super) stale: Duration,
    /// Of several that take a stale one the last has it: they look again after this time.
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
        // It is whole also after a panic.
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum LeaseError {
    #[error("another process renews it: {0}")]
    Held(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Lease {
    /// Takes the lease at `path`, unless another process renews it. One that is held is waited for during
    /// `patience`, and until it is clear whether it is renewed.
    pub(super) fn take(path: PathBuf, patience: Duration, pace: Pace) -> Result<Self, LeaseError> {
        let own = Holder::this();
        let begun = Instant::now();
        let mut watch = Watch::default();
        loop {
            let asked = Instant::now();
            match create(&path, &own) {
                Ok(()) => return Ok(Self::keep(path, own, pace)?),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error.into()),
            }
            let Some(text) = content(&path)? else { continue };
            let now = Instant::now();
            let silent = watch.silent(&text, now - asked, now, pace.settle);
            let holder = Holder::parse(&text);
            let life = holder.as_ref().and_then(|holder| holder.is_alive(&own));
            // One that lives on this machine is suspended at most.
            let is_nobodys = life == Some(false) || life.is_none() && silent >= pace.stale;
            if is_nobodys {
                if overwrite(&path, &text, &own, pace.settle)? {
                    return Ok(Self::keep(path, own, pace)?);
                }
            } else if begun.elapsed() >= patience && (life == Some(true) || watch.renewed) {
                return Err(LeaseError::Held(holder.map(|holder| holder.words()).unwrap_or_default()));
            }
            std::thread::sleep(pace.settle / 10);
        }
    }

    fn keep(path: PathBuf, own: Holder, pace: Pace) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel::<()>();
        let state = Arc::<State>::default();
        let renewal = {
            let (path, own, state) = (path.clone(), own.clone(), Arc::clone(&state));
            move || {
                let mut latest = Instant::now();
                let mut has_failed = false;
                for beat in 1.. {
                    if stopped.recv_timeout(pace.renewal) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                    match renew(&path, &own, beat) {
                        Ok(Found::Own) => {}
                        // Somebody has removed it. After so long that can be another run that had taken it and has ended.
                        Ok(Found::Nothing) if latest.elapsed() < pace.stale => {}
                        Ok(Found::Nothing | Found::Anothers) => {
                            return state.lost.store(true, Ordering::Relaxed);
                        }
                        // It is tried again.
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

    /// Whether another process has taken it, as seen at the latest renewal.
    pub(super) fn is_lost(&self) -> bool {
        self.state.lost.load(Ordering::Relaxed)
    }

    /// Why a renewal failed for the first time, if one did; once.
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
        if content(&self.path).is_ok_and(|text| text.is_some_and(|text| !is_anothers(&text, &self.own))) {
            // One that stays goes stale.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// What is seen of a lease that somebody may renew.
#[derive(Default)]
struct Watch {
    /// The latest content, and since when it is the same.
    seen: Option<(String, Instant)>,
    renewed: bool,
}

impl Watch {
    /// For how long the lease has had this content, counted anew after a look longer than `settle`: no
    /// server.
    fn silent(&mut self, text: &str, looking: Duration, now: Instant, settle: Duration) -> Duration {
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

enum Found {
    /// Our own lease, or one of which nobody can say whose it is. It is renewed.
    Own,
    /// No lease. It is made again.
    Nothing,
    /// The lease of another process, which stays as it is.
    Anothers,
}

/// Renews our own lease. An open file may have become invalid (ESTALE), so that it is opened anew.
fn renew(path: &Path, own: &Holder, beat: u64) -> io::Result<Found> {
    let mut file = match OpenOptions::new().read(true).write(true).open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            create(path, own)?;
            return Ok(Found::Nothing);
        }
        other => other?,
    };
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    if is_anothers(&String::from_utf8_lossy(&text), own) {
        return Ok(Found::Anothers);
    }
    write(&file, own, beat)?;
    Ok(Found::Own)
}

/// Whether this is the content of somebody else's lease. Of a file that was cut off nobody can say whose it is.
fn is_anothers(text: &str, own: &Holder) -> bool {
    Holder::parse(text).is_some_and(|holder| holder != *own)
}

fn create(path: &Path, own: &Holder) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    write(&file, own, 0).inspect_err(|_| {
        // Nobody would renew it.
        let _ = fs::remove_file(path);
    })
}

fn write(file: &File, own: &Holder, beat: u64) -> io::Result<()> {
    file.write_all_at(own.text(beat).as_bytes(), 0)?;
    file.sync_data()
}

/// What the file holds; none where there is no such file any more.
fn content(path: &Path) -> io::Result<Option<String>> {
    match fs::read(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::StaleNetworkFileHandle) => {
            Ok(None)
        }
        other => other.map(|bytes| Some(String::from_utf8_lossy(&bytes).into_owned())),
    }
}

/// Puts our own file in the place of a stale one, unless somebody was faster or comes within `settle`.
fn overwrite(path: &Path, stale: &str, own: &Holder, settle: Duration) -> io::Result<bool> {
    if content(path)?.as_deref() != Some(stale) {
        return Ok(false);
    }
    let begun = Instant::now();
    write_atomic(path, own.text(0).as_bytes())?;
    // Others may be as slow, and have looked at the same moment.
    std::thread::sleep(settle.max(begun.elapsed() * 2));
    Ok(content(path)?.as_deref() == Some(&*own.text(0)))
}

#[cfg(test)]
mod tests;
