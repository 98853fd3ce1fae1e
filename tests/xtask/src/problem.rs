//! Problems of a machine, each described in one sentence with its remedy.

use std::io;
use std::path::PathBuf;

use crate::workspace::LIBTORCH_VERSION;

/// Why the machine could not be prepared.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages are the documentation
pub enum Problem {
    #[error(
        "unsupported platform {arch} {os}{}: libtorch {LIBTORCH_VERSION} exists for Linux with glibc on x86_64 and \
         aarch64; use such a machine", if *.musl { " with musl" } else { "" }
    )]
    Platform { os: String, arch: String, musl: bool },

    #[error(
        "python3 not found on PATH: set-up fetches libtorch with its pip; install both, for example with \
         `apt install python3 python3-pip`"
    )]
    NoPython,
    #[error(
        "python3 has no pip: set-up fetches libtorch with pip; install it, for example with \
         `apt install python3-pip` or `python3 -m ensurepip`"
    )]
    NoPip,
    #[error(
        "python3 cannot run pip: {reason}; repair it, for example with `apt install --reinstall python3 python3-pip`"
    )]
    Python { reason: String },
    #[error(
        "python3 cannot make a virtual environment: install its module venv, for example with \
         `apt install python3-venv`"
    )]
    NoVenv,
    #[error(
        "no C++ compiler on PATH: tried c++, g++ and clang++; install one, for example with `apt install g++`, or \
         set CXX"
    )]
    NoCompiler,
    #[error("CXX={compiler} not found: install it, or unset CXX to use c++, g++ or clang++")]
    CompilerNotFound { compiler: String },
    #[error(
        "the C++ compiler {compiler} does not work: {reason}; install one, for example with `apt install g++`, or \
         set CXX to another"
    )]
    Compiler { compiler: String, reason: String },

    #[error(
        "pip could not fetch {package}: {detail}; check the network and the proxy (HTTPS_PROXY), and run the same \
         command again: it fetches only missing packages"
    )]
    Network { package: String, detail: String },
    #[error(
        "pip does not trust the certificate of the package index: {detail}; set PIP_CERT to the certificates of your \
         network, and run the same command again"
    )]
    Certificate { detail: String },
    #[error(
        "the package index has no {package} for this machine: check PIP_INDEX_URL, or set LIBTORCH to a libtorch \
         {LIBTORCH_VERSION}"
    )]
    NotInIndex { package: String },
    #[error(
        "wrong checksum of {package}: the download is incomplete, or the index has another file; run the same command \
         again, and check PIP_INDEX_URL"
    )]
    Checksum { package: String },
    #[error("pip failed to fetch {package} (exit code {code}): {last}")]
    Pip { package: String, code: u8, last: String },
    #[error("cannot unpack {package}: {last}; run the same command again")]
    Unpack { package: String, last: String },

    #[error(
        "not enough space for libtorch in {}: {needed} needed, {free} free; free some space, or make {} a link to a \
         folder on a larger disk", .folder.display(), .folder.display()
    )]
    Space { folder: PathBuf, needed: String, free: String },
    #[error("the disk of {} is full: free some space and run the same command again", .folder.display())]
    Full { folder: PathBuf },
    #[error("cannot write to {}: {error}; make it writable", .path.display())]
    Write { path: PathBuf, error: io::Error },

    #[error(
        "LIBTORCH={} is not a libtorch: {missing} is missing; set it to the folder that has lib and include, or unset \
         it to fetch libtorch", .folder.display()
    )]
    NotLibtorch { folder: PathBuf, missing: &'static str },
    #[error(
        "LIBTORCH={} is version {found}, not {LIBTORCH_VERSION}: set it to a libtorch {LIBTORCH_VERSION}, or unset it \
         to fetch one", .folder.display()
    )]
    Version { folder: PathBuf, found: String },
    #[error(
        "LIBTORCH=\"{}\" is not an absolute path: cargo builds in several folders; set the absolute path, or unset it \
         to fetch libtorch", .folder.display()
    )]
    RelativeLibtorch { folder: PathBuf },
    #[error(
        "LIBTORCH={} has no CUDA, but --cuda was given: set it to a libtorch with CUDA, or unset it to fetch one", .folder.display()
    )]
    CpuLibtorch { folder: PathBuf },
}

impl Problem {
    /// Returns the problem of a failed write to `path`; a full disk has its own problem.
    pub fn write(path: impl Into<PathBuf>, error: io::Error) -> Self {
        let path = path.into();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { folder: path },
            _ => Self::Write { path, error },
        }
    }
}
