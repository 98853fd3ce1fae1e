//! The workers' signs of life: files that they touch, and a thread that looks at them.
//!
//! A file costs the worker one system call per step, any program in any language can do it, and nobody waits for anybody.
//! The files lie in the machine's temporary folder and not in the run directory, which may be on a network.

use crate::process::SMALL_STACK;
use crate::temporary::Temporary;
use anyhow::Context;
use crossbeam_channel::{RecvTimeoutError, Sender};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

/// How often the files are looked at. Steps are shorter, hangs are longer.
const EVERY: Duration = Duration::from_millis(500);

/// The files of one attempt; they are gone when it is dropped.
#[derive(Debug)]
pub(super) struct Heartbeats {
    folder: TempDir,
}

/// The looking goes on as long as this lives.
#[derive(Debug)]
pub(super) struct Watching {
    _stop: Sender<()>,
}

impl Heartbeats {
    /// Makes the folder.
    ///
    /// # Errors
    /// The temporary folder cannot be written to.
    pub(super) fn new(temporary: &Temporary) -> anyhow::Result<Self> {
        let folder = temporary.folder("beat-")?;
        Ok(Self { folder })
    }

    /// The file of a rank.
    pub(super) fn file(&self, rank: usize) -> PathBuf {
        self.folder.path().join(format!("rank_{rank}"))
    }

    /// Calls `beat` with the rank each time a file has been touched since it was looked at last.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn watch(
        &self,
        workers: usize,
        beat: impl Fn(usize) + Send + 'static,
    ) -> anyhow::Result<Watching> {
        let (stop, stopped) = crossbeam_channel::bounded::<()>(0);
        let files: Vec<PathBuf> = (0..workers).map(|rank| self.file(rank)).collect();
        std::thread::Builder::new()
            .name("heartbeats".to_owned())
            .stack_size(SMALL_STACK)
            .spawn(move || {
                let mut seen = vec![None; files.len()];
                while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                    for (rank, file) in files.iter().enumerate() {
                        let touched = touched(file);
                        if touched.is_some() && touched != std::mem::replace(&mut seen[rank], touched) {
                            beat(rank);
                        }
                    }
                }
            })
            .context("cannot start the thread that looks at the workers' heartbeats")?;
        Ok(Watching { _stop: stop })
    }
}

fn touched(file: &Path) -> Option<SystemTime> {
    fs::metadata(file).ok()?.modified().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn touching_is_seen_and_silence_is_not() {
        let temporary = Temporary::make().unwrap();
        let beats = Heartbeats::new(&temporary).unwrap();
        let (out, seen) = crossbeam_channel::unbounded();
        let watching = beats
            .watch(2, move |rank| {
                let _ = out.send(rank);
            })
            .unwrap();
        fs::write(beats.file(1), "").unwrap();
        assert_eq!(seen.recv_timeout(Duration::from_secs(60)), Ok(1));
        let file = fs::File::options().write(true).open(beats.file(1)).unwrap();
        file.set_modified(SystemTime::now() + Duration::from_secs(3))
            .unwrap();
        assert_eq!(seen.recv_timeout(Duration::from_secs(60)), Ok(1));
        assert!(seen.recv_timeout(3 * EVERY).is_err());
        drop(watching);
        // The thread ends, and with it the only sender.
        assert_eq!(
            seen.recv_timeout(Duration::from_secs(60)),
            Err(RecvTimeoutError::Disconnected)
        );
    }
}
