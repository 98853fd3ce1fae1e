//! A small machine: a PATH with the programs that a test needs, and an empty workspace.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub(crate) struct Machine {
    folder: TempDir,
}

/// The end of a command.
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stderr: String,
}

impl Machine {
    /// Creates a machine with a C++ compiler and a python3 whose pip makes its own wheels.
    pub(crate) fn new() -> Self {
        let machine = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir_all(machine.path("bin")).unwrap();
        fs::create_dir_all(machine.root().join("tests/xtask")).unwrap();
        fs::write(machine.root().join("Cargo.toml"), "[workspace]\n").unwrap();
        machine.script("c++", "cat >/dev/null");
        let real =
            Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
        let real = String::from_utf8(real.stdout).unwrap();
        let fake = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/fake_python.py");
        machine.script("python3", &format!("exec {} -I -S {} \"$@\"", real.trim(), fake.display()));
        machine
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.folder.path().join(relative)
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.path("workspace")
    }

    pub(crate) fn libtorch(&self) -> PathBuf {
        self.root().join("target/libtorch")
    }

    pub(crate) fn staging(&self) -> PathBuf {
        self.root().join("target/libtorch-setup")
    }

    /// Puts a shell script on the PATH. It may use the real machine's basic programs.
    pub(crate) fn script(&self, name: &str, text: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\nPATH=/usr/bin:/bin\n{text}\n")).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    /// Puts a real program on the PATH.
    pub(crate) fn real(&self, name: &str) {
        let found = Command::new("/bin/sh").args(["-c", &format!("command -v {name}")]).output().unwrap();
        symlink(String::from_utf8(found.stdout).unwrap().trim(), self.path("bin").join(name)).unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.path("bin").join(name)).unwrap();
    }

    /// Returns `cargo xtask` as cargo starts it here, with LIBTORCH from the workspace's configuration.
    pub(crate) fn xtask(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.args(args).current_dir(self.folder.path()).env_clear();
        command.env("PATH", self.path("bin")).env("CARGO", self.path("bin/cargo"));
        command.env("CARGO_MANIFEST_DIR", self.root().join("tests/xtask"));
        command.env("LIBTORCH", self.libtorch().join("torch"));
        command.env("FAKE_LOG", self.path("log"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Runs `cargo xtask ARGS` with more variables.
    pub(crate) fn run(&self, args: &[&str], vars: &[(&str, &str)]) -> Outcome {
        let output = self.xtask(args).envs(vars.iter().copied()).output().unwrap();
        Outcome { code: output.status.code(), stderr: String::from_utf8(output.stderr).unwrap() }
    }

    /// Returns the packages that pip was asked to fetch since the last call, in order.
    pub(crate) fn fetched(&self) -> Vec<String> {
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        let _ = fs::remove_file(self.path("log"));
        log.lines().map(str::to_owned).collect()
    }

    /// Waits for the pip that hangs and returns its process id.
    pub(crate) fn hanging_pip(&self) -> String {
        let path = self.path("log.pid");
        wait_for(|| fs::read_to_string(&path).ok().filter(|pid| !pid.is_empty()))
    }
}

impl Outcome {
    /// Checks the exit code.
    #[track_caller]
    pub(crate) fn ended(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        self
    }

    #[track_caller]
    pub(crate) fn ok(&self) -> &Self {
        self.ended(0)
    }

    /// Checks that standard error has these words.
    #[track_caller]
    pub(crate) fn says(&self, words: &str) -> &Self {
        assert!(self.stderr.contains(words), "{words:?} is not in: {}", self.stderr);
        self
    }

    /// Checks that the last line is an error, in one sentence, with all these words.
    #[track_caller]
    pub(crate) fn error(&self, all: &[&str]) {
        let line = self.ended(1).stderr.lines().last().unwrap();
        assert!(line.starts_with("error: "), "no error message: {}", self.stderr);
        for words in all {
            assert!(line.contains(words), "{words:?} is not in: {line}");
        }
    }
}

/// Repeats `ask` until it returns a value; fails after a limit.
pub(crate) fn wait_for<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "time limit exceeded");
        thread::sleep(Duration::from_millis(10));
    }
}
