//! A worker that prints as fast as it can.

use std::io::{self, Write};

use anyhow::{Context, Result};

use crate::line::line;
use crate::variable;

/// Prints `count` lines, each with its own write, as a program does that shows progress to a person.
pub(crate) fn run(count: u32) -> Result<()> {
    let rank = variable("RANK")?;
    let mut out = io::stdout().lock();
    for index in 0..count {
        let line = line(rank, index) + "\n";
        out.write_all(line.as_bytes()).context("cannot print")?;
    }
    out.flush().context("cannot print")
}
