//! Compares predictions for imported programs with the allocator's peak on machines of fake GPUs.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use xtask::workspace::Workspace;

use super::Bench;
use super::accuracy::{self, ASSUMED, Found, ON_FAKES};
use crate::commands::run_to_end;
use crate::exported::{IMPORT, SCRIPT};
use crate::files::read;
use crate::report::Group;

/// The script's report about a program.
#[derive(Deserialize)]
struct Written {
    name: String,
    error: Option<String>,
}

/// The bytes of a step.
#[derive(Deserialize)]
struct Memory {
    measured: u64,
    predicted: u64,
}

/// Exports the models of `list`, and runs two steps of each on one of the machines in turn. The weights of convolutions are
/// channels-last, so that cuDNN needs no copies, if the program runs with them.
pub(super) fn run(
    benches: &[Bench<'_>],
    workspace: &Workspace,
    python: &Path,
    list: &Path,
) -> Result<Vec<Group>> {
    let bench = benches.first().context("no machine")?;
    let work = bench.work.join("programs");
    let exported = bench.dtrain.with_file_name("examples").join("exported");
    let mut script = Command::new(python);
    script.current_dir(workspace.root()).args([SCRIPT, IMPORT]).arg(&exported);
    script.arg(list.canonicalize().with_context(|| list.display().to_string())?);
    let code = bench.signals.run(script.arg(&work).arg("--write"))?.code;
    bench.signals.check()?;
    ensure!(code == 0, "{} ended with exit code {code}", python.display());
    let lines = read(&work.join("found.jsonl"))?;
    let (mut known, mut assumed): (Vec<Found>, Vec<Found>) = (Vec::new(), Vec::new());
    for (line, bench) in lines.lines().zip(benches.iter().cycle()) {
        bench.signals.check()?;
        let Written { name, error } = serde_json::from_str(line).context("the script's output")?;
        eprintln!("measuring {name}");
        let files = ["pt2", "inputs.safetensors"].map(|kind| work.join(format!("{name}.{kind}")));
        let measure = |flags: &[&str]| -> Result<(u64, u64)> {
            let mut command = bench.command(&exported);
            // As dtrain sets it: blocks are split to the byte.
            command.env("PYTORCH_ALLOC_CONF", "expandable_segments:True");
            command.args(&files).args(["/dev/null", "--memory", "--gpu"]).args(flags);
            let ended = run_to_end(bench.signals, &mut command)?.expect(0)?;
            let memory: Memory = serde_json::from_str(&ended.stdout)?;
            Ok((memory.measured, memory.predicted))
        };
        let found = match error {
            Some(error) => Err(anyhow::anyhow!("not exported: {error}")),
            None => measure(&["--channels-last"]),
        };
        match found {
            // The program views what is channels-last now as if it were not.
            Err(error) if format!("{error:#}").contains("view size is not compatible") => {
                assumed.push((name, measure(&[])));
            }
            found => known.push((name, found)),
        }
        for file in files {
            let _ = std::fs::remove_file(file);
        }
    }
    if known.is_empty() {
        bail!("{} lists no model", list.display());
    }
    let title = "imported programs, five fake GPUs in turn";
    Ok(vec![
        accuracy::group(title, known.into_iter(), Some(ON_FAKES))?,
        accuracy::group(&format!("{title}{ASSUMED}"), assumed.into_iter(), None)?,
    ])
}
