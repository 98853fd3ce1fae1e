//! Finds the trainer, the program that trains recipes: beside dtrain after a build, in the Python package `dtrain` after pip.

mod ask;
mod pytorch;

pub(crate) use self::ask::{Paths, ask, question_command, resolve, schema, schema_text};
pub(crate) use self::pytorch::{read_version, version_of};

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use dtrain_agent::io::process::{output, search_path};
use dtrain_common::env::DTRAIN_WORKER;

const WORKER: &str = "dtrain-worker";

/// Answers about recipes as [`WORKER`] beside it does, without libtorch, whose start takes a third of a second.
const RECIPES: &str = "dtrain-recipes";

/// Prints the file of the Python package. With `-I`, Python looks neither in this folder nor in those of PYTHONPATH.
const ASK: [&str; 3] =
    ["-I", "-c", "import importlib.util as u; s = u.find_spec('dtrain'); print(s.origin if s else '')"];

/// Finds the trainer: by DTRAIN_WORKER, else beside this executable, in a Python package of its environment, or in PATH. If pip
/// has installed the trainer, checks the PyTorch that it would load.
pub(crate) fn find_worker() -> anyhow::Result<PathBuf> {
    let worker = search()?;
    pytorch::check(&worker, env::var_os("LD_LIBRARY_PATH").as_deref())?;
    Ok(worker)
}

/// Finds the trainer and checks that the dynamic loader finds its libraries: it lists them in 3 ms, without their initialisers.
pub(crate) fn find_loadable_worker() -> anyhow::Result<PathBuf> {
    let worker = find_worker()?;
    // Otherwise the trainer itself has answered about the recipe.
    if find_beside(&worker).is_some() {
        let listed =
            output(Command::new(&worker).env("LD_TRACE_LOADED_OBJECTS", "1"), Duration::from_secs(10));
        let missing =
            listed.iter().flat_map(|listed| listed.lines()).find(|line| line.ends_with("=> not found"));
        if let Some(library) = missing.and_then(|line| line.split_whitespace().next()) {
            bail!(
                "the trainer {} does not find {library}; `dtrain doctor` says how to mend it",
                worker.display()
            );
        }
    }
    Ok(worker)
}

/// Finds the program that answers about recipes.
fn find_for_recipes() -> anyhow::Result<PathBuf> {
    find_beside(&search()?).map_or_else(find_worker, Ok)
}

/// Returns [`RECIPES`] beside dtrain's own trainer; `None` for another trainer.
fn find_beside(worker: &Path) -> Option<PathBuf> {
    let file = worker.canonicalize().ok()?;
    let beside = file.with_file_name(RECIPES);
    (file.ends_with(WORKER) && is_program(&beside)).then_some(beside)
}

/// Returns the CUDA of the PyTorch that a trainer of pip will load, `None` within for a CPU build; `None` for another trainer.
pub(crate) fn cuda_of_pip() -> Option<Option<String>> {
    pytorch::cuda(&search().ok()?, env::var_os("LD_LIBRARY_PATH").as_deref())
}

/// Returns the lines about libtorch and features that `dtrain-worker --version` prints after its first.
pub(crate) fn describe(worker: &Path) -> String {
    let answer = output(Command::new(worker).arg("--version"), Duration::from_secs(10));
    let answer = answer.filter(|answer| !answer.trim().is_empty());
    match answer.as_deref().and_then(|answer| answer.trim().split_once('\n')) {
        Some((_, lines)) => lines.lines().map(with_loaded_version).collect::<Vec<_>>().join("\n"),
        None => format!("{} does not start; `dtrain doctor` says why", worker.display()),
    }
}

/// Reads the line `libtorch 2.11.0 in /folder` of `dtrain-worker --version`.
pub(crate) fn read_answer(answer: &str) -> Option<(String, PathBuf)> {
    let line = answer.lines().find_map(|line| line.strip_prefix("libtorch "))?;
    let (version, folder) = line.split_once(" in ")?;
    Some((version.to_owned(), folder.into()))
}

/// Puts the version of the files into the line about libtorch: the trainer knows the one that it was built with.
fn with_loaded_version(line: &str) -> String {
    let found = read_answer(line).and_then(|(_, folder)| Some((version_of(&folder)?.0, folder)));
    found.map_or(line.to_owned(), |(version, folder)| format!("libtorch {version} in {}", folder.display()))
}

