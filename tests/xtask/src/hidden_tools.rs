//! The tests that need tools, on a machine without these tools: each passes or is skipped.

use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, ensure};

use crate::process::Signals;
use crate::workspace::Workspace;

/// Names the file in which tests record the tools that they need, as `TEST: TOOL TOOL`. The harness of the tests has the
/// same name.
pub(crate) const RECORD: &str = "DTRAIN_RECORD_NEEDS";

/// What the tests of a check need.
pub(crate) struct HiddenTools {
    folder: PathBuf,
}

impl HiddenTools {
    /// Begins without records.
    pub(crate) fn new(workspace: &Workspace) -> Result<Self> {
        let tools = Self { folder: workspace.target().join("hidden-tools") };
        if tools.folder.exists() {
            fs::remove_dir_all(&tools.folder).with_context(|| tools.folder.display().to_string())?;
        }
        fs::create_dir_all(tools.bin()).with_context(|| tools.folder.display().to_string())?;
        Ok(tools)
    }

    /// Returns the value of [`RECORD`].
    pub(crate) fn record(&self) -> PathBuf {
        self.folder.join("needs")
    }

    /// The PATH without the tools.
    fn bin(&self) -> PathBuf {
        self.folder.join("bin")
    }

    /// Returns the command that repeats a failed test.
    pub(crate) fn shown(&self) -> String {
        format!("PATH={} cargo test --workspace TEST", self.bin().display())
    }

    /// Runs the recorded tests with their tools hidden from PATH.
    pub(crate) fn test(&self, workspace: &Workspace, signals: &Signals, mut cargo: Command) -> Result<u8> {
        let records = fs::read_to_string(self.record());
        let records =
            records.with_context(|| format!("no test recorded a tool: {}", self.record().display()))?;
        let (mut tests, mut tools) = (BTreeSet::new(), BTreeSet::new());
        for (test, needed) in records.lines().filter_map(|line| line.split_once(": ")) {
            ensure!(test != "main", "RUST_TEST_THREADS=1 hides the names of tests: set 2");
            tests.insert(test);
            tools.extend(needed.split(' '));
        }
        link_all_but(&tools, &self.bin())?;
        let names: Vec<&str> = tools.into_iter().collect();
        eprintln!("{} tests without {}", tests.len(), names.join(", "));
        cargo.args(["test", "--workspace", "--tests", "--quiet", "--", "--exact"]).args(&tests);
        // A filter that fits no test is no failure of cargo: the tests record themselves again.
        let again = self.folder.join("needs-again");
        cargo.env("PATH", self.bin()).env(RECORD, &again);
        cargo.env_remove("DTRAIN_REQUIRE").current_dir(workspace.root());
        let code = signals.run(&mut cargo)?.code;
        if code == 0 {
            let records = fs::read_to_string(&again).unwrap_or_default();
            let ran: BTreeSet<&str> =
                records.lines().filter_map(|line| Some(line.split_once(": ")?.0)).collect();
            let absent: Vec<&str> = tests.difference(&ran).copied().collect();
            ensure!(absent.is_empty(), "these tests did not run without their tools: {}", absent.join(", "));
        }
        Ok(code)
    }
}

/// Fills a folder with links to all programs of PATH but these.
fn link_all_but(hidden: &BTreeSet<&str>, bin: &Path) -> Result<()> {
    let path = env::var_os("PATH").unwrap_or_default();
    for folder in env::split_paths(&path) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let (name, target) = (entry.file_name(), entry.path());
            let is_program = fs::metadata(&target)
                .is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0);
            let link = bin.join(&name);
            // The first folder of PATH that has a name wins.
            if is_program && !hidden.iter().any(|tool| name == *tool) && !link.exists() {
                symlink(&target, &link).with_context(|| link.display().to_string())?;
            }
        }
    }
    Ok(())
}
