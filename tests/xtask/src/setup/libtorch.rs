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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tempfile::TempDir;

    use super::super::choice::SetArgs;
    use super::*;

    const HEADER: &str = "#pragma once\n/// Major\n#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 11\n\
        #define TORCH_VERSION_PATCH 0\n#define TORCH_VERSION \\\n";

    fn put(folder: &Path, file: &str, text: &str) {
        let path = folder.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn libtorch(version_file: &str, text: &str) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in NEEDED {
            put(folder.path(), file, "x");
        }
        put(folder.path(), version_file, text);
        folder
    }

    fn cpu() -> Choice {
        Choice::new(&SetArgs::default(), None)
    }

    #[test]
    fn each_kind_of_libtorch_says_its_version() {
        for (file, text) in [
            ("build-version", "2.11.0+cpu\n"),
            (
                "version.py",
                "from typing import Optional\n__version__ = '2.11.0+cu130'\ndebug = False\n",
            ),
            ("include/torch/headeronly/version.h", HEADER),
            ("include/torch/csrc/api/include/torch/version.h", HEADER),
        ] {
            let folder = libtorch(file, text);
            assert_eq!(check_own(folder.path(), &cpu()).unwrap(), Set::Cpu, "{file}");
            assert!(is_right(folder.path()), "{file}");
        }
    }

    #[test]
    fn another_version_is_named() {
        for found in ["2.10.0", "2.11.1+cpu", "2.11.0a0+git70d99e9"] {
            let folder = libtorch("build-version", found);
            let sentence = check_own(folder.path(), &cpu()).unwrap_err().to_string();
            assert!(
                sentence.contains(&format!("is version {found} and not 2.11.0")),
                "{sentence}"
            );
            assert!(!is_right(folder.path()));
        }
    }

    #[test]
    fn a_folder_that_is_no_libtorch_is_refused_with_what_it_lacks() {
        let empty = tempfile::tempdir().unwrap();
        let sentence = check_own(empty.path(), &cpu()).unwrap_err().to_string();
        assert!(sentence.contains("lib/libtorch_cpu.so is missing"), "{sentence}");
        let unnamed = libtorch("other", "");
        let sentence = check_own(unnamed.path(), &cpu()).unwrap_err().to_string();
        assert!(sentence.contains("its version"), "{sentence}");
        let sentence = check_own(Path::new("libtorch"), &cpu()).unwrap_err().to_string();
        assert!(sentence.contains("not an absolute path"), "{sentence}");
    }

    #[test]
    fn cuda_is_used_where_it_is_there_and_demanded_only_by_the_flag() {
        let folder = libtorch("build-version", "2.11.0+cpu");
        let found = Choice::new(&SetArgs::default(), Some("/driver"));
        assert_eq!(check_own(folder.path(), &found).unwrap(), Set::Cpu);
        let demanded = Choice {
            demanded: true,
            ..Choice::new(&SetArgs::default(), Some("/driver"))
        };
        let sentence = check_own(folder.path(), &demanded).unwrap_err().to_string();
        assert!(sentence.contains("--cuda was given"), "{sentence}");
        put(folder.path(), "lib/libtorch_cuda.so", "x");
        assert_eq!(check_own(folder.path(), &demanded).unwrap(), Set::Cuda);
    }
}
