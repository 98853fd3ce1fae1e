//! Checks a libtorch: whether it is complete, and its version.

use std::fs;
use std::path::Path;

use super::choice::Choice;
use super::{LIBTORCH_VERSION, Problem, Set};

/// Files that a libtorch needs for a build.
const NEEDED: [&str; 3] = ["lib/libtorch_cpu.so", "lib/libc10.so", "include/ATen/ATen.h"];

/// Returns whether `folder` (which contains lib and include) is a complete libtorch of the right version.
pub(crate) fn is_right(folder: &Path) -> bool {
    missing(folder).is_none() && version(folder).as_deref() == Some(LIBTORCH_VERSION)
}

/// Checks the libtorch of the user's LIBTORCH and returns its set.
pub(crate) fn check_own(folder: &Path, choice: &Choice) -> Result<Set, Problem> {
    let named = folder.to_owned();
    if folder.is_relative() {
        return Err(Problem::RelativeLibtorch { folder: named });
    }
    if let Some(missing) = missing(folder) {
        return Err(Problem::NotLibtorch { folder: named, missing });
    }
    match version(folder) {
        Some(found) if found == LIBTORCH_VERSION => {}
        Some(found) => return Err(Problem::Version { folder: named, found }),
        None => {
            let missing = "include/torch/headeronly/version.h";
            return Err(Problem::NotLibtorch { folder: named, missing });
        }
    }
    let has_cuda = folder.join("lib/libtorch_cuda.so").exists();
    match choice.set {
        Set::Cuda if has_cuda => Ok(Set::Cuda),
        Set::Cuda if choice.required => Err(Problem::CpuLibtorch { folder: named }),
        _ => Ok(Set::Cpu),
    }
}

fn missing(folder: &Path) -> Option<&'static str> {
    NEEDED.into_iter().find(|file| !folder.join(file).is_file())
}

/// Returns the version of the libtorch in `folder`: the published one ("2.11.0+cpu", "2.11.0a0") without its
/// suffix after "+", else that of its headers, which name unreleased versions like released ones.
fn version(folder: &Path) -> Option<String> {
    let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
    let published = read("build-version").or_else(|| python_version(&read("version.py")?));
    let published = published.and_then(|text| Some(text.trim().split('+').next()?.to_owned()));
    let headers = ["headeronly/version.h", "csrc/api/include/torch/version.h"];
    let header = |file| header_version(&read(&format!("include/torch/{file}"))?);
    let published = published.filter(|version| !version.is_empty());
    published.or_else(|| headers.into_iter().find_map(header))
}

/// Reads a line such as `__version__ = '2.11.0+cu130'`.
fn python_version(text: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix("__version__ = "))?;
    Some(value.trim_matches(['\'', '"']).to_owned())
}

/// Reads lines such as `#define TORCH_VERSION_MINOR 11`.
fn header_version(text: &str) -> Option<String> {
    let number = |part: &str| {
        let start = format!("#define TORCH_VERSION_{part} ");
        Some(text.lines().find_map(|line| line.strip_prefix(&start))?.trim())
    };
    Some([number("MAJOR")?, number("MINOR")?, number("PATCH")?].join("."))
}
