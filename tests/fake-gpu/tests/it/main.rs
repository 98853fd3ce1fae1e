//! Tests with programs in C against the fake libraries, and with libtorch.

#![allow(clippy::unwrap_used)]

mod machine;
mod names;
mod planted;
mod pytorch;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use dtrain_fake_gpu::layout::Layout;
use dtrain_test_kit::fake_gpus::MachineId;
use serde_json::Value;

/// The fake libraries, linked once.
static LAYOUT: LazyLock<Layout> =
    LazyLock::new(|| Layout::of_build(Path::new(env!("CARGO_BIN_EXE_fake-gpu")).parent().unwrap()).unwrap());

/// The programs' folder.
static PROGRAMS: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    for name in ["planted", "calls"] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(format!("{name}.c"));
        let libraries = LAYOUT.nvidia("cu13");
        let mut compile = Command::new("cc");
        compile.args(["-O1", "-Wall", "-Werror", "-o"]).arg(folder.path().join(name)).arg(source);
        compile.arg("-L").arg(&libraries).arg("-l:libcudart.so.13");
        compile.arg(format!("-Wl,-rpath,{}", LAYOUT.site().parent().unwrap().display()));
        assert!(compile.status().unwrap().success());
    }
    folder
});

/// The machine of a test, with a folder for its files.
struct Scene {
    folder: tempfile::TempDir,
    id: MachineId,
}

/// What a program printed, and its counts.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
    counts: Value,
}

impl Scene {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), id: MachineId::new() }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(PROGRAMS.path().join(program));
        self.set(&mut command);
        command
    }

    fn set(&self, command: &mut Command) {
        for (name, _) in dtrain_fake_gpu::machine::VARIABLES {
            command.env_remove(name);
        }
        command
            .env_remove("CUDA_VISIBLE_DEVICES")
            .envs(LAYOUT.variables())
            .env("FAKE_GPU_ID", self.id.as_str())
            .env("FAKE_GPU_COUNTS", self.counts());
    }

    fn counts(&self) -> PathBuf {
        self.folder.path().join("counts")
    }

    /// Runs a program to its end.
    fn run(&self, command: &mut Command) -> Ended {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let counts = self.counts().with_extension(format!("{}.json", child.id()));
        let output = child.wait_with_output().unwrap();
        let text = std::fs::read_to_string(counts).unwrap_or_default();
        Ended {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
            counts: serde_json::from_str(&text).unwrap_or_default(),
        }
    }
}

impl Ended {
    fn count(&self, name: &str) -> u64 {
        self.counts[name].as_u64().unwrap_or_else(|| panic!("no {name}: {self:?}"))
    }
}
