//! The PyTorch whose libraries a trainer that pip has installed would load.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::bail;
use dtrain_common::installation::{PYTORCH, install_pytorch, is_packaged};

/// The library that every PyTorch has.
const LIBRARY: &str = "libtorch_cpu.so";

/// A function with texts of the newer C++ interface, which dtrain is built with.
const NEW_TEXTS: &[u8] = b"torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_string";

/// Returns whether the folder of Python packages has PyTorch.
pub(super) fn is_in(site: &Path) -> bool {
    site.join("torch/lib").join(LIBRARY).is_file()
}

/// The PyTorch that the dynamic loader will take: the first in LD_LIBRARY_PATH, else the one beside the package `dtrain`.
struct Choice {
    lib: PathBuf,
    is_named: bool,
}

impl Choice {
    fn of(worker: &Path, library_path: Option<&OsStr>) -> Option<Self> {
        let listed = library_path.filter(|list| !list.is_empty()).map(env::split_paths).into_iter().flatten();
        // The loader takes an empty entry for the current folder.
        let mut listed = listed.map(|folder| if folder.as_os_str().is_empty() { ".".into() } else { folder });
        if let Some(lib) = listed.find(|folder| folder.join(LIBRARY).is_file()) {
            return Some(Self { lib, is_named: true });
        }
        let site = site_of(worker);
        is_in(site).then(|| Self { lib: site.join("torch/lib"), is_named: false })
    }
}

fn site_of(worker: &Path) -> &Path {
    worker.ancestors().nth(2).unwrap_or(Path::new("/"))
}

/// Checks the PyTorch that a trainer will load, if pip has installed the trainer: one that was built here has its own libtorch.
pub(super) fn check(worker: &Path, library_path: Option<&OsStr>) -> anyhow::Result<()> {
    let worker = worker.canonicalize().unwrap_or_else(|_| worker.to_owned());
    if !is_packaged(&worker) {
        return Ok(());
    }
    let install = install_pytorch(&worker);
    let Some(Choice { lib, is_named }) = Choice::of(&worker, library_path) else {
        bail!(
            "dtrain is installed in {}, which has no PyTorch; install it there by {install}, or add the folder torch/lib of another \
             PyTorch {PYTORCH} to LD_LIBRARY_PATH",
            site_of(&worker).display()
        );
    };
    let remedy = match is_named {
        true => format!("take {} out of LD_LIBRARY_PATH, or name a PyTorch {PYTORCH} there", lib.display()),
        false => format!("replace it by {install}"),
    };
    if let Some((version, _)) = version_of(&lib)
        && !version.starts_with(&format!("{PYTORCH}."))
    {
        bail!("dtrain needs PyTorch {PYTORCH}, but {} has {version}; {remedy}", lib.display());
    }
    if fs::read(lib.join("libc10.so")).is_ok_and(|bytes| memchr::memmem::find(&bytes, NEW_TEXTS).is_none()) {
        bail!(
            "the PyTorch in {} is built with the old C++ interface (_GLIBCXX_USE_CXX11_ABI=0); {remedy}",
            lib.display()
        );
    }
    Ok(())
}

/// Returns the CUDA of the PyTorch that a trainer of pip will load, `None` within for a CPU build; `None` for another trainer.
pub(super) fn cuda(worker: &Path, library_path: Option<&OsStr>) -> Option<Option<String>> {
    let worker = worker.canonicalize().ok().filter(|worker| is_packaged(worker))?;
    let Choice { lib, .. } = Choice::of(&worker, library_path)?;
    version_of(&lib).map(|(_, cuda)| cuda)
}

/// Returns the version of the PyTorch with this folder of libraries and its CUDA, if its files name them.
pub(crate) fn version_of(lib: &Path) -> Option<(String, Option<String>)> {
    let read = |name: &str| read_version(&fs::read_to_string(lib.join("..").join(name)).ok()?);
    ["version.py", "build-version"].into_iter().find_map(read)
}

/// Reads PyTorch's `version.py`, or libtorch's `build-version`: the version and its CUDA.
pub(crate) fn read_version(text: &str) -> Option<(String, Option<String>)> {
    let value = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split('\'').nth(1)?.to_owned()).filter(|_| line.contains('='))
    };
    let full = value("__version__").unwrap_or_else(|| text.trim().to_owned());
    let (version, build) = full.split_once('+').unwrap_or((&full, ""));
    // Such as cu130 and cu126.
    let of_build = build.strip_prefix("cu").filter(|digits| digits.len() >= 3);
    let of_build =
        of_build.map(|digits| format!("{}.{}", &digits[..digits.len() - 1], &digits[digits.len() - 1..]));
    let is_version =
        version.starts_with(|c: char| c.is_ascii_digit()) && !version.contains(char::is_whitespace);
    is_version.then(|| (version.to_owned(), value("cuda").or(of_build)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Creates a PyTorch of a version, and returns its folder of libraries.
    fn pytorch(site: &Path, version: &str, interface: &[u8]) -> PathBuf {
        let lib = site.join("torch/lib");
        fs::create_dir_all(&lib).unwrap();
        fs::write(lib.join(LIBRARY), "").unwrap();
        fs::write(lib.join("libc10.so"), interface).unwrap();
        fs::write(site.join("torch/version.py"), format!("__version__ = '{version}'\n")).unwrap();
        lib
    }

    #[test]
    fn a_packaged_trainer_needs_its_pytorch() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let worker = folder.path().join("dtrain/dtrain-worker");
        fs::create_dir(folder.path().join("dtrain")).unwrap();
        fs::write(&worker, "").unwrap();
        let said = |listed: Option<&Path>| match check(&worker, listed.map(Path::as_os_str)) {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        };
        assert_eq!(said(None), "", "a trainer that was built here");
        fs::write(folder.path().join("dtrain/__init__.py"), "").unwrap();
        assert!(said(None).contains("which has no PyTorch; install it there by `python3 -m pip install"));
        pytorch(folder.path(), "2.11.0+cpu", NEW_TEXTS);
        assert_eq!(said(None), "");
        assert_eq!(cuda(&worker, None), Some(None));
        let old = pytorch(other.path(), "2.10.1", NEW_TEXTS);
        let error = said(Some(&old));
        assert!(error.contains("has 2.10.1; take ") && error.contains("out of LD_LIBRARY_PATH"), "{error}");
        assert_eq!(said(Some(folder.path())), "", "a folder without libtorch");
        pytorch(folder.path(), "2.11.0", b"RKSs");
        assert!(said(None).contains("old C++ interface"));
        pytorch(folder.path(), "2.9.0", NEW_TEXTS);
        assert!(said(None).contains("has 2.9.0; replace it by `python3 -m pip install 'torch==2.11.*'`"));
    }

    #[test]
    fn versions_are_read_from_both_kinds_of_file() {
        let wheel = "__all__ = ['__version__']\n__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n";
        let known = |version: &str, cuda: Option<&str>| Some((version.to_owned(), cuda.map(str::to_owned)));
        assert_eq!(read_version(wheel), known("2.11.0", Some("13.0")));
        assert_eq!(
            read_version("__version__ = '2.11.0+cpu'\ncuda: Optional[str] = None\n"),
            known("2.11.0", None)
        );
        assert_eq!(read_version("2.10.0+cu126\n"), known("2.10.0", Some("12.6")));
        assert_eq!(read_version("2.10.0\n"), known("2.10.0", None));
        assert_eq!(read_version("no version"), None);
        assert_eq!(read_version(""), None);
    }
}