/// Returns the folder of this dtrain if pip has installed it with a trainer. `dtrain import` uses the Python there.
pub(crate) fn bin_of_pip() -> Option<PathBuf> {
    let bin = env::current_exe().ok()?.parent()?.to_owned();
    packages(&bin).iter().any(|file| is_program(file)).then_some(bin)
}

fn search() -> anyhow::Result<PathBuf> {
    let path = env::var_os("PATH");
    if let Some(named) = env::var_os(DTRAIN_WORKER).filter(|named| !named.is_empty()) {
        return search_path::find(&named, path.as_deref())
            .with_context(|| format!("{DTRAIN_WORKER} is set wrongly"));
    }
    let own = env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    let installed = own.as_deref().and_then(|folder| {
        let beside = [folder.join(WORKER)].into_iter();
        beside.chain(packages(folder)).find(|file| is_program(file))
    });
    let in_path = || search_path::find(OsStr::new(WORKER), path.as_deref()).ok();
    // A Python takes longer to start than a launch.
    let found = installed.or_else(in_path).or_else(|| ask_python(own.as_deref()?));
    found.ok_or_else(|| {
        anyhow!(
            "cannot find the trainer {WORKER} beside dtrain, in a Python package of its environment, or in PATH; build it with `cargo \
             build --release -p {WORKER}`, install dtrain's wheel by pip, or set {DTRAIN_WORKER} to its path"
        )
    })
}

fn is_program(file: &Path) -> bool {
    search_path::find(file.as_os_str(), None).is_ok()
}

/// Returns where pip may have put the trainer of a dtrain in the folder `bin`: first where PyTorch is beside it, then by the newest
/// Python.
fn packages(bin: &Path) -> Vec<PathBuf> {
    let Some(root) = bin.parent() else { return Vec::new() };
    let versions = ["lib", "lib64"]
        .into_iter()
        .flat_map(|lib| fs::read_dir(root.join(lib)).into_iter().flatten().flatten());
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    for entry in versions {
        let name = entry.file_name();
        let minor = name.to_str().and_then(|name| name.strip_prefix("python3"));
        let Some(minor) = minor.map(|rest| rest.trim_start_matches('.').parse().unwrap_or(0)) else {
            continue;
        };
        found.extend(["site-packages", "dist-packages"].map(|site| (minor, entry.path().join(site))));
    }
    // `pip install --target` has all packages beside `bin`.
    found.push((0, root.to_owned()));
    let order = |(minor, site): &(u32, PathBuf)| (pytorch::is_in(site), *minor);
    found.sort_by_key(|one| std::cmp::Reverse(order(one)));
    found.into_iter().map(|(_, site)| site.join("dtrain").join(WORKER)).collect()
}

/// Asks the Python beside dtrain, whose packages may be elsewhere.
fn ask_python(bin: &Path) -> Option<PathBuf> {
    let python =
        ["python3", "python"].map(|name| bin.join(name)).into_iter().find(|file| is_program(file))?;
    let answer = output(Command::new(python).args(ASK), Duration::from_secs(10))?;
    let worker = Path::new(answer.trim()).with_file_name(WORKER);
    (worker.is_absolute() && is_program(&worker)).then_some(worker)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_package_beside_pytorch_comes_first_then_that_of_the_newest_python() {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("bin");
        let site = |version: &str| folder.path().join("lib").join(version).join("site-packages");
        for version in ["python3.9", "python3.12", "python3", "python2.7", "other"] {
            fs::create_dir_all(site(version)).unwrap();
        }
        let first = |count| packages(&bin).into_iter().take(count).collect::<Vec<_>>();
        let at = |site: PathBuf| site.join("dtrain").join(WORKER);
        assert_eq!(first(1), [at(site("python3.12"))]);
        assert_eq!(packages(&bin).len(), 7, "{:?}", packages(&bin));
        let lib = site("python3.9").join("torch/lib");
        fs::create_dir_all(&lib).unwrap();
        fs::write(lib.join("libtorch_cpu.so"), "").unwrap();
        assert_eq!(first(2), [at(site("python3.9")), at(site("python3.12"))]);
        assert!(packages(&bin).contains(&folder.path().join("dtrain").join(WORKER)));
    }
}
