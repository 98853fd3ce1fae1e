//! Problems of a machine, each described in one sentence with its remedy.

use std::io;
use std::path::PathBuf;

use super::LIBTORCH_VERSION;

/// Why the machine could not be prepared.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages are the documentation
pub enum Problem {
    #[error(
        "dtrain is built on Linux with glibc, on x86_64 or aarch64, for which there is libtorch {LIBTORCH_VERSION}; \
         this is {arch} {os}{}", if *.musl { " with musl" } else { "" }
    )]
    Platform { os: String, arch: String, musl: bool },

    #[error(
        "python3 was not found on PATH; it fetches libtorch: install it with pip, for example with \
         `apt install python3 python3-pip`"
    )]
    NoPython,
    #[error(
        "python3 has no pip, which fetches libtorch: install it, for example with `apt install python3-pip` or \
         `python3 -m ensurepip`"
    )]
    NoPip,
    #[error(
        "python3 does not run pip ({reason}): repair it, for example with `apt install --reinstall python3 python3-pip`"
    )]
    Python { reason: String },
    #[error(
        "python3 cannot make a virtual environment: install the module for it, for example with \
         `apt install python3-venv`"
    )]
    NoVenv,
    #[error(
        "no C++ compiler was found on PATH (c++, g++ or clang++): install one, for example with `apt install g++`, or \
         name it in CXX"
    )]
    NoCompiler,
    #[error(
        "CXX names {compiler}, which was not found: install it, or unset CXX to have c++, g++ or clang++ used"
    )]
    CompilerNotFound { compiler: String },
    #[error(
        "the C++ compiler {compiler} does not work ({reason}): install one, for example with `apt install g++`, or \
         name another in CXX"
    )]
    Compiler { compiler: String, reason: String },

    #[error(
        "pip could not fetch {package} from the package index ({detail}): check the network and the proxy (HTTPS_PROXY), \
         and run the same command again, which goes on with what is missing"
    )]
    Network { package: String, detail: String },
    #[error(
        "pip does not trust the certificate of the package index ({detail}): name the certificates of your network in \
         PIP_CERT, and run the same command again"
    )]
    Certificate { detail: String },
    #[error(
        "the package index has no {package} for this machine: check PIP_INDEX_URL if you use an index of your own, or \
         name a libtorch {LIBTORCH_VERSION} in LIBTORCH"
    )]
    NotInIndex { package: String },
    #[error(
        "what arrived as {package} does not have the pinned checksum and was not used (it was cut off, or the index \
         has another file): run the same command again, and check PIP_INDEX_URL if you use an index of your own"
    )]
    Checksum { package: String },
    #[error("pip failed to fetch {package} (exit code {code}): {last}")]
    Pip { package: String, code: u8, last: String },
    #[error("{package} could not be unpacked: {last}; run the same command again")]
    Unpack { package: String, last: String },

    #[error(
        "not enough space for libtorch in {}: {needed} are needed and {free} are free; make room, or make {} a link \
         to a folder on a larger disk", .folder.display(), .folder.display()
    )]
    Space { folder: PathBuf, needed: String, free: String },
    #[error("the disk is full: make room on that of {} and run the same command again", .folder.display())]
    Full { folder: PathBuf },
    #[error("cannot write to {}: {error}; make it writable for you", .path.display())]
    Write { path: PathBuf, error: io::Error },

    #[error(
        "LIBTORCH names {}, which is not a libtorch ({missing} is missing): name the folder that holds lib and include, \
         or unset LIBTORCH to have one fetched", .folder.display()
    )]
    NotLibtorch { folder: PathBuf, missing: &'static str },
    #[error(
        "LIBTORCH names {}, which is version {found} and not {LIBTORCH_VERSION}: name a libtorch {LIBTORCH_VERSION}, or \
         unset LIBTORCH to have one fetched", .folder.display()
    )]
    Version { folder: PathBuf, found: String },
    #[error(
        "LIBTORCH is \"{}\", which is not an absolute path: cargo builds in several folders; name it in full, or unset LIBTORCH to \
         have one fetched", .folder.display()
    )]
    RelativeLibtorch { folder: PathBuf },
    #[error(
        "LIBTORCH names {}, which is built for the CPU alone, and --cuda was given: name a libtorch with CUDA, or unset \
         LIBTORCH to have one fetched", .folder.display()
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
