//! Fetching one package with pip and unpacking it, with pip's failures told in one sentence.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::Problem;
use super::requirement::{Arch, Requirement};
use crate::process::Signals;

/// Platform tags that the pinned wheels bear. Newer versions of pip derive the older ones from the first, older
/// versions take each as it is written.
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

/// Fetches packages for one architecture with one Python.
#[derive(Debug)]
pub(crate) struct Fetcher<'a> {
    pub(crate) python: &'a OsStr,
    pub(crate) arch: Arch,
    pub(crate) signals: &'a Signals,
    /// The folder on whose disk everything lies, to be named to people.
    pub(crate) target: &'a Path,
}

impl Fetcher<'_> {
    /// Fetches a package and unpacks it into `tree`. `scratch` is empty before and can be removed after; it is on the
    /// disk of `tree`, and pip's own temporary files are made in it too.
    pub(crate) fn fetch(&self, requirement: &Requirement, scratch: &Path, tree: &Path) -> Result<()> {
        let wheel = self.download(requirement, scratch)?;
        let mut unpack = Command::new(self.python);
        unpack
            .args(["-c", include_str!("unpack.py")])
            .arg(&wheel)
            .arg(tree);
        let finished = self.signals.run_noting_errors(&mut unpack)?;
        self.signals.check()?;
        if finished.success() {
            return Ok(());
        }
        if is_full(&finished.stderr) {
            return Err(Problem::Full {
                folder: self.target.to_owned(),
            }
            .into());
        }
        Err(Problem::Unpack {
            package: package(requirement),
            last: last_words(&finished.stderr),
        }
        .into())
    }

    fn download(&self, requirement: &Requirement, scratch: &Path) -> Result<PathBuf> {
        let list = scratch.join("requirement.txt");
        fs::write(&list, format!("{}\n", requirement.line)).map_err(|error| Problem::write(&list, error))?;
        let wheels = scratch.join("wheels");
        let temporary = scratch.join("tmp");
        fs::create_dir(&temporary).map_err(|error| Problem::write(&temporary, error))?;

        let mut pip = Command::new(self.python);
        pip.args([
            "-m",
            "pip",
            "download",
            "--disable-pip-version-check",
            "--no-input",
            "--no-cache-dir",
        ]);
        pip.args(["--no-deps", "--only-binary=:all:", "--require-hashes"]);
        // One Python's wheel, whatever this one is: only its libraries and headers are used.
        pip.args(["--python-version", "3.11", "--implementation", "cp"]);
        for platform in PLATFORMS {
            pip.arg("--platform")
                .arg(format!("{platform}_{}", self.arch.name()));
        }
        pip.arg("--dest").arg(&wheels).arg("--requirement").arg(&list);
        pip.env("TMPDIR", &temporary);
        let finished = self.signals.run_noting_errors(&mut pip)?;
        self.signals.check()?;
        if !finished.success() {
            return Err(explain(
                &finished.stderr,
                &package(requirement),
                finished.code,
                self.target,
            )
            .into());
        }
        find_wheel(&wheels).with_context(|| {
            format!(
                "pip left no wheel of {} in {}",
                requirement.name,
                wheels.display()
            )
        })
    }
}

fn package(requirement: &Requirement) -> String {
    format!("{} {}", requirement.name, requirement.version)
}

fn find_wheel(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?;
    entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension() == Some(OsStr::new("whl")))
}

fn is_full(stderr: &str) -> bool {
    ["No space left on device", "Disk quota exceeded"]
        .iter()
        .any(|words| stderr.contains(words))
}

