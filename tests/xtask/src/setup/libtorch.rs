//! Looking at a libtorch: is it whole, and which version is it.

use std::fs;
use std::path::Path;

use super::choice::Choice;
use super::{LIBTORCH_VERSION, Problem, Set};

/// Files without which a folder is not a libtorch to build with.
const NEEDED: [&str; 3] = ["lib/libtorch_cpu.so", "lib/libc10.so", "include/ATen/ATen.h"];

/// Whether `folder` (that of lib and include) is a whole libtorch of the right version.
pub(crate) fn is_right(folder: &Path) -> bool {
    missing(folder).is_none() && version(folder).is_some_and(|version| is_right_version(&version))
}

/// Checks the libtorch that the user's LIBTORCH names and says which set it amounts to.
pub(crate) fn check_own(folder: &Path, choice: &Choice) -> Result<Set, Problem> {
    let folder = || folder.to_owned();
    if folder().is_relative() {
        return Err(Problem::RelativeLibtorch { folder: folder() });
    }
    if let Some(missing) = missing(&folder()) {
        return Err(Problem::NotLibtorch {
            folder: folder(),
            missing,
        });
    }
    match version(&folder()) {
        None => {
            return Err(Problem::NotLibtorch {
                folder: folder(),
                missing: "its version, in build-version,",
            });
        }
        Some(found) if !is_right_version(&found) => {
            return Err(Problem::Version {
                folder: folder(),
                found,
            });
        }
        Some(_) => {}
    }
    let has_cuda = folder().join("lib/libtorch_cuda.so").exists();
    match choice.set {
        Set::Cuda if has_cuda => Ok(Set::Cuda),
        Set::Cuda if choice.demanded => Err(Problem::CpuLibtorch { folder: folder() }),
        _ => Ok(Set::Cpu),
    }
}

fn missing(folder: &Path) -> Option<&'static str> {
    NEEDED.into_iter().find(|file| !folder.join(file).is_file())
}

/// "2.11.0+cu130" is version 2.11.0, built for CUDA 13.0.
fn is_right_version(version: &str) -> bool {
    version.split('+').next() == Some(LIBTORCH_VERSION)
}

/// The version of the libtorch in `folder`: libtorch as published apart says it in build-version, PyTorch in
/// version.py, and what is built from source at least in its headers.
fn version(folder: &Path) -> Option<String> {
    let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
    let named = read("build-version").map(|text| text.trim().to_owned());
    named
        .or_else(|| read("version.py").as_deref().and_then(python_version))
        .or_else(|| {
            read("include/torch/headeronly/version.h")
                .as_deref()
                .and_then(header_version)
        })
        .or_else(|| {
            read("include/torch/csrc/api/include/torch/version.h")
                .as_deref()
                .and_then(header_version)
        })
        .filter(|version| !version.is_empty())
}

/// From a line such as `__version__ = '2.11.0+cu130'`.
fn python_version(text: &str) -> Option<String> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix("__version__")?.trim_start().strip_prefix('='))?;
    Some(value.trim().trim_matches(['\'', '"']).to_owned())
}

/// From lines such as `#define TORCH_VERSION_MINOR 11`.
fn header_version(text: &str) -> Option<String> {
    let number = |part: &str| {
        text.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            (words.next()? == "#define" && words.next()?.strip_prefix("TORCH_VERSION_")? == part)
                .then(|| words.next().map(str::to_owned))?
        })
    };
    Some(format!(
        "{}.{}.{}",
        number("MAJOR")?,
        number("MINOR")?,
        number("PATCH")?
    ))
}
