//! The name of a machine of fake GPUs. Its processes share files in /dev/shm.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A name that no other machine has. The machine's shared files are removed when it is dropped.
#[derive(Debug)]
pub struct MachineId(String);

impl MachineId {
    /// Creates a name.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// Returns the value of `FAKE_GPU_ID`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the folder of the shared files, which the first process that uses a GPU creates.
    pub fn folder(&self) -> PathBuf {
        let user = rustix::process::getuid().as_raw();
        PathBuf::from(format!("/dev/shm/fake-gpu-{user}-{}", self.0))
    }
}

impl Default for MachineId {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for MachineId {
    fn drop(&mut self) {
        // An unused machine has no folder.
        let _ = std::fs::remove_dir_all(self.folder());
    }
}
