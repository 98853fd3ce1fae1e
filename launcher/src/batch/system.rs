//! Commands of batch systems.

use anyhow::{Context, bail};
use dtrain_batch::System;
use std::io::{ErrorKind, Write};
use std::process::{Command, Stdio};

/// Never changes an object.
pub(super) const CREATE: [&str; 4] = ["kubectl", "create", "-f", "-"];

/// Returns the command that reads a script from standard input.
pub(super) fn command(system: System) -> &'static [&'static str] {
    match system {
        System::Slurm => &["sbatch", "--parsable"],
        System::Pbs => &["qsub"],
        System::Lsf => &["bsub"],
        System::Flux => &["flux", "batch"],
        System::K8s => &CREATE,
    }
}

/// Runs a command of a system with this standard input, and returns what it writes to standard output.
pub(super) fn run(system: &str, command: &[&str], input: &str) -> anyhow::Result<String> {
    let (program, args) = command.split_first().context("no command")?;
    let child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "{program} is not in PATH, so {system} cannot take the job; run this on a node from which jobs are \
             submitted, or write the script with --output"
        ),
        child => child.with_context(|| format!("cannot start {program}"))?,
    };
    // If the program ends without reading, its own words say why.
    let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()));
    let done = child.wait_with_output().with_context(|| format!("cannot wait for {program}"))?;
    let words = String::from_utf8_lossy(&done.stderr);
    if !done.status.success() {
        bail!("{program} refused the job: {}", words.trim());
    }
    written.with_context(|| format!("cannot hand the script over to {program}"))?;
    eprint!("{words}");
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}
