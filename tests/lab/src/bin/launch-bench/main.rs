//! The workers of `cargo xtask bench launch`, and a timer that runs their launchers.
//!
//! ```text
//! launch-bench measure FILE PROGRAM ARGS...   runs the program; its time and peak memory go to FILE as JSON
//! launch-bench lines COUNT                    a worker that prints COUNT lines, each with a system call
//! launch-bench start FOLDER                   a worker that notes its start in FOLDER
//! launch-bench wait                           a worker that notes its SIGTERM in $LAUNCH_BENCH_NOTES
//! launch-bench die FOLDER MILLISECONDS        a worker of a group in which one dies; notes events in FOLDER
//! ```
//!
//! A small program, separate from `xtask`: Linux counts the resident memory before exec as the launcher's.

mod die;
#[path = "../../bench/launch/line.rs"]
mod line;
mod lines;
mod measure;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};

fn main() -> Result<ExitCode> {
    // First, because a worker's start is part of the measured time.
    let started = die::now();
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let (name, args) = words.split_first().context("missing command: measure, lines, start, wait or die")?;
    match (name.to_str(), args) {
        (Some("measure"), [file, program, args @ ..]) => measure::run(Path::new(file), program, args),
        (Some("lines"), [count]) => lines::run(number(count)?).map(|()| ExitCode::SUCCESS),
        (Some("start"), [folder]) => die::start(Path::new(folder), started).map(|()| ExitCode::SUCCESS),
        (Some("wait"), []) => {
            let folder = std::env::var_os("LAUNCH_BENCH_NOTES").context("LAUNCH_BENCH_NOTES is not set")?;
            die::wait(Path::new(&folder)).map(|()| ExitCode::SUCCESS)
        }
        (Some("die"), [folder, after]) => {
            die::run(Path::new(folder), Duration::from_millis(number(after)?.into()), started)
        }
        _ => bail!("wrong arguments: see the head of this program's main.rs"),
    }
}

fn number(word: &OsString) -> Result<u32> {
    let number = word.to_str().and_then(|word| word.parse().ok());
    number.with_context(|| format!("{} is not a number", word.display()))
}

/// Reads a variable that holds a number.
fn variable(name: &str) -> Result<u32> {
    let value = std::env::var_os(name)
        .with_context(|| format!("{name} is not set: start this program with a launcher"))?;
    number(&value).with_context(|| name.to_owned())
}
