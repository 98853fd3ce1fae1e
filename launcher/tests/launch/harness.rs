//! Starting the launcher in a folder of its own, and finding every process that it leaves behind.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The time in which everything happens, on a machine that is busy with something else.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// How often a case is tried whose outcome depends on the moment: `usual` times, or as `cargo xtask soak` asks.
pub(crate) fn repeats(usual: usize) -> usize {
    let asked = std::env::var("DTRAIN_SOAK").ok();
    asked.and_then(|number| number.parse().ok()).unwrap_or(usual)
}

/// Tries a case as often as [`repeats`] says, several at once: for cases that mostly wait. It gets the number of the try.
pub(crate) fn repeat(usual: usize, case: impl Fn(usize) + Sync) {
    const AT_ONCE: usize = 8;
    let (count, next) = (repeats(usual), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(count) {
            scope.spawn(|| {
                while let Some(n) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|n| *n < count) {
                    case(n);
                }
            });
        }
    });
}

/// A folder in which the launcher and its workers run. Workers find it as `$TEST_DIR`.
pub(crate) struct Scene {
    folder: TempDir,
    /// The value of a variable that only processes of this scene have.
    mark: String,
}

/// A launcher that runs.
pub(crate) struct Launch<'a> {
    pub(crate) child: Child,
    scene: &'a Scene,
    out: PathBuf,
    err: PathBuf,
}

/// A launcher that has ended.
#[derive(Debug)]
pub(crate) struct Done {
    /// None when a signal killed the launcher itself.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Done {
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }

    #[track_caller]
    pub(crate) fn expect_code(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "standard error:\n{}", self.stderr);
        self
    }

    #[track_caller]
    pub(crate) fn says(&self, text: &str) -> &Self {
        assert!(
            self.stderr.contains(text),
            "expected {text:?} in:\n{}",
            self.stderr
        );
        self
    }
}

impl Scene {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        undo_ignored_signals();
        Self {
            folder: tempfile::tempdir().unwrap(),
            mark: format!("{}-{count}.", std::process::id()),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The contents of a file that a worker wrote.
    #[track_caller]
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// `dtrain launch` with these arguments, in the scene's folder, on a machine without a visible GPU.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        self.adapt(Command::new(env!("CARGO_BIN_EXE_dtrain")), &["launch"])
            .into_command(args)
    }

    /// Any command that ends up being the launcher, with the scene's environment.
    pub(crate) fn adapt(&self, mut command: Command, args: &[&str]) -> Adapted {
        for name in [
            "OMP_NUM_THREADS",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING",
            "DTRAIN_PROGRESS",
            "FAKE_WORKER",
        ] {
            command.env_remove(name);
        }
        command
            .args(args)
            .current_dir(self.folder.path())
            .env("CUDA_VISIBLE_DEVICES", "")
            .env(
                "DTRAIN_WORKER",
                Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/dtrain-worker"),
            )
            .env("TEST_DIR", self.folder.path())
            .env("DTRAIN_TEST_MARK", &self.mark)
            .stdin(Stdio::null());
        Adapted(command)
    }

