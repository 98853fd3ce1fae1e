//! Building what needs no libtorch while libtorch is fetched.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

/// A build in the background, which ends when this is dropped. What it has built by then is not built again.
#[derive(Debug)]
pub(crate) struct Meanwhile(Option<Child>);

impl Meanwhile {
    /// Starts it, in a group of its own: Ctrl-C is for the set-up, which then drops this. It may fail, as all that needs libtorch
    /// does: the build that follows says what is wrong.
    pub(crate) fn start(build: &mut Command) -> Self {
        let quiet = build.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(quiet.process_group(0).spawn().ok())
    }
}

impl Drop for Meanwhile {
    fn drop(&mut self) {
        let Some(child) = &mut self.0 else { return };
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        // One that has ended has nothing left to be ended.
        let _ = group.map(|group| kill_process_group(group, Signal::TERM));
        let _ = child.wait();
    }
}
