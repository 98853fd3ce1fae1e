//! Builds everything that needs no libtorch while libtorch is fetched.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

/// A build in the background; dropping it ends the build. Later builds reuse its results.
#[derive(Debug)]
pub(crate) struct BackgroundBuild(Option<Child>);

impl BackgroundBuild {
    /// Starts the build in a new process group: Ctrl-C reaches only the set-up, which then drops this. The
    /// build may fail where it needs libtorch; the later build reports errors.
    pub(crate) fn start(build: &mut Command) -> Self {
        let quiet = build.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(quiet.process_group(0).spawn().ok())
    }
}

impl Drop for BackgroundBuild {
    fn drop(&mut self) {
        let Some(child) = &mut self.0 else { return };
        // A build that has ended needs no signal.
        let _ = kill_process_group(Pid::from_child(child), Signal::TERM);
        let _ = child.wait();
    }
}
