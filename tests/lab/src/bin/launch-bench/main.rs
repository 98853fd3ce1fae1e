//! The workers of `cargo xtask bench launch`, and the clock that their launchers are started by.
//!
//! ```text
//! launch-bench measure FILE PROGRAM ARGS...   runs the program; its time and peak memory go to FILE as JSON
//! launch-bench lines COUNT                    a worker that prints so many lines, each by a system call of its own
//! launch-bench die FOLDER MILLISECONDS        a worker of a group of which one dies; what happens is noted in FOLDER
//! ```
//!
//! A program apart from `xtask`, and a small one: Linux counts what a process had resident before it became the launcher as
//! the launcher's own.

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
    // The first thing that a worker does, since its start is part of what is measured.
    let started = die::now();
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let (name, args) = words.split_first().context("a command is needed: measure, lines or die")?;
    match (name.to_str(), args) {
        (Some("measure"), [file, program, args @ ..]) => measure::run(Path::new(file), program, args),
        (Some("lines"), [count]) => lines::run(number(count)?).map(|()| ExitCode::SUCCESS),
        (Some("die"), [folder, after]) => {
            die::run(Path::new(folder), Duration::from_millis(number(after)?.into()), started)
        }
        _ => bail!("the arguments are wrong: see the head of this program's main.rs"),
    }
}

fn number(word: &OsString) -> Result<u32> {
    let number = word.to_str().and_then(|word| word.parse().ok());
    number.with_context(|| format!("{} is not a number", word.display()))
}

/// A variable that holds a number.
fn variable(name: &str) -> Result<u32> {
    let value =
        std::env::var_os(name).with_context(|| format!("{name} is not set: start this by a launcher"))?;
    number(&value).with_context(|| name.to_owned())
}
