//! The packages to fetch: pinned versions and checksums, in one file per architecture and set.

use std::env::consts;
use std::fmt;

use anyhow::{Context, Result};

use super::{Problem, Set};

/// A processor architecture with a published libtorch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arch {
    X86_64,
    Aarch64,
}

impl Arch {
    /// Returns the architecture of this program.
    pub(crate) fn of_this_machine() -> Result<Self, Problem> {
        let musl = cfg!(target_env = "musl");
        match (consts::OS, consts::ARCH, musl) {
            ("linux", "x86_64", false) => Ok(Self::X86_64),
            ("linux", "aarch64", false) => Ok(Self::Aarch64),
            (os, arch, _) => Err(Problem::Platform { os: os.to_owned(), arch: arch.to_owned(), musl }),
        }
    }

    /// Returns its name in wheel tags.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }
}

/// A pinned package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pin {
    pub(crate) name: String,
    version: String,
    /// The whole line, as pip reads it.
    pub(crate) line: String,
    /// Size of the wheel.
    pub(crate) fetch_bytes: u64,
    /// Disk space of the files that are kept.
    pub(crate) unpacked_bytes: u64,
    /// A file whose presence shows the package, relative to the folder of all packages.
    pub(crate) key_file: String,
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

/// Returns the packages of a set, libtorch first. The CUDA set contains the CPU set.
pub(crate) fn pins(arch: Arch, set: Set) -> Result<Vec<Pin>> {
    let [cpu, cuda] = match arch {
        Arch::X86_64 => [
            include_str!("../../requirements/x86_64-cpu.txt"),
            include_str!("../../requirements/x86_64-cuda.txt"),
        ],
        Arch::Aarch64 => [
            include_str!("../../requirements/aarch64-cpu.txt"),
            include_str!("../../requirements/aarch64-cuda.txt"),
        ],
    };
    let more = if set == Set::Cuda { cuda } else { "" };
    let lines = cpu.lines().chain(more.lines()).filter(|line| !line.starts_with('#'));
    lines.map(|line| parse(line).with_context(|| format!("not a pinned package: {line}"))).collect()
}

/// Parses `NAME==VERSION --hash=sha256:SUM  # BYTES UNPACKED_BYTES KEY_FILE`.
fn parse(line: &str) -> Option<Pin> {
    let (pinned, about) = line.split_once(" # ")?;
    let (name, version) = pinned.split_once(" --hash=sha256:")?.0.split_once("==")?;
    let mut about = about.split_whitespace();
    Some(Pin {
        name: name.to_owned(),
        version: version.to_owned(),
        line: line.to_owned(),
        fetch_bytes: about.next()?.parse().ok()?,
        unpacked_bytes: about.next()?.parse().ok()?,
        key_file: about.next()?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cuda_set_contains_the_cpu_set_and_libtorch_is_first() {
        for arch in [Arch::X86_64, Arch::Aarch64] {
            let [cpu, cuda] = [Set::Cpu, Set::Cuda].map(|set| pins(arch, set).unwrap_or_default());
            assert!(cpu.len() == 3 && cuda.len() == 16 && cuda[..3] == cpu);
            assert_eq!(cpu[0].to_string(), "torch 2.11.0");
        }
    }
}
