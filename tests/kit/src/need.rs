//! Needs that a machine may lack. Then a test is skipped, or fails if [`REQUIRE`] names the need.

use std::fmt::{self, Display};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Names the needs of this machine, separated by commas, or `all`. A test that lacks one of them fails.
pub const REQUIRE: &str = "DTRAIN_REQUIRE";

/// Names a file to which each test that needs programs adds a line: its name, and the programs. `cargo xtask check`
/// then runs these tests with the programs hidden.
pub const RECORD: &str = "DTRAIN_RECORD_NEEDS";

/// Names a Python with PyTorch.
pub const PYTHON_WITH_PYTORCH: &str = "DTRAIN_TEST_PYTHON";

/// A need that a machine may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Control groups in which a test can limit memory.
    Cgroup,
    /// Folders of real images and texts.
    Data,
    /// The freezer of control groups of version 1.
    Freezer,
    /// Permission to mount FUSE file systems.
    Fuse,
    /// libtorch with CUDA, and `nm`.
    LibtorchCuda,
    /// Permission to mount file systems.
    Mount,
    /// Open MPI and MPICH with their compilers.
    Mpi,
    /// Permission to create network namespaces, and `ip` and `iptables`.
    Netns,
    /// torchvision, timm or transformers, in the Python with PyTorch.
    Networks,
    /// The absence of an NVIDIA driver.
    NoDriver,
    /// `python3`.
    Python,
    /// A Python with PyTorch.
    PyTorch,
    /// `shellcheck`.
    Shellcheck,
    /// Slurm and munge.
    Slurm,
}

const NEEDS: [(Need, &str); 14] = [
    (Need::Cgroup, "cgroup"),
    (Need::Data, "data"),
    (Need::Freezer, "freezer"),
    (Need::Fuse, "fuse"),
    (Need::LibtorchCuda, "libtorch-cuda"),
    (Need::Mount, "mount"),
    (Need::Mpi, "mpi"),
    (Need::Netns, "netns"),
    (Need::Networks, "networks"),
    (Need::NoDriver, "no-driver"),
    (Need::Python, "python"),
    (Need::PyTorch, "pytorch"),
    (Need::Shellcheck, "shellcheck"),
    (Need::Slurm, "slurm"),
];

impl Need {
    /// Returns the programs that packages of this need install, as far as tests start them.
    fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Mpi => &["mpicc.mpich", "mpicc.openmpi", "mpiexec.mpich", "mpirun.openmpi"],
            Self::Netns => &["ip", "iptables"],
            Self::Shellcheck => &["shellcheck"],
            Self::Slurm => &["munged", "sbatch", "scontrol", "sinfo", "slurmctld", "slurmd", "srun"],
            _ => &[],
        }
    }
}

impl Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NEEDS.iter().find(|(need, _)| need == self).map(|(_, name)| name);
        f.write_str(name.unwrap_or(&"?"))
    }
}

/// The proof that the running test is skipped, which only [`require`] makes. A helper returns it to its test by `?`,
/// and the test returns, so that nothing is asserted about what the machine could not do.
#[must_use = "end the test"]
#[derive(Debug)]
pub struct Skipped(());

/// Returns what the machine has of a need. Else reports on standard error that the running test is skipped, and why.
/// Call it in the thread of the test, or in one of the same name.
///
/// # Errors
/// The machine lacks the need.
///
/// # Panics
/// If it does and [`REQUIRE`] names the need, or an unknown need; in a thread without a name.
#[track_caller]
pub fn require<T>(need: Need, found: Result<T, impl Display>) -> Result<T, Skipped> {
    let test = std::thread::current().name().expect("a thread has the name of its test").to_owned();
    record(need, &test);
    found.map_err(|why| {
        let required = std::env::var(REQUIRE).unwrap_or_default();
        match is_required(need, &required) {
            Err(unknown) => panic!("unknown {unknown:?} in {REQUIRE}: use {}, or all", names()),
            Ok(true) => panic!("{REQUIRE} requires {need}: {why}"),
            // Not by eprintln: the test harness hides its output if the test passes.
            Ok(false) => drop(writeln!(io::stderr(), "skipped: {test} needs {need}: {why}")),
        }
        Skipped(())
    })
}

/// Adds a line to the file that [`RECORD`] names, if the need is programs.
fn record(need: Need, test: &str) {
    let programs = need.programs().join(" ");
    if let Some(path) = std::env::var_os(RECORD).filter(|_| !programs.is_empty()) {
        let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
        // One write: other tests add lines at the same time.
        file.write_all(format!("{test}: {programs}\n").as_bytes()).unwrap();
    }
}

/// Returns the Python with PyTorch that [`PYTHON_WITH_PYTORCH`] names, else that of `cargo xtask check`, else
/// that of `cargo xtask bench`.
///
/// # Errors
/// As [`require`]: there is no such Python.
///
/// # Panics
/// As [`require`] does.
#[track_caller]
pub fn pytorch() -> Result<PathBuf, Skipped> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let target = workspace.unwrap_or(Path::new(".")).join("target");
    let candidates = match std::env::var_os(PYTHON_WITH_PYTORCH) {
        Some(named) => vec![PathBuf::from(named)],
        None => ["pytorch", "bench-venv"].map(|folder| target.join(folder).join("bin/python")).into(),
    };
    let found = candidates.iter().find(|python| python.is_file()).cloned();
    let why = || format!("{} is missing; set {PYTHON_WITH_PYTORCH}", candidates[0].display());
    require(Need::PyTorch, found.ok_or_else(why))
}

/// Returns the output of a program that this machine may lack.
///
/// # Errors
/// As [`require`]: the program does not start.
///
/// # Panics
/// As [`require`].
#[track_caller]
pub fn output(need: Need, command: &mut Command) -> Result<Output, Skipped> {
    let found = command.output();
    require(
        need,
        found.map_err(|error| format!("{} does not start: {error}", command.get_program().display())),
    )
}

/// Returns whether the list names the need. The error is an unknown entry.
fn is_required(need: Need, list: &str) -> Result<bool, &str> {
    let mut entries = list.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let known = |entry: &str| entry == "all" || NEEDS.iter().any(|(_, name)| *name == entry);
    if let Some(unknown) = entries.clone().find(|entry| !known(entry)) {
        return Err(unknown);
    }
    Ok(entries.any(|entry| entry == "all" || entry == need.to_string()))
}

fn names() -> String {
    NEEDS.map(|(_, name)| name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_needs_are_required() {
        assert_eq!(is_required(Need::PyTorch, ""), Ok(false));
        assert_eq!(is_required(Need::PyTorch, "python, cgroup"), Ok(false));
        assert_eq!(is_required(Need::PyTorch, "python, pytorch"), Ok(true));
        assert_eq!(is_required(Need::Data, "all"), Ok(true));
    }

    #[test]
    fn unknown_needs_are_errors() {
        assert_eq!(is_required(Need::Python, "python,pytorhc"), Err("pytorhc"));
        let all = "cgroup, data, freezer, fuse, libtorch-cuda, mount, mpi, netns, networks, no-driver, python, pytorch, shellcheck, slurm";
        assert_eq!(names(), all);
    }
}