    /// Starts it with its output going to files.
    pub(crate) fn start(&self, mut command: Command) -> Launch<'_> {
        let (out, err) = (self.path(".out"), self.path(".err"));
        command
            .stdout(File::create(&out).unwrap())
            .stderr(File::create(&err).unwrap());
        Launch {
            child: command.spawn().unwrap(),
            scene: self,
            out,
            err,
        }
    }

    /// Runs `dtrain launch` with these arguments to its end.
    #[track_caller]
    pub(crate) fn launch<S: AsRef<OsStr>>(&self, args: &[S]) -> Done {
        self.start(self.command(args)).wait()
    }

    /// Runs `dtrain launch --nproc N FLAGS -- sh -c SCRIPT` to its end.
    #[track_caller]
    pub(crate) fn sh(&self, nproc: usize, flags: &[&str], script: &str) -> Done {
        self.launch(&words(nproc, flags, script))
    }

    /// Starts `dtrain launch --nproc N FLAGS -- sh -c SCRIPT` and waits until every worker has made
    /// `ready.RANK`.
    #[track_caller]
    pub(crate) fn start_sh(&self, nproc: usize, flags: &[&str], script: &str) -> Launch<'_> {
        let launch = self.start(self.command(&words(nproc, flags, script)));
        self.wait_for_ready(nproc);
        launch
    }

    #[track_caller]
    pub(crate) fn wait_for_ready(&self, nproc: usize) {
        for rank in 0..nproc {
            let file = self.path(&format!("ready.{rank}"));
            wait_until(&format!("rank {rank} to be ready"), || file.exists());
        }
    }

    /// Processes of this scene that run, the launcher and its guardian included.
    pub(crate) fn alive(&self) -> Vec<u32> {
        self.with_variables(&[&format!("DTRAIN_TEST_MARK={}", self.mark)])
    }

    /// The workers of this scene that run, and what they have started.
    pub(crate) fn workers(&self) -> Vec<u32> {
        self.with_variables(&[&format!("DTRAIN_TEST_MARK={}", self.mark), "LOCAL_RANK="])
    }

    /// The launcher proper, which has a guardian behind it.
    pub(crate) fn launcher(&self) -> Vec<u32> {
        self.with_variables(&[&format!("DTRAIN_TEST_MARK={}", self.mark), "DTRAIN_GUARDIAN="])
    }

    /// Waits until there are none of these processes. The environments of all processes are read once for each generation of them,
    /// and not again and again while they live.
    #[track_caller]
    pub(crate) fn wait_until_gone(&self, what: &str, processes: fn(&Self) -> Vec<u32>) {
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

    /// Running processes with environment variables that begin with all of these.
    fn with_variables(&self, wanted: &[&str]) -> Vec<u32> {
        let pids = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter(|pid: &u32| {
            // A process that has ended, also one not yet reaped, has no environment to read.
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            wanted.iter().all(|wanted| {
                environment
                    .split(|byte| *byte == 0)
                    .any(|variable| variable.starts_with(wanted.as_bytes()))
            })
        })
        .collect()
    }

    /// The folder holds nothing but the harness's own files.
    #[track_caller]
    pub(crate) fn expect_nothing_written(&self) {
        let names: Vec<_> = fs::read_dir(self.folder.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        let strange: Vec<_> = names
            .iter()
            .filter(|name| !name.to_string_lossy().starts_with('.'))
            .collect();
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
pub(crate) struct Adapted(Command);

impl Adapted {
    pub(crate) fn into_command<S: AsRef<OsStr>>(mut self, args: &[S]) -> Command {
        self.0.args(args);
        self.0
    }
}

impl Launch<'_> {
    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.child.id(), signal);
    }

    /// What it has written to standard error so far.
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.err).unwrap()).into_owned()
    }

    #[track_caller]
    pub(crate) fn wait_until_it_says(&self, text: &str) {
        wait_until(&format!("the launcher to say {text:?}"), || {
            self.stderr().contains(text)
        });
    }

    #[track_caller]
    pub(crate) fn wait_until_it_prints(&self, text: &str) {
        wait_until(&format!("the workers to print {text:?}"), || {
            String::from_utf8_lossy(&fs::read(&self.out).unwrap()).contains(text)
        });
    }

    /// Waits for its end, and that it left no process.
    #[track_caller]
    pub(crate) fn wait(self) -> Done {
        let scene = self.scene;
        let done = self.wait_leaving_processes();
        scene.wait_until_gone("every process", Scene::alive);
        done
    }

    #[track_caller]
    pub(crate) fn wait_leaving_processes(mut self) -> Done {
        let mut status = None;
        wait_until("the launcher to end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        Done {
            code: status.unwrap().code(),
            stdout: fs::read(&self.out).unwrap(),
            stderr: self.stderr(),
        }
    }
}

fn words(nproc: usize, flags: &[&str], script: &str) -> Vec<String> {
    let nproc = nproc.to_string();
    let before = ["--nproc", &nproc];
    before
        .iter()
        .chain(flags)
        .chain(&["--", "sh", "-c", script])
        .map(|word| (*word).to_owned())
        .collect()
}

/// Returns when the process has ended, whoever its parent is, or when the time is over.
fn wait_for_end(pid: u32, within: Duration) {
    // One that is not there any more has ended.
    if let Ok(process) = pidfd_open(Pid::from_raw(pid.cast_signed()).unwrap(), PidfdFlags::empty()) {
        let timeout = Timespec::try_from(within).unwrap();
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        retry_on_intr(|| poll(&mut ended, Some(&timeout))).unwrap();
    }
}

pub(crate) fn kill(pid: u32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal);
}

#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < LONG, "waited {LONG:?} for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A test run in a shell's background inherits INT and QUIT as ignored, and so would the launcher. A signal that has
/// a handler here is at its default there.
fn undo_ignored_signals() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let mask = status
            .lines()
            .find_map(|line| line.strip_prefix("SigIgn:"))
            .unwrap();
        let ignored = u64::from_str_radix(mask.trim(), 16).unwrap();
        for signal in [
            Signal::HUP,
            Signal::INT,
            Signal::QUIT,
            Signal::TERM,
            Signal::USR1,
            Signal::USR2,
        ] {
            if ignored & (1 << (signal.as_raw() - 1)) != 0 {
                let flag = std::sync::Arc::default();
                signal_hook::flag::register(signal.as_raw(), flag).unwrap();
            }
        }
    });
}
