//! A launch of this program by itself, with its output in a file.

use crate::cli::{OWN_OF_A_TRY, variable_of};
use crate::stop::Stop;
use anyhow::Context;
use dtrain_common::env::DTRAIN_OF_TRY;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time between two looks at a child.
const PACE: Duration = Duration::from_millis(100);
/// Bytes at the end of a log in which the last lines are.
const TAIL: u64 = 16 << 10;

/// How a child ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// As a shell's.
    pub(super) code: u8,
    log: PathBuf,
}

impl Ended {
    /// Returns why a child without a result failed, by what it has printed.
    pub(super) fn last_words(&self) -> String {
        let text = tail(&self.log);
        let said = text.lines().rev().find_map(|line| line.split_once("error: ").map(|(_, words)| words));
        let last = || text.lines().rev().find(|line| !line.trim().is_empty());
        said.or_else(last).unwrap_or("it printed nothing").trim().to_owned()
    }

    pub(super) fn log(&self) -> &Path {
        &self.log
    }
}

/// Runs `dtrain ARGS` with its output in `log`, and calls `look` with its latest line until it has ended.
pub(super) fn run<S: AsRef<OsStr>>(
    args: &[S],
    log: PathBuf,
    stop: &Stop,
    mut look: impl FnMut(&str),
) -> anyhow::Result<Ended> {
    let own = std::env::current_exe().context("cannot find the path of dtrain")?;
    let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new(&own);
    // The parent reads its lines: they are text without colours.
    command.args(args).env(DTRAIN_OF_TRY, "1").env("NO_COLOR", "1").stdin(Stdio::null());
    for flag in OWN_OF_A_TRY {
        command.env_remove(variable_of(flag));
    }
    command.stdout(file.try_clone().context("cannot share the log")?).stderr(file);
    // It gets each signal once, from this process: the terminal sends Ctrl-C to a whole group.
    command.process_group(0);
    let mut child = command.spawn().with_context(|| format!("cannot start {}", own.display()))?;
    stop.begin(&child);
    let status = loop {
        if let Some(status) = child.try_wait().context("cannot wait for dtrain")? {
            break status;
        }
        let text = tail(&log);
        // A frame of a progress bar ends with a carriage return.
        look(text.trim_end().rsplit(['\n', '\r']).next().unwrap_or_default());
        std::thread::sleep(PACE);
    };
    stop.end();
    let signal = status.signal().map(|signal| 128 + signal);
    let code = status.code().or(signal).and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(Ended { code, log })
}

/// Returns the end of a file; empty if it cannot be read.
fn tail(path: &Path) -> String {
    let read = || {
        let mut file = File::open(path)?;
        let length = fs::metadata(path)?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
        let mut bytes = Vec::new();
        file.take(TAIL).read_to_end(&mut bytes)?;
        std::io::Result::Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_last_words_are_those_of_the_error() {
        let folder = tempfile::tempdir().unwrap();
        let words = |text: &str| {
            let log = folder.path().join("log");
            fs::write(&log, text).unwrap();
            Ended { code: 2, log }.last_words()
        };
        assert_eq!(words("a\ndtrain: error: no such file; name one\n\nb\n"), "no such file; name one");
        assert_eq!(words("one\ntwo\n\n"), "two");
        assert_eq!(words(""), "it printed nothing");
    }
}
