//! A temporary folder in which programs run. It waits for them, finds them, and kills the remaining ones.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use tempfile::TempDir;

use crate::process::{LONG, Signal, kill, processes_with, undo_ignored_signals, wait_for_end, wait_until};
use crate::programs;

/// The variable that marks the processes of a scene.
const MARK: &str = "DTRAIN_TEST_MARK";

/// A folder in which the launcher and its workers (as `$TEST_DIR`) run. Drop kills its processes.
#[derive(Debug)]
pub struct Scene {
    folder: TempDir,
    /// The value of `DTRAIN_TEST_MARK`; only processes of this scene have it.
    mark: String,
}

/// A running launcher.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The launcher process.
    pub child: Child,
    scene: &'a Scene,
    out: PathBuf,
    err: PathBuf,
}

/// An ended launcher.
#[derive(Debug)]
pub struct Finished {
    /// None if a signal killed the launcher itself.
    pub code: Option<i32>,
    /// The whole standard output.
    pub stdout: Vec<u8>,
    /// The whole standard error.
    pub stderr: String,
}

impl Finished {
    /// Returns the standard output as text.
    pub fn stdout(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }

    /// Fails if the launcher ended with another code.
    #[track_caller]
    pub fn expect_code(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "standard error:\n{}", self.stderr);
        self
    }

    /// Fails if standard error does not contain `text`.
    #[track_caller]
    pub fn expect_stderr(&self, text: &str) -> &Self {
        assert!(self.stderr.contains(text), "expected {text:?} in:\n{}", self.stderr);
        self
    }
}

impl Default for Scene {
    fn default() -> Self {
        Self::new()
    }
}

impl Scene {
    /// Creates an empty folder.
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        undo_ignored_signals();
        Self { folder: tempfile::tempdir().unwrap(), mark: format!("{}-{count}.", std::process::id()) }
    }

    /// Returns a path in the scene.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Reads a file that a worker wrote.
    #[track_caller]
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Returns the command `dtrain launch ARGS` in the scene's folder, as on a machine without a visible GPU.
    pub fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        self.adapt(Command::new(programs::dtrain()), &["launch"]).into_command(args)
    }

    /// Adds the scene's environment to any command that becomes the launcher.
    pub fn adapt(&self, mut command: Command, args: &[&str]) -> Adapted {
        for name in [
            "OMP_NUM_THREADS",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING",
            "DTRAIN_PROGRESS",
            "FAKE_WORKER",
            "CLICOLOR_FORCE",
        ] {
            command.env_remove(name);
        }
        self.mark(&mut command)
            .args(args)
            .env("CUDA_VISIBLE_DEVICES", "")
            .env("DTRAIN_WORKER", Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/dtrain-worker"))
            // Tests of colours remove it.
            .env("NO_COLOR", "1")
            .env("RESOLVER", programs::resolver())
            .env("TEST_DIR", self.folder.path());
        Adapted(command)
    }

    /// Marks a command: its processes then belong to this scene.
    pub fn mark<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.current_dir(self.folder.path()).env(MARK, &self.mark).stdin(Stdio::null())
    }

    /// Returns the variable that marks a process of this scene, for a command that begins with an empty environment.
    pub fn mark_variable(&self) -> (&'static str, &str) {
        (MARK, &self.mark)
    }

    /// Starts the command, with its output in files.
    pub fn start(&self, command: Command) -> Launch<'_> {
        self.start_as("", command)
    }

    /// Starts one of several commands, with its output in files of this name.
    pub fn start_as(&self, name: &str, mut command: Command) -> Launch<'_> {
        let (out, err) = (self.path(&format!("{name}.out")), self.path(&format!("{name}.err")));
        command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
        Launch { child: command.spawn().unwrap(), scene: self, out, err }
    }

    /// Runs `dtrain launch ARGS` to its end.
    #[track_caller]
    pub fn launch<S: AsRef<OsStr>>(&self, args: &[S]) -> Finished {
        self.start(self.command(args)).wait()
    }

    /// Runs `dtrain launch --nproc N FLAGS -- sh -c SCRIPT` to its end.
    #[track_caller]
    pub fn sh(&self, nproc: usize, flags: &[&str], script: &str) -> Finished {
        self.launch(&command_line(nproc, flags, script))
    }

    /// Starts `dtrain launch --nproc N FLAGS -- sh -c SCRIPT` and waits until every worker has created
    /// `ready.RANK`.
    #[track_caller]
    pub fn start_sh(&self, nproc: usize, flags: &[&str], script: &str) -> Launch<'_> {
        let launch = self.start(self.command(&command_line(nproc, flags, script)));
        self.wait_for_ready(nproc);
        launch
    }

    /// Waits until ranks 0 to `nproc` - 1 have created `ready.RANK`.
    #[track_caller]
    pub fn wait_for_ready(&self, nproc: usize) {
        for rank in 0..nproc {
            let file = self.path(&format!("ready.{rank}"));
            wait_until(&format!("rank {rank} to be ready"), || file.exists());
        }
    }

    /// Returns the running processes of this scene, including the launcher and its guardian.
    pub fn alive(&self) -> Vec<u32> {
        processes_with(&[&format!("{MARK}={}", self.mark)])
    }

    /// Returns the running workers of this scene and the processes that they started.
    pub fn workers(&self) -> Vec<u32> {
        processes_with(&[&format!("{MARK}={}", self.mark), "LOCAL_RANK="])
    }

    /// Returns the processes whose environment names a guardian: the launcher proper.
    pub fn launcher(&self) -> Vec<u32> {
        processes_with(&[&format!("{MARK}={}", self.mark), "DTRAIN_GUARDIAN="])
    }

    /// Waits until all these processes have ended. Looks for new ones only when all known ones have ended:
    /// reading the environments of all processes is slow.
    #[track_caller]
    pub fn wait_until_gone(&self, what: &str, processes: fn(&Self) -> Vec<u32>) {
        let begun = Instant::now();
        loop {
            let left = processes(self);
            if left.is_empty() {
                return;
            }
            for pid in left {
                wait_for_end(pid, LONG.saturating_sub(begun.elapsed()));
            }
            assert!(begun.elapsed() < LONG, "waited {LONG:?} for {what} to be gone");
        }
    }

    /// Fails if the folder holds other files than the harness's own.
    #[track_caller]
    pub fn expect_nothing_written(&self) {
        let names: Vec<_> =
            fs::read_dir(self.folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        let strange: Vec<_> = names.iter().filter(|name| !name.to_string_lossy().starts_with('.')).collect();
        assert!(strange.is_empty(), "written: {strange:?}");
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // After a failed test, no process may remain.
        for pid in self.alive() {
            kill(pid, Signal::KILL);
        }
    }
}

