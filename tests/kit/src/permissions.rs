//! Files and folders without permission, also for root.

use rustix::thread::{CapabilitySet, capabilities, remove_capability_from_bounding_set, set_capabilities};

/// Capabilities by which root reads and writes files despite their permissions.
const OVERRIDES: [CapabilitySet; 2] = [CapabilitySet::DAC_OVERRIDE, CapabilitySet::DAC_READ_SEARCH];

/// Runs `work` in a thread that obeys permissions, even as root; its programs and threads obey them too.
///
/// # Panics
/// If `work` panics, or if Linux does not report the thread's capabilities.
pub fn with_permissions<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            give_up_overrides();
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn give_up_overrides() {
    // A program of root gets the whole bounding set. Other users cannot change it, and need no change.
    for capability in OVERRIDES {
        let _ = remove_capability_from_bounding_set(capability);
    }
    let mut sets = capabilities(None).expect("cannot read capabilities");
    for capability in OVERRIDES {
        sets.effective.remove(capability);
        sets.permitted.remove(capability);
        sets.inheritable.remove(capability);
    }
    set_capabilities(None, sets).expect("cannot drop capabilities");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    #[test]
    fn with_permissions_cannot_read_forbidden_files() {
        let path = std::env::temp_dir().join(format!("dtrain-test-kit-{}", std::process::id()));
        fs::write(&path, "secret").expect("a file is written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("permissions change");
        let (here, started) = with_permissions(|| {
            let cat = Command::new("cat").arg(&path).output().expect("cat starts");
            (fs::read(&path).is_err(), !cat.status.success())
        });
        fs::remove_file(&path).expect("the file is removed");
        assert!(here, "a thread reads the file");
        assert!(started, "a program reads the file");
    }
}
