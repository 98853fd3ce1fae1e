//! Fetches a package with pip, unpacks it, and explains pip's failures in one sentence.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::Problem;
use super::pins::{Arch, Pin};
use crate::process::Signals;

/// Platform tags of the pinned wheels. Newer versions of pip derive older tags from the first; older versions
/// use only the listed tags.
const PLATFORMS: [&str; 10] = [
    "manylinux_2_28",
    "manylinux_2_27",
    "manylinux_2_25",
    "manylinux_2_18",
    "manylinux_2_17",
    "manylinux2014",
    "manylinux_2_12",
    "manylinux2010",
    "manylinux_2_5",
    "manylinux1",
];

/// Fetches a package and checks its hash. `scratch` is empty and also gets pip's temporary files. `target` is
/// a folder on the same disk, for messages.
pub(super) fn download(
    signals: &Signals,
    python: &OsStr,
    arch: Arch,
    pin: &Pin,
    scratch: &Path,
    target: &Path,
) -> Result<PathBuf> {
    let [list, wheels, temporary] = ["requirements.txt", "wheels", "tmp"].map(|name| scratch.join(name));
    fs::write(&list, format!("{}\n", pin.line)).map_err(|error| Problem::write(&list, error))?;
    fs::create_dir(&temporary).map_err(|error| Problem::write(&temporary, error))?;
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--no-cache-dir"])
        .args(["--no-deps", "--only-binary=:all:", "--require-hashes"])
        // A wheel for a fixed Python version: only its libraries and headers are used.
        .args(["--python-version", "3.11", "--implementation", "cp"]);
    for platform in PLATFORMS {
        pip.arg("--platform").arg(format!("{platform}_{}", arch.name()));
    }
    pip.arg("--dest").arg(&wheels).arg("--requirement").arg(&list);
    let finished = signals.run_capturing_stderr(pip.env("TMPDIR", &temporary))?;
    signals.check()?;
    if !finished.success() {
        return Err(explain(&finished.stderr, &pin.to_string(), finished.code, target).into());
    }
    let mut entries = fs::read_dir(&wheels).into_iter().flatten().flatten().map(|entry| entry.path());
    entries
        .find(|path| path.extension() == Some(OsStr::new("whl")))
        .with_context(|| format!("pip left no wheel of {} in {}", pin.name, wheels.display()))
}

/// Unpacks a wheel into `folder`.
pub(super) fn unpack(
    signals: &Signals,
    python: &OsStr,
    wheel: &Path,
    pin: &Pin,
    folder: &Path,
    target: &Path,
) -> Result<()> {
    let mut unpack = Command::new(python);
    unpack.args(["-c", include_str!("unpack.py")]).arg(wheel).arg(folder);
    let finished = signals.run_capturing_stderr(&mut unpack)?;
    signals.check()?;
    if finished.success() {
        return Ok(());
    }
    let folder = target.to_owned();
    Err(match is_full(&finished.stderr) {
        true => Problem::Full { folder },
        false => Problem::Unpack { package: pin.to_string(), last: last_error(&finished.stderr) },
    }
    .into())
}

fn is_full(stderr: &str) -> bool {
    ["No space left on device", "Disk quota exceeded"].iter().any(|words| stderr.contains(words))
}

/// Explains pip's error output. pip retries with warnings, and then often reports only that it found nothing;
/// so the warnings come first here. `package` is the fetched package; `folder` is on the disk for it.
pub fn explain(stderr: &str, package: &str, code: u8, folder: &Path) -> Problem {
    let package = package.to_owned();
    let find_line = |words: &[&str]| {
        let mut lines = stderr.lines().rev();
        lines.find(|line| words.iter().any(|word| line.contains(word))).map(|line| shorten(cause(line)))
    };
    if is_full(stderr) {
        return Problem::Full { folder: folder.to_owned() };
    }
    if find_line(&["DO NOT MATCH THE HASHES"]).is_some() {
        return Problem::Checksum { package };
    }
    if let Some(detail) = find_line(&["CERTIFICATE_VERIFY_FAILED", "SSLCertVerificationError"]) {
        return Problem::Certificate { detail };
    }
    // If the index answered with other versions, it was reached, even after retries.
    if find_line(&["(from versions: "]).is_some_and(|line| !line.contains("(from versions: none)")) {
        return Problem::NotInIndex { package };
    }
    if let Some(detail) = find_line(&NETWORK) {
        return Problem::Network { package, detail };
    }
    if find_line(&["No matching distribution found", "(from versions: none)"]).is_some() {
        return Problem::NotInIndex { package };
    }
    let last = last_error(stderr);
    Problem::Pip { package, code, last }
}

