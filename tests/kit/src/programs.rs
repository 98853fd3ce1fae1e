//! The programs under test, which cargo builds beside the running test.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dtrain_common::question::{Question, ResolveAnswer, ResolveQuestion, Unresolved};
use dtrain_common::recipe::{AnyRecipe, Source};

use crate::need::{self, Need, Skipped};

/// Returns `target/<profile>` of the running test.
///
/// # Panics
/// If the running test is not in a cargo target folder.
pub fn build_folder() -> PathBuf {
    let exe = std::env::current_exe().expect("the running test has a path");
    let deps = exe.parent().expect("a file has a folder");
    let folder = if deps.ends_with("deps") { deps.parent().unwrap_or(deps) } else { deps };
    folder.to_owned()
}

/// Returns the path of a program of the workspace, which is built.
pub fn program(name: &str) -> PathBuf {
    let path = build_folder().join(name);
    assert!(
        path.is_file(),
        "{} is not built; run `cargo test --workspace`, or `cargo build` before it",
        path.display()
    );
    path
}

/// Returns the path of the launcher.
pub fn dtrain() -> PathBuf {
    program("dtrain")
}

/// Returns the path of the trainer.
pub fn worker() -> PathBuf {
    program("dtrain-worker")
}

/// Answers about recipes in a trainer that is a shell script, before its own lines.
pub const RESOLVE: &str = "case \"$*\" in *'\"job\":\"resolve\"'*) exec \"$RESOLVER\" \"$@\" ;; esac";

/// Returns the path of the program that answers about recipes, for [`RESOLVE`] in the variable RESOLVER.
pub fn resolver() -> PathBuf {
    program("dtrain-recipes")
}

/// Returns the path of the example of docs/own-trainer.md.
pub fn own_trainer() -> PathBuf {
    program("own-trainer")
}

/// Returns a launcher command with one thread per rank and without variables of an outer run. Several nodes need no
/// secret.
pub fn launch() -> Command {
    let mut command = Command::new(dtrain());
    command.arg("launch").env("DTRAIN_WORKER", worker()).env("OMP_NUM_THREADS", "1");
    command.env("DTRAIN_RDZV_SECRET", "none");
    without_outer_run(&mut command);
    command
}

/// Removes the variables with which an outer launcher would influence the program.
pub fn without_outer_run(command: &mut Command) {
    for (name, _) in dtrain_common::env::WorkerEnv::single().vars() {
        command.env_remove(name);
    }
    command.env_remove("DTRAIN_PROGRESS").env_remove("DTRAIN_START_UNIX_NS").env_remove("RUST_LOG");
}

/// Returns a folder of real data: below DTRAIN_TEST_DATA, else below `../shared/data` beside the workspace.
///
/// # Errors
/// As [`need::require`]: there is no such folder.
#[track_caller]
pub fn test_data(name: &str) -> Result<PathBuf, Skipped> {
    let root = match std::env::var_os("DTRAIN_TEST_DATA") {
        Some(root) => PathBuf::from(root),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
    };
    let folder = root.join(name);
    let why = format!("{} is missing; set DTRAIN_TEST_DATA", folder.display());
    need::require(Need::Data, if folder.is_dir() { Ok(folder) } else { Err(why) })
}

/// Returns a recipe as the trainer resolves it.
///
/// # Panics
/// If the trainer refuses it.
pub fn resolved(recipe: &str, sets: &[String]) -> AnyRecipe {
    let job = Question::Resolve(ResolveQuestion { check_paths: false });
    let mut command = Command::new(resolver());
    command.arg(recipe).arg("--job").arg(serde_json::to_string(&job).expect("a job is JSON"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
    let source = Source::find(recipe).expect("the recipe can be read");
    let asked = Unresolved { source, overrides: sets.to_vec() };
    let stdin = child.stdin.take().expect("a pipe");
    serde_json::to_writer(stdin, &asked).expect("the program reads");
    let output = child.wait_with_output().expect("the program ends");
    let answer: ResolveAnswer = serde_json::from_slice(&output.stdout).expect("an answer");
    answer.expect("a valid recipe").recipe
}