/// What pip's words mean. It retries, warning each time, and then often says only that nothing was found, so the
/// warnings are looked at first. `package` names what was fetched and `folder` is on the disk that it was for.
pub(crate) fn explain(stderr: &str, package: &str, code: u8, folder: &Path) -> Problem {
    let package = package.to_owned();
    let says = |words: &[&str]| {
        let line = stderr
            .lines()
            .rev()
            .find(|line| words.iter().any(|word| line.contains(word)));
        line.map(|line| shorten(cause(line)))
    };
    if is_full(stderr) {
        return Problem::Full {
            folder: folder.to_owned(),
        };
    }
    if says(&["DO NOT MATCH THE HASHES"]).is_some() {
        return Problem::Checksum { package };
    }
    if let Some(detail) = says(&["CERTIFICATE_VERIFY_FAILED", "SSLCertVerificationError"]) {
        return Problem::Certificate { detail };
    }
    // An index that answered with other versions was reached, whatever was retried before.
    if says(&["(from versions: "]).is_some_and(|line| !line.contains("(from versions: none)")) {
        return Problem::NotInIndex { package };
    }
    if let Some(detail) = says(&CUT) {
        return Problem::Cut { package, detail };
    }
    if let Some(detail) = says(&UNREACHABLE) {
        return Problem::Network { package, detail };
    }
    if says(&["No matching distribution found", "(from versions: none)"]).is_some() {
        return Problem::NotInIndex { package };
    }
    Problem::Pip {
        package,
        code,
        last: last_words(stderr),
    }
}

/// Words of a connection that broke after it had been made.
const CUT: [&str; 8] = [
    "IncompleteRead",
    "incomplete-download",
    "not enough bytes were received",
    "Connection broken",
    "ChunkedEncodingError",
    "Connection reset by peer",
    "ProtocolError",
    "Read timed out",
];

/// Words of a connection that was never made.
const UNREACHABLE: [&str; 11] = [
    "NewConnectionError",
    "Failed to establish a new connection",
    "NameResolutionError",
    "name resolution",
    "Name or service not known",
    "Network is unreachable",
    "Connection refused",
    "ConnectTimeoutError",
    "ProxyError",
    "Max retries exceeded",
    "connection timed out",
];

/// The cause in a line of pip's. A retry's is wrapped in the names of its exception and its connection object:
/// `connection broken by 'NewConnectionError('<object>: Connection refused')': /simple/torch/`.
fn cause(line: &str) -> &str {
    let line = ["WARNING: ", "ERROR: ", "× ", "pip._vendor."]
        .iter()
        .fold(line, |line, word| line.trim_start_matches(word));
    let line = line
        .rsplit_once("connection broken by ")
        .map_or(line, |(_, cause)| cause.trim_start_matches('\''));
    let line = line.rsplit_once(">: ").map_or(line, |(_, cause)| cause);
    line.rsplit_once("': /")
        .map_or(line, |(cause, _)| cause)
        .trim()
        .trim_end_matches("')")
}

/// pip's lines hold whole addresses and object names: enough of one to know the cause.
fn shorten(line: &str) -> String {
    const ENOUGH: usize = 200;
    match line.char_indices().nth(ENOUGH) {
        None => line.to_owned(),
        Some((end, _)) => format!("{}...", &line[..end]),
    }
}

