//! The workers' heartbeats: files that workers touch and the launcher checks.
//!
//! A file costs the worker one system call per step, works from any language, and makes no process wait. The
//! files are in the machine's temporary folder, because the run directory may be on a network.

use crate::clock::StartTime;
use crate::io::temporary::Temporary;
use crate::local::Event;
use dtrain_common::env::HEARTBEAT_WRITING;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

/// The heartbeat files of one attempt and their last known times. Dropping removes the files.
#[derive(Debug)]
pub struct Heartbeats {
    folder: TempDir,
    touched: Vec<Option<SystemTime>>,
    looked: Duration,
}

impl Heartbeats {
    pub fn new(temporary: &Temporary, workers: usize, start_time: StartTime) -> anyhow::Result<Self> {
        let folder = temporary.folder("beat-")?;
        Ok(Self { folder, touched: vec![None; workers], looked: start_time.elapsed() })
    }

    pub fn file(&self, rank: usize) -> PathBuf {
        self.folder.path().join(format!("rank_{rank}"))
    }

    pub fn has_seen_any(&self) -> bool {
        self.touched.iter().any(Option::is_some)
    }

    /// Returns the beats since the last look, each with its own time if possible: the order of silence is
    /// decided by milliseconds, but the looks are rarer.
    pub fn look(&mut self, start_time: StartTime) -> Vec<Event> {
        let (now, wall) = (start_time.elapsed(), SystemTime::now());
        let mut beats = Vec::new();
        for rank in 0..self.touched.len() {
            let file = self.file(rank);
            let touched = fs::metadata(&file).and_then(|data| data.modified()).ok();
            let Some(time) = touched.filter(|_| touched != self.touched[rank]) else {
                continue;
            };
            self.touched[rank] = touched;
            // The beat came after the last look, even if the calendar was changed.
            let at = now.saturating_sub(wall.duration_since(time).unwrap_or_default()).max(self.looked);
            let writing =
                fs::read(file).is_ok_and(|content| content.starts_with(HEARTBEAT_WRITING.as_bytes()));
            beats.push(Event::Beat { rank, at, writing });
        }
        self.looked = now;
        beats
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::path::Path;
    use std::time::Instant;

    fn touch(path: &Path, time: SystemTime) {
        let file = fs::File::options().create(true).truncate(false).write(true).open(path).unwrap();
        file.set_modified(time).unwrap();
    }

    /// Returns a launch that began 100 s ago.
    fn start_time() -> StartTime {
        let ago = Duration::from_secs(100);
        StartTime { at: Instant::now().checked_sub(ago).unwrap(), wall: SystemTime::now() - ago }
    }

    #[test]
    fn touching_is_seen_once_and_silence_is_not() {
        let temporary = Temporary::make().unwrap();
        let start_time = start_time();
        let mut beats = Heartbeats::new(&temporary, 2, start_time).unwrap();
        assert_eq!(beats.look(start_time), []);
        touch(&beats.file(1), SystemTime::now());
        assert!(matches!(beats.look(start_time)[..], [Event::Beat { rank: 1, writing: false, .. }]));
        assert_eq!(beats.look(start_time), []);
        fs::write(beats.file(1), HEARTBEAT_WRITING).unwrap();
        touch(&beats.file(1), SystemTime::now() + Duration::from_secs(3));
        assert!(matches!(beats.look(start_time)[..], [Event::Beat { writing: true, .. }]));
    }

    #[test]
    fn beats_have_their_own_times_but_not_before_the_last_look_nor_after_this() {
        let temporary = Temporary::make().unwrap();
        let start_time = start_time();
        let mut beats = Heartbeats::new(&temporary, 4, start_time).unwrap();
        beats.looked = Duration::from_secs(50);
        let now = SystemTime::now();
        for (rank, ago) in [(0, 10), (1, 20), (2, 90)] {
            touch(&beats.file(rank), now - Duration::from_secs(ago));
        }
        touch(&beats.file(3), now + Duration::from_secs(1000));
        let at: Vec<_> = beats
            .look(start_time)
            .iter()
            .map(|beat| match beat {
                Event::Beat { at, .. } => *at,
                other => panic!("{other:?}"),
            })
            .collect();
        let near = |at: Duration, seconds: u64| at.abs_diff(Duration::from_secs(seconds)).as_secs() < 5;
        assert!(near(at[0], 90) && near(at[1], 80), "{at:?}");
        assert_eq!(at[2], Duration::from_secs(50));
        assert!(at[3] <= start_time.elapsed());
    }
}
