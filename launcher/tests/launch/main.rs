//! `dtrain launch` as a user sees it: real processes, real signals, real terminals.

#![allow(clippy::unwrap_used)]

mod batch;
mod causes;
mod ckpt;
mod complete;
mod contract;
mod doctor;
mod doctor_nodes;
mod ends;
mod exit_codes;
mod faults;
mod forms;
mod gpus;
mod hangs;
mod import;
mod lines;
mod logs;
mod notices;
mod order;
mod output;
mod pid_one;
mod plan;
mod pty;
mod pytorch;
mod recipes;
mod report;
mod restarts;
mod runs;
mod shell;
mod signals;
mod store;
mod streams;
mod supervision;
mod terminal;
mod torchrun;
mod usage;
mod watch;

/// Helpers; some are shared with tests of other crates.
mod harness {
    pub(crate) use dtrain_test_kit::process::{LONG, kill, repeat, repeats, wait_until};
    pub(crate) use dtrain_test_kit::scene::{Finished, Launch, Scene};
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use std::process::Command;

    /// Splits a command line whose words have no quotes.
    pub(crate) fn words(line: &str) -> Vec<&str> {
        line.split_whitespace().collect()
    }

    /// Writes a file that can be executed.
    pub(crate) fn executable(scene: &Scene, name: &str, content: &str) -> PathBuf {
        let path = scene.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Puts a program into the PATH of a command.
    pub(crate) fn add_to_path(scene: &Scene, command: &mut Command, name: &str, content: &str) {
        executable(scene, &format!(".tools/{name}"), content);
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", scene.path(".tools").display()));
    }

    /// Reads the result in the run directory `run`.
    #[track_caller]
    pub(crate) fn result(scene: &Scene) -> serde_json::Value {
        serde_json::from_str(&scene.read("run/result.json")).unwrap()
    }
}