/// Words for a failed or broken connection.
const NETWORK: [&str; 17] = [
    "IncompleteRead",
    "incomplete-download",
    "not enough bytes were received",
    "Connection broken",
    "ChunkedEncodingError",
    "Connection reset by peer",
    "ProtocolError",
    "NewConnectionError",
    "Failed to establish a new connection",
    "NameResolutionError",
    "name resolution",
    "Name or service not known",
    "Network is unreachable",
    "Connection refused",
    "ProxyError",
    "Max retries exceeded",
    "timed out",
];

/// Returns the cause from a line of pip. A retry's line wraps it in the names of exception and connection:
/// object: `connection broken by 'NewConnectionError('<object>: Connection refused')': /simple/torch/`.
fn cause(line: &str) -> &str {
    let starts = ["WARNING: ", "ERROR: ", "× ", "pip._vendor."];
    let line = starts.iter().fold(line, |line, word| line.trim_start_matches(word));
    let broken = line.rsplit_once("connection broken by ");
    let line = broken.map_or(line, |(_, cause)| cause.trim_start_matches('\''));
    let line = line.rsplit_once(">: ").map_or(line, |(_, cause)| cause);
    let line = line.rsplit_once("': /").map_or(line, |(cause, _)| cause);
    line.trim().trim_end_matches("')")
}

/// Shortens a line of pip, which contains whole addresses and object names; the cause stays readable.
fn shorten(line: &str) -> String {
    const ENOUGH: usize = 200;
    match line.char_indices().nth(ENOUGH) {
        None => line.to_owned(),
        Some((end, _)) => format!("{}...", &line[..end]),
    }
}

fn last_error(stderr: &str) -> String {
    let line = |wanted: fn(&str) -> bool| stderr.lines().rev().map(str::trim).find(|line| wanted(line));
    let found = line(|line| line.starts_with("ERROR:")).or_else(|| line(|line| !line.is_empty()));
    found.map_or_else(|| "no output".to_owned(), |line| shorten(line.trim_start_matches("ERROR:").trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_pip_are_one_sentence_with_a_remedy() {
        let none = "ERROR: Could not find a version that satisfies the requirement torch==2.11.0 (from versions: none)\n\
                    ERROR: No matching distribution found for torch==2.11.0\n";
        let retry = |cause: String| {
            format!(
                "WARNING: Retrying (Retry(total=4)) after connection broken by '{cause}': /simple/torch/\n{none}"
            )
        };
        let unreachable =
            "NewConnectionError('<Connection object at 0x7f>: [Errno 111] Connection refused')".to_owned();
        let untrusted =
            "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]'))".to_owned();
        for (stderr, words) in [
            (retry(unreachable), "Connection refused; check the network and the proxy"),
            (retry(untrusted), "PIP_CERT"),
            (none.to_owned(), "has no torch 2.11.0"),
            (retry("x".to_owned()).replace("none)", "2.9.1)"), "has no torch 2.11.0"),
            (
                "Pool(host='files.example', port=443): Read timed out.".to_owned(),
                "run the same command again",
            ),
            (
                "ERROR: one\nERROR: Will not install to /x\nnotice\n".to_owned(),
                "(exit code 1): Will not install to /x",
            ),
            (String::new(), "no output"),
        ] {
            let sentence = explain(&stderr, "torch 2.11.0", 1, Path::new("/there")).to_string();
            assert!(sentence.contains(words), "{words:?} is not in: {sentence}");
            assert!(!sentence.contains('\n') && sentence.len() < 600, "{sentence}");
        }
    }
}
