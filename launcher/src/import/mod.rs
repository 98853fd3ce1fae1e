//! `dtrain import`: makes a model of PyTorch into a file, with the user's Python.
//!
//! The files in `python/` are one script. It gets the request as JSON and writes OUTPUT.partial. Then it starts the trainer,
//! which compares its own steps with PyTorch's results, and renames the file.

use crate::ckpt::check_out;
use crate::cli::{BuilderArg, ImportArgs};
use crate::python;
use crate::stop::Stop;
use crate::trainer::find_worker;
use anyhow::{Context, bail};
use dtrain_agent::signals;
use dtrain_common::exit::ExitStatus;
use dtrain_common::files::in_memory;
use serde_json::{Map, Value};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IsTerminal, Seek, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const SCRIPT: &str = concat!(
    include_str!("python/base.py"),
    include_str!("python/blame.py"),
    include_str!("python/model.py"),
    include_str!("python/inputs.py"),
    include_str!("python/weights.py"),
    include_str!("python/untouched.py"),
    include_str!("python/image_text.py"),
    include_str!("python/images.py"),
    include_str!("python/sources.py"),
    include_str!("python/programs.py"),
    include_str!("python/ranges.py"),
    include_str!("python/precision.py"),
    include_str!("python/forms.py"),
    include_str!("python/check.py"),
    include_str!("python/reference.py"),
    include_str!("python/verdict.py"),
    include_str!("python/archive.py"),
    include_str!("python/report.py"),
    include_str!("python/own.py"),
    include_str!("python/main.py"),
);

/// Reads the script from standard input: as an argument it would fill the lists of `ps`. `-c` keeps the current folder first
/// in the search for modules.
const READ_SCRIPT: &str = "import sys; exec(compile(sys.stdin.buffer.read(), '<dtrain import>', 'exec'))";

/// Runs the command.
pub(crate) fn run(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    let output = args.output.display();
    if args.output.extension() != Some(OsStr::new("pt2")) {
        bail!("-o {output}: the name of the file must end in .pt2");
    }
    if let Some(reason) = args.without_effect() {
        bail!(reason);
    }
    check_out(&args.output, args.force)?;
    let request = request(args)?;
    let python = python::find(None, |variable| std::env::var_os(variable))?;
    let mut command = Command::new(&python);
    command
        .args(["-c", READ_SCRIPT, &request])
        .stdin(script().context("cannot store Python's script in memory")?);
    // Python gets each signal once, from the launcher: the terminal sends Ctrl-C to a whole group.
    command.process_group(0);
    let stop = Stop::listen()?;
    let child = command.spawn().with_context(|| format!("cannot start {}", python.display()))?;
    let status = stop.wait(child).with_context(|| format!("cannot wait for {}", python.display()))?;
    if status.success() {
        return Ok(ExitStatus::Success.into());
    }
    // The script has removed them, unless a signal killed Python.
    let _ = std::fs::remove_file(partial(&args.output, ".partial"));
    let _ = std::fs::remove_dir_all(partial(&args.output, ".partial.check"));
    if let Some(signal) = stop.signal() {
        // If standard error is closed, the exit code still reports the stop.
        let name = signals::name(signal);
        // Python was stopped within its line of progress.
        let line = if io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
        let _ = writeln!(io::stderr(), "{line}dtrain: error: stopped by {name}; {output} was not written");
        return Ok(ExitStatus::Signal(signal).into());
    }
    match status.signal() {
        Some(signal) => bail!(
            "{} was killed by {}; if this was SIGKILL, the memory may be too small: import on a larger machine",
            python.display(),
            signals::name(signal)
        ),
        // The script has printed the error.
        None if status.code() == Some(ExitStatus::Usage.code().into()) => Ok(ExitStatus::Usage.into()),
        None => bail!(
            "{} exited with code {} without a message of dtrain import; check that this Python works",
            python.display(),
            status.code().unwrap_or_default()
        ),
    }
}

/// Returns the script's argument.
fn request(args: &ImportArgs) -> anyhow::Result<String> {
    let output = args.output.to_str();
    let output = output.with_context(|| format!("-o {}: the name is not UTF-8", args.output.display()))?;
    let request = serde_json::json!({
        "source": args.source,
        "output": output,
        "classes": args.classes,
        "image_size": args.image_size,
        "channels": args.channels,
        "dynamic": args.dynamic,
        "inputs": args.inputs,
        "head": args.head,
        "args": by_name("--arg", &args.args)?,
        "library": args.library,
        "pretrained": args.pretrained,
        "weights": args.weights,
        "role": args.role(),
        "seed": args.seed,
        "check_with": by_name("--check-with", &args.check_with)?,
        "worker": find_worker()?.to_str().context("the path of the trainer is not UTF-8")?,
        "traceback": args.traceback,
    });
    Ok(request.to_string())
}

fn by_name(flag: &str, args: &[BuilderArg]) -> anyhow::Result<Map<String, Value>> {
    let mut all = Map::new();
    for BuilderArg { name, value } in args {
        if all.insert(name.clone(), value.clone()).is_some() {
            bail!("{flag} {name} is given twice; leave one out");
        }
    }
    Ok(all)
}

/// Returns a file in memory with the script. Unlike a pipe it takes all of it, even if Python never reads.
fn script() -> io::Result<File> {
    let mut file = in_memory("dtrain-import")?;
    file.write_all(SCRIPT.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

fn partial(output: &Path, ending: &str) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