fn last_words(stderr: &str) -> String {
    let line = |wanted: &dyn Fn(&str) -> bool| stderr.lines().rev().map(str::trim).find(|line| wanted(line));
    let found = line(&|line| line.starts_with("ERROR:")).or_else(|| line(&|line| !line.is_empty()));
    found.map_or_else(
        || "it said nothing".to_owned(),
        |line| shorten(line.trim_start_matches("ERROR:").trim()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sentence for what pip wrote.
    fn sentence(stderr: &str) -> String {
        explain(stderr, "torch 2.11.0", 1, Path::new("/there")).to_string()
    }

    fn assert_says(stderr: &str, words: &[&str]) {
        let sentence = sentence(stderr);
        for word in words {
            assert!(sentence.contains(word), "{word:?} is not in: {sentence}");
        }
        assert!(!sentence.contains('\n') && sentence.len() < 600, "{sentence}");
    }

    const NONE: &str = "ERROR: Could not find a version that satisfies the requirement torch==2.11.0 (from versions: none)\n\
                        ERROR: No matching distribution found for torch==2.11.0\n";

    #[test]
    fn an_index_out_of_reach_is_not_one_without_the_package() {
        for cause in [
            "NewConnectionError('<Connection object at 0x7f>: Failed to establish a new connection: [Errno 111] \
             Connection refused')",
            "NameResolutionError(\"Failed to resolve 'index.example' ([Errno -3] Temporary failure in name resolution)\")",
            "ProxyError('Cannot connect to proxy.', OSError('Tunnel connection failed: 403 Forbidden'))",
            "ConnectTimeoutError(<Connection object at 0x7f>, 'Connection to index.example timed out.')",
        ] {
            let retry = format!(
                "WARNING: Retrying (Retry(total=4, connect=None)) after connection broken by '{cause}': /simple/torch/\n"
            );
            assert_says(
                &format!("{retry}{NONE}"),
                &["could not reach the package index", "HTTPS_PROXY"],
            );
        }
    }

    #[test]
    fn the_cause_is_told_without_what_pip_wraps_it_in() {
        let retry = "WARNING: Retrying (Retry(total=4, connect=None)) after connection broken by \
                     'NewConnectionError('<connection.HTTPSConnection object at 0x7f36>: Failed to establish a new \
                     connection: [Errno -3] Temporary failure in name resolution')': /simple/torch/";
        assert_eq!(
            cause(retry),
            "Failed to establish a new connection: [Errno -3] Temporary failure in name resolution"
        );
        assert_eq!(cause("ERROR: Read timed out."), "Read timed out.");
        assert_eq!(cause("× Download failed"), "Download failed");
        assert_eq!(
            cause("pip._vendor.urllib3.exceptions.ProtocolError: x"),
            "urllib3.exceptions.ProtocolError: x"
        );
    }

    #[test]
    fn an_index_without_the_version_is_named_as_such() {
        assert_says(NONE, &["has no torch 2.11.0", "PIP_INDEX_URL"]);
        let retried = "WARNING: Retrying (Retry(total=4)) after connection broken by 'ReadTimeoutError(\"Read timed out.\")'\n\
                       ERROR: Could not find a version that satisfies the requirement torch==2.11.0 (from versions: 2.9.1)\n";
        assert_says(retried, &["has no torch 2.11.0"]);
    }

    #[test]
    fn a_wrong_checksum_is_never_retried_away() {
        let words = "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated the \
                     package versions, please update the hashes.\n    torch==2.11.0:\n        Expected sha256 7aa2\n\
                     \x20            Got        0000\n";
        assert_says(words, &["does not have the pinned checksum", "was not used"]);
    }

    #[test]
    fn a_cut_download_is_named_as_such() {
        for words in [
            "ERROR: Exception:\nurllib3.exceptions.IncompleteRead: IncompleteRead(1048576 bytes read, 529555972 more)\n",
            "error: incomplete-download\n\nx Download failed because not enough bytes were received (1.0 MB/530.6 MB)\n",
            "urllib3.exceptions.ProtocolError: (\"Connection broken: ConnectionResetError(104, 'Connection reset by \
             peer')\")\n",
            "urllib3.exceptions.ReadTimeoutError: Pool(host='files.example', port=443): Read timed out.\n",
        ] {
            assert_says(
                words,
                &[
                    "download of torch 2.11.0 was cut off",
                    "run the same command again",
                ],
            );
        }
    }

    #[test]
    fn a_full_disk_comes_first() {
        assert_says(
            "ERROR: Could not install: [Errno 28] No space left on device\n",
            &["the disk is full", "/there"],
        );
        assert_says(
            "OSError: [Errno 122] Disk quota exceeded: '/there/x'\n",
            &["the disk is full"],
        );
    }

    #[test]
    fn a_certificate_that_is_not_trusted_is_named() {
        let words = "WARNING: Retrying after connection broken by 'SSLError(SSLCertVerificationError(1, '[SSL: \
                     CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate')': /simple/torch/\n";
        assert_says(&format!("{words}{NONE}"), &["certificate", "PIP_CERT"]);
    }

    #[test]
    fn anything_else_is_told_in_pips_own_last_words() {
        assert_says(
            "ERROR: one\nERROR: Will not install to /x\nnotice\n",
            &["(exit code 1)", "Will not install to /x"],
        );
        assert_says("", &["it said nothing"]);
        assert_says(&"é".repeat(1000), &["..."]);
    }
}
