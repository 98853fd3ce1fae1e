//! Python with PyTorch that starts in a moment: forks of one process that has loaded PyTorch. For tests whose subject
//! is not the start of Python.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::need::{self, Skipped};

/// Names the address of the process to `python`.
const ADDRESS: &str = "DTRAIN_TEST_FORKS";

/// The process. It ends with this one, because its standard input does.
static SERVER: OnceLock<Child> = OnceLock::new();

/// Returns a Python with PyTorch. Commands that run it, or programs that do, need [`connect`].
///
/// # Errors
/// As [`need::pytorch`].
///
/// # Panics
/// As [`need::pytorch`], and if Python does not load PyTorch.
#[track_caller]
pub fn pytorch() -> Result<PathBuf, Skipped> {
    let python = need::pytorch()?;
    SERVER.get_or_init(|| start(&python));
    Ok(folder().join("python"))
}

/// Tells the command where the process is, for [`pytorch`].
pub fn connect(command: &mut Command) {
    command.env(ADDRESS, address());
}

fn address() -> String {
    format!("dtrain-test-forks-{}", std::process::id())
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/forks")
}

fn start(python: &Path) -> Child {
    let mut command = Command::new(python);
    command.arg(folder().join("server.py")).arg(address()).env("OMP_NUM_THREADS", "1");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n", "{} does not load PyTorch", python.display());
    child
}
