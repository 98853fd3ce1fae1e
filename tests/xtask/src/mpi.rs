//! The tests of MPI's collectives, with the MPI libraries that Debian's names find.

use std::env;

use anyhow::{Result, bail};

use crate::process::Signals;
use crate::setup::Ready;
use crate::workspace::Workspace;

/// The compiler of each library, and its `mpirun`. Tests of several ranks may run on few cores, and as root.
const LIBRARIES: [(&str, &str); 2] = [
    ("mpicc.openmpi", "mpirun.openmpi --allow-run-as-root --oversubscribe"),
    ("mpicc.mpich", "mpiexec.mpich"),
];

/// The command that the tests start ranks with.
const MPIRUN: &str = "DTRAIN_TEST_MPIRUN";

/// Cargo's steps for each library. The build script of `mpi-sys` does not notice another MPICC. With the workspace and the
/// test among the targets, all other crates have the features that they have in the tests, and are not built again.
const STEPS: [&str; 3] = [
    "clean -p mpi-sys",
    "build --workspace --features dtrain-mpi-tests/mpi --bin dtrain-worker-mpi --test mpi",
    TEST,
];

const TEST: &str = "test --workspace --features dtrain-mpi-tests/mpi --test mpi";

/// Returns the command that people repeat, with the MPICC and mpirun that are printed.
pub(crate) fn shown() -> String {
    format!("cargo {TEST}")
}

/// The libraries that a check tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Libraries {
    /// The first that is there: the bindings of all have the same source.
    First,
    /// Every one.
    All,
}

/// Runs the tests and returns the exit code of the first failed step.
///
/// # Errors
///
/// A library is missing and `DTRAIN_REQUIRE` names `mpi`.
pub fn run(workspace: &Workspace, signals: &Signals, ready: &Ready, libraries: Libraries) -> Result<u8> {
    let is_required =
        env::var("DTRAIN_REQUIRE").is_ok_and(|names| names.split(',').any(|name| name.trim() == "mpi"));
    for (compiler, mpirun) in LIBRARIES {
        if !is_on_path(compiler) {
            if is_required {
                bail!("DTRAIN_REQUIRE requires mpi: no {compiler} on PATH");
            }
            eprintln!("MPI skipped: no {compiler} on PATH");
            continue;
        }
        eprintln!("MPICC={compiler} {MPIRUN}='{mpirun}' {}", shown());
        for step in STEPS {
            let mut cargo = ready.cargo(workspace);
            cargo.args(step.split(' ')).env("MPICC", compiler).env(MPIRUN, mpirun);
            let code = signals.run(&mut cargo)?.code;
            signals.check()?;
            if code != 0 {
                return Ok(code);
            }
        }
        if libraries == Libraries::First {
            break;
        }
    }
    Ok(0)
}

fn is_on_path(program: &str) -> bool {
    env::var_os("PATH")
        .is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}