/// A command with the scene's environment.
#[derive(Debug)]
pub struct Adapted(Command);

impl Adapted {
    /// Appends these arguments.
    pub fn into_command<S: AsRef<OsStr>>(mut self, args: &[S]) -> Command {
        self.0.args(args);
        self.0
    }
}

impl Launch<'_> {
    /// Sends the launcher a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.child.id(), signal);
    }

    /// Returns the standard error so far.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.err).unwrap()).into_owned()
    }

    /// Returns the standard output so far.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.out).unwrap()).into_owned()
    }

    /// Waits until standard error contains `text`.
    #[track_caller]
    pub fn wait_for_stderr(&self, text: &str) {
        wait_until(&format!("the launcher to say {text:?}"), || self.stderr().contains(text));
    }

    /// Waits until standard output contains `text`.
    #[track_caller]
    pub fn wait_for_stdout(&self, text: &str) {
        wait_until(&format!("the workers to print {text:?}"), || self.stdout().contains(text));
    }

    /// Waits for the launcher's end, and fails if it left a process.
    #[track_caller]
    pub fn wait(self) -> Finished {
        let scene = self.scene;
        let done = self.wait_leaving_processes();
        scene.wait_until_gone("every process", Scene::alive);
        done
    }

    /// Waits for the launcher's end only.
    #[track_caller]
    pub fn wait_leaving_processes(mut self) -> Finished {
        let mut status = None;
        wait_until("the launcher to end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        Finished { code: status.unwrap().code(), stdout: fs::read(&self.out).unwrap(), stderr: self.stderr() }
    }
}

fn command_line(nproc: usize, flags: &[&str], script: &str) -> Vec<String> {
    let nproc = nproc.to_string();
    let before = ["--nproc", &nproc];
    before.iter().chain(flags).chain(&["--", "sh", "-c", script]).map(|word| (*word).to_owned()).collect()
}
