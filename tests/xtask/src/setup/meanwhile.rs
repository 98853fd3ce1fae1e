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
        let quiet = build
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_dropped_build_ends_with_what_it_has_started() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ended");
        let mut build = Command::new("/bin/sh");
        let script =
            r#"(trap 'echo > "$0"; exit' TERM; echo > "$0.begun"; while :; do sleep 0.05; done) & wait"#;
        build.args(["-c", script]).arg(&file);
        let meanwhile = Meanwhile::start(&mut build);
        let until = |path: &std::path::Path| {
            let begun = Instant::now();
            while !path.exists() {
                assert!(
                    begun.elapsed() < Duration::from_secs(60),
                    "{} is not made",
                    path.display()
                );
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        until(&folder.path().join("ended.begun"));
        drop(meanwhile);
        until(&file);
    }
}
