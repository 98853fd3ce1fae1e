//! A temporary folder in which programs are started, waited for and looked for, and which kills what is left.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use tempfile::TempDir;

use crate::process::{LONG, Signal, kill, undo_ignored_signals, wait_for_end, wait_until, with_variables};
use crate::programs;

/// The variable that marks the processes of a scene.
const MARK: &str = "DTRAIN_TEST_MARK";

/// A folder in which the launcher and its workers run. Workers find it as `$TEST_DIR`. Its end kills every process of it.
#[derive(Debug)]
pub struct Scene {
    folder: TempDir,
    /// The value of a variable that only processes of this scene have.
    mark: String,
}

/// A launcher that runs.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The process.
    pub child: Child,
    scene: &'a Scene,
    out: PathBuf,
    err: PathBuf,
}

/// A launcher that has ended.
#[derive(Debug)]
pub struct Done {
    /// None when a signal killed the launcher itself.
    pub code: Option<i32>,
    /// Everything on standard output.
    pub stdout: Vec<u8>,
    /// Everything on standard error.
    pub stderr: String,
}

impl Done {
    /// Standard output as text.
    pub fn stdout(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }

    /// Fails where it ended otherwise.
    #[track_caller]
    pub fn expect_code(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "standard error:\n{}", self.stderr);
        self
    }

    /// Fails where standard error does not contain this.
    #[track_caller]
    pub fn says(&self, text: &str) -> &Self {
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
    /// An empty folder.
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        undo_ignored_signals();
        Self { folder: tempfile::tempdir().unwrap(), mark: format!("{}-{count}.", std::process::id()) }
    }

    /// A path inside.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The contents of a file that a worker wrote.
    #[track_caller]
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// `dtrain launch` with these arguments, in the scene's folder, on a machine without a visible GPU.
    pub fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        self.adapt(Command::new(programs::dtrain()), &["launch"]).into_command(args)
    }

    /// Any command that ends up being the launcher, with the scene's environment.
    pub fn adapt(&self, mut command: Command, args: &[&str]) -> Adapted {
        for name in ["OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "DTRAIN_PROGRESS", "FAKE_WORKER"] {
            command.env_remove(name);
        }
        self.mark(&mut command)
            .args(args)
            .env("CUDA_VISIBLE_DEVICES", "")
            .env("DTRAIN_WORKER", Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/dtrain-worker"))
            .env("TEST_DIR", self.folder.path());
        Adapted(command)
    }

    /// Marks a command, so that its processes are of this scene.
    pub fn mark<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.current_dir(self.folder.path()).env(MARK, &self.mark).stdin(Stdio::null())
    }

    /// Starts it with its output going to files.
    pub fn start(&self, mut command: Command) -> Launch<'_> {
        let (out, err) = (self.path(".out"), self.path(".err"));
        command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
        Launch { child: command.spawn().unwrap(), scene: self, out, err }
    }

    /// Runs `dtrain launch` with these arguments to its end.
    #[track_caller]
    pub fn launch<S: AsRef<OsStr>>(&self, args: &[S]) -> Done {
        self.start(self.command(args)).wait()
    }

    /// Runs `dtrain launch --nproc N FLAGS -- sh -c SCRIPT` to its end.
    #[track_caller]
    pub fn sh(&self, nproc: usize, flags: &[&str], script: &str) -> Done {
        self.launch(&words(nproc, flags, script))
    }

    /// Starts `dtrain launch --nproc N FLAGS -- sh -c SCRIPT` and waits until every worker has made
    /// `ready.RANK`.
    #[track_caller]
    pub fn start_sh(&self, nproc: usize, flags: &[&str], script: &str) -> Launch<'_> {
        let launch = self.start(self.command(&words(nproc, flags, script)));
        self.wait_for_ready(nproc);
        launch
    }

    /// Waits until so many ranks have made `ready.RANK`.
    #[track_caller]
    pub fn wait_for_ready(&self, nproc: usize) {
        for rank in 0..nproc {
            let file = self.path(&format!("ready.{rank}"));
            wait_until(&format!("rank {rank} to be ready"), || file.exists());
        }
    }

    /// Processes of this scene that run, the launcher and its guardian included.
    pub fn alive(&self) -> Vec<u32> {
        with_variables(&[&format!("{MARK}={}", self.mark)])
    }

    /// The workers of this scene that run, and what they have started.
    pub fn workers(&self) -> Vec<u32> {
        with_variables(&[&format!("{MARK}={}", self.mark), "LOCAL_RANK="])
    }

    /// The launcher proper, which has a guardian behind it.
    pub fn launcher(&self) -> Vec<u32> {
        with_variables(&[&format!("{MARK}={}", self.mark), "DTRAIN_GUARDIAN="])
    }

    /// Waits until there are none of these processes. The environments of all processes are read once for each generation of them,
    /// and not again and again while they live.
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

    /// The folder holds nothing but the harness's own files.
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
        // After a failed test nothing may go on running.
        for pid in self.alive() {
            kill(pid, Signal::KILL);
        }
    }
}

/// A command with the scene's environment.
#[derive(Debug)]
pub struct Adapted(Command);

impl Adapted {
    /// With these arguments at its end.
    pub fn into_command<S: AsRef<OsStr>>(mut self, args: &[S]) -> Command {
        self.0.args(args);
        self.0
    }
}

impl Launch<'_> {
    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.child.id(), signal);
    }

    /// What it has written to standard error so far.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.err).unwrap()).into_owned()
    }

    /// Waits for this on standard error.
    #[track_caller]
    pub fn wait_until_it_says(&self, text: &str) {
        wait_until(&format!("the launcher to say {text:?}"), || self.stderr().contains(text));
    }

    /// Waits for this on standard output.
    #[track_caller]
    pub fn wait_until_it_prints(&self, text: &str) {
        wait_until(&format!("the workers to print {text:?}"), || {
            String::from_utf8_lossy(&fs::read(&self.out).unwrap()).contains(text)
        });
    }

    /// Waits for its end, and that it left no process.
    #[track_caller]
    pub fn wait(self) -> Done {
        let scene = self.scene;
        let done = self.wait_leaving_processes();
        scene.wait_until_gone("every process", Scene::alive);
        done
    }

    /// Waits for its end alone.
    #[track_caller]
    pub fn wait_leaving_processes(mut self) -> Done {
        let mut status = None;
        wait_until("the launcher to end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        Done { code: status.unwrap().code(), stdout: fs::read(&self.out).unwrap(), stderr: self.stderr() }
    }
}

fn words(nproc: usize, flags: &[&str], script: &str) -> Vec<String> {
    let nproc = nproc.to_string();
    let before = ["--nproc", &nproc];
    before.iter().chain(flags).chain(&["--", "sh", "-c", script]).map(|word| (*word).to_owned()).collect()
}
