//! A folder on an odd file system: calls refused by LD_PRELOAD, or a mount that only processes of the machine see.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use dtrain_test_kit::need::{Need, Skipped, require};
use dtrain_tests::process::{Signal, output_text, signal, wait_until};
use dtrain_tests::programs::{dtrain, without_outer_run, worker};
use dtrain_tests::runs::Sandbox;

/// What the test's FUSE server lacks. All but the first also have no exchange of names and no sync of folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FuseFault {
    None,
    NoLinks,
    IgnoresCase,
    NoFolderRename,
}

pub(super) struct Machine {
    sandbox: Sandbox,
    place: Place,
}

enum Place {
    /// The library, and the calls that it refuses.
    Preload(PathBuf, &'static str),
    /// The process that holds the namespace of the mount.
    Mounted(Child),
}

/// Compiles a fixture in C, once, and returns the result.
#[track_caller]
pub(crate) fn compile(source: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/file_systems").join(source);
    let folder = tempfile::tempdir().unwrap().keep();
    let out = folder.join("compiled");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let output =
        Command::new(compiler).args(["-O1", "-o"]).arg(&out).args(flags).arg(source).arg("-ldl").output();
    let output = output.expect("a C compiler, which the build of libtorch's shim needs too");
    assert!(output.status.success(), "{}", output_text(&output));
    out
}

impl Machine {
    /// A folder in which these calls fail or are slow.
    pub(super) fn with_preload(library: &Path, faults: &'static str, recipe: &str) -> Self {
        let sandbox = Sandbox::new(recipe);
        fs::create_dir(sandbox.path("odd")).unwrap();
        Self { sandbox, place: Place::Preload(library.to_owned(), faults) }
    }

    /// A folder in memory, mounted with these options.
    pub(super) fn with_tmpfs(options: &str, recipe: &str) -> Result<Self, Skipped> {
        let script = "mount -t tmpfs -o \"$1\" none \"$2\" && echo ready && exec sleep 3600";
        Self::mounted(Need::Mount, recipe, |sandbox| vec![script.into(), options.into(), sandbox.path("odd")])
    }

    /// A folder of the test's FUSE server.
    pub(super) fn with_fuse(server: &Path, fault: FuseFault, recipe: &str) -> Result<Self, Skipped> {
        let fault = match fault {
            FuseFault::None => "none",
            FuseFault::NoLinks => "no-links",
            FuseFault::IgnoresCase => "ignores-case",
            FuseFault::NoFolderRename => "no-folder-rename",
        };
        Self::mounted(Need::Fuse, recipe, |sandbox| {
            let backing = sandbox.path("backing");
            fs::create_dir(&backing).unwrap();
            vec![
                "exec \"$1\" \"$2\" \"$3\" \"$4\"".into(),
                server.into(),
                backing,
                sandbox.path("odd"),
                fault.into(),
            ]
        })
    }

    /// Mounts by a script and its arguments, which prints `ready` and then waits.
    fn mounted(
        need: Need,
        recipe: &str,
        script: impl FnOnce(&Sandbox) -> Vec<PathBuf>,
    ) -> Result<Self, Skipped> {
        let sandbox = Sandbox::new(recipe);
        fs::create_dir(sandbox.path("odd")).unwrap();
        let words = script(&sandbox);
        let mut command = Command::new("unshare");
        command
            .args(["--user", "--map-root-user", "--mount", "sh", "-c"])
            .arg(&words[0])
            .arg("sh")
            .args(&words[1..]);
        let holder = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut holder = require(need, holder)?;
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line != "ready\n" {
            let _ = holder.kill();
            let _ = holder.wait();
        }
        require(need, (line == "ready\n").then_some(()).ok_or("cannot mount"))?;
        Ok(Self { sandbox, place: Place::Mounted(holder) })
    }

    /// Returns a program of the machine, in the odd folder. The recipe is in the folder above.
    fn program(&self, name: &Path) -> Command {
        let folder = self.sandbox.path("odd");
        let mut command = match &self.place {
            Place::Preload(library, faults) => {
                let mut command = Command::new(name);
                command.current_dir(&folder).env("LD_PRELOAD", library).env("ODD_ROOT", &folder);
                command.env("ODD_FAULTS", faults).env("ODD_SWITCH", self.sandbox.path("switch"));
                command
            }
            Place::Mounted(holder) => {
                let mut command = Command::new("nsenter");
                command.args([
                    "-t",
                    &holder.id().to_string(),
                    "-U",
                    "-m",
                    "--preserve-credentials",
                    "sh",
                    "-c",
                    "cd \"$1\" && shift && exec \"$@\"",
                    "sh",
                ]);
                command.arg(folder).arg(name);
                command
            }
        };
        command.env("DTRAIN_WORKER", worker()).env("OMP_NUM_THREADS", "1").env("CUDA_VISIBLE_DEVICES", "");
        command.stdin(Stdio::null());
        without_outer_run(&mut command);
        command
    }

    /// Returns the command `dtrain ARGS`.
    pub(super) fn dtrain(&self, args: &[&str]) -> Command {
        let mut command = self.program(&dtrain());
        command.args(args);
        command
    }

    /// Begins or ends the faults that have a switch.
    pub(super) fn switch(&self, is_on: bool) {
        let file = self.sandbox.path("switch");
        match is_on {
            true => fs::write(file, "").unwrap(),
            false => fs::remove_file(file).unwrap(),
        }
    }

    /// Reads a file in the odd folder.
    #[track_caller]
    pub(super) fn read(&self, name: &str) -> Vec<u8> {
        let output = self.program(Path::new("/bin/cat")).arg(name).output().unwrap();
        assert!(output.status.success(), "{}", output_text(&output));
        output.stdout
    }

    pub(super) fn exists(&self, name: &str) -> bool {
        self.program(Path::new("/usr/bin/test")).args(["-e", name]).status().unwrap().success()
    }

    /// Starts `dtrain ARGS` with its output in a file.
    pub(super) fn start(&self, args: &[&str]) -> Child {
        let out = File::create(self.sandbox.path("out")).unwrap();
        self.dtrain(args).stdout(out.try_clone().unwrap()).stderr(out).spawn().unwrap()
    }

    /// Returns what the started program has printed.
    pub(super) fn printed(&self) -> String {
        fs::read_to_string(self.sandbox.path("out")).unwrap()
    }

    /// Waits until the started program has printed a text.
    #[track_caller]
    pub(super) fn wait_for_text(&self, child: &mut Child, text: &str) {
        wait_until(text, || {
            let printed = self.printed();
            let is_there = printed.contains(text);
            assert!(is_there || child.try_wait().unwrap().is_none(), "ended without {text:?}: {printed}");
            is_there
        });
    }

    /// Asks a started program to stop, and expects this exit code.
    #[track_caller]
    pub(super) fn stop(&self, mut child: Child, code: i32) {
        signal(child.id(), Signal::TERM);
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(code), "{}", self.printed());
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Place::Mounted(holder) = &mut self.place {
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}
