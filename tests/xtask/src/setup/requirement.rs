//! The packages to fetch: pinned versions and checksums, in one file per architecture and set.

use std::env::consts;

use anyhow::{Context, Result, ensure};

use super::{Problem, Set};

/// A processor architecture for which libtorch is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arch {
    X86_64,
    Aarch64,
}

impl Arch {
    /// The one this program runs on.
    pub(crate) fn of_this_machine() -> Result<Self, Problem> {
        Self::of(consts::OS, consts::ARCH, cfg!(target_env = "musl"))
    }

    fn of(os: &str, arch: &str, musl: bool) -> Result<Self, Problem> {
        match (os, arch, musl) {
            ("linux", "x86_64", false) => Ok(Self::X86_64),
            ("linux", "aarch64", false) => Ok(Self::Aarch64),
            _ => Err(Problem::Platform {
                os: os.to_owned(),
                arch: arch.to_owned(),
                musl,
            }),
        }
    }

    /// Its name, in the words of wheels and of the stamp file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }
}

/// One package, pinned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Requirement {
    pub(crate) name: String,
    pub(crate) version: String,
    /// The whole line, as pip reads it.
    pub(crate) line: String,
    /// Size of the wheel.
    pub(crate) fetch_bytes: u64,
    /// Disk space of the files that are kept.
    pub(crate) unpacked_bytes: u64,
    /// A library of the package, by which to see that it is there; relative to the folder of all packages.
    pub(crate) key_file: String,
}

/// The packages of a set, libtorch first. The CUDA set contains the CPU set.
pub(crate) fn requirements(arch: Arch, set: Set) -> Result<Vec<Requirement>> {
    let (cpu, cuda) = match arch {
        Arch::X86_64 => (
            include_str!("../../requirements/x86_64-cpu.txt"),
            include_str!("../../requirements/x86_64-cuda.txt"),
        ),
        Arch::Aarch64 => (
            include_str!("../../requirements/aarch64-cpu.txt"),
            include_str!("../../requirements/aarch64-cuda.txt"),
        ),
    };
    let mut all = parse(cpu)?;
    if set == Set::Cuda {
        all.extend(parse(cuda)?);
    }
    Ok(all)
}

fn parse(text: &str) -> Result<Vec<Requirement>> {
    let lines = text
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .map(|line| parse_line(line).with_context(|| format!("tests/xtask/requirements: {line}")))
        .collect()
}

fn parse_line(line: &str) -> Result<Requirement> {
    let (pin, comment) = line
        .split_once(" # ")
        .context("the comment with the sizes is missing")?;
    let (package, hash) = pin
        .trim()
        .split_once(" --hash=sha256:")
        .context("the checksum is missing")?;
    ensure!(
        hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()),
        "the checksum is not a SHA-256"
    );
    let (name, version) = package.split_once("==").context("the version is missing")?;
    let mut words = comment.split_whitespace();
    let mut word = |what| words.next().with_context(|| format!("{what} is missing"));
    Ok(Requirement {
        name: name.to_owned(),
        version: version.to_owned(),
        line: line.to_owned(),
        fetch_bytes: word("the size of the wheel")?
            .parse()
            .context("the size of the wheel")?,
        unpacked_bytes: word("the unpacked size")?.parse().context("the unpacked size")?,
        key_file: word("the key file")?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::LIBTORCH_VERSION;
    use super::*;

    #[test]
    fn the_committed_files_are_whole() {
        for arch in [Arch::X86_64, Arch::Aarch64] {
            let cpu = requirements(arch, Set::Cpu).unwrap();
            let cuda = requirements(arch, Set::Cuda).unwrap();
            assert_eq!((cpu.len(), cuda.len()), (3, 16));
            assert_eq!(
                (cpu[0].name.as_str(), cpu[0].version.as_str()),
                ("torch", LIBTORCH_VERSION)
            );
            assert_eq!(cuda[..3], cpu[..]);
            let fetch = |set: &[Requirement]| set.iter().map(|r| r.fetch_bytes).sum::<u64>();
            assert!(
                (400_000_000..600_000_000).contains(&fetch(&cpu)),
                "{}",
                fetch(&cpu)
            );
            assert!(
                (2_000_000_000..3_000_000_000).contains(&fetch(&cuda)),
                "{}",
                fetch(&cuda)
            );
            assert!(
                cuda.iter()
                    .all(|r| r.key_file.contains("/lib/lib") && r.unpacked_bytes > r.fetch_bytes)
            );
        }
    }

    #[test]
    fn both_architectures_have_the_same_versions_and_different_files() {
        let x86_64 = requirements(Arch::X86_64, Set::Cuda).unwrap();
        let aarch64 = requirements(Arch::Aarch64, Set::Cuda).unwrap();
        for (a, b) in x86_64.iter().zip(&aarch64) {
            assert_eq!((&a.name, &a.version), (&b.name, &b.version));
            assert_ne!(a.line, b.line);
        }
    }

    #[test]
    fn a_line_without_a_checksum_or_a_size_is_refused() {
        assert!(parse("a==1  # 1 2 a/lib/liba.so").is_err());
        assert!(parse("a==1 --hash=sha256:12  # 1 2 a/lib/liba.so").is_err());
        assert!(parse(&format!("a==1 --hash=sha256:{}", "0".repeat(64))).is_err());
        assert!(parse(&format!("a==1 --hash=sha256:{}  # 1 x", "0".repeat(64))).is_err());
    }

    #[test]
    fn other_platforms_are_named() {
        assert!(Arch::of("linux", "aarch64", false).is_ok());
        for (os, arch, musl) in [
            ("macos", "aarch64", false),
            ("linux", "riscv64", false),
            ("linux", "x86_64", true),
        ] {
            let sentence = Arch::of(os, arch, musl).unwrap_err().to_string();
            assert!(sentence.contains(&format!("this is {arch} {os}")), "{sentence}");
            assert_eq!(sentence.ends_with("with musl"), musl, "{sentence}");
        }
    }
}
