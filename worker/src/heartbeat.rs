//! Signs of life for the launcher, which finds by their absence that a training hangs.

use std::fs::File;
use std::path::Path;
use std::time::SystemTime;

use dtrain_common::env::DTRAIN_HEARTBEAT_FILE;

/// A file whose time of modification says when there was progress last.
#[derive(Debug, Default)]
pub struct Heartbeat(Option<File>);

impl Heartbeat {
    /// The file that the launcher named, if it named one.
    pub fn from_env() -> Self {
        std::env::var_os(DTRAIN_HEARTBEAT_FILE).map_or_else(Self::default, |path| Self::at(path.as_ref()))
    }

    /// A file that is made if it is not there. One that cannot be made is told and done without: it is no reason not to train.
    pub fn at(path: &Path) -> Self {
        let opened = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path);
        match opened {
            Ok(file) => Self(Some(file)),
            Err(error) => {
                tracing::warn!(
                    "cannot make {}: {error}; a hang of this training will not be found",
                    path.display()
                );
                Self(None)
            }
        }
    }

    /// There was progress.
    pub fn beat(&self) {
        if let Some(file) = &self.0
            && let Err(error) = file.set_modified(SystemTime::now())
        {
            // Silence would be taken for a hang only after many beats, and the file is on a local disk.
            tracing::debug!("cannot give a sign of life: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_beat_moves_the_time_and_no_file_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("beat");
        let heartbeat = Heartbeat::at(&path);
        let long_ago = SystemTime::now() - Duration::from_secs(3600);
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(long_ago)
            .unwrap();
        heartbeat.beat();
        let beaten = path.metadata().unwrap().modified().unwrap();
        assert!(beaten > long_ago + Duration::from_secs(3000));
        Heartbeat::at(&folder.path().join("no/such/folder")).beat();
        Heartbeat::default().beat();
    }
}
